package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo"
)

// newProducer makes a client that sends only when it is told to. It is idempotent and waits for all in-sync replicas: the
// client's defaults, said here because everything depends on them.
func (b *Broker) newProducer() (*producer, error) {
	b.mu.Lock()
	generation := b.generation
	b.mu.Unlock()
	client, err := kgo.NewClient(append(b.options(),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing(),
		kgo.ProducerBatchMaxBytes(int32(b.cfg.MaxMessage)), kgo.MaxBufferedRecords(1<<16),
		kgo.ProduceRequestTimeout(b.cfg.Timeout),
	)...)
	return &producer{client, generation}, err
}

// producer is a client that one call of Publish at a time has.
type producer struct {
	*kgo.Client
	generation int
}

// current is a producer that knows nothing of topics that are gone: p, or another one in its place.
func (b *Broker) current(p *producer) *producer {
	b.mu.Lock()
	outdated := p.generation != b.generation
	b.mu.Unlock()
	if !outdated {
		return p
	}
	next, err := b.newProducer()
	if err != nil { // the same options have worked before
		return p
	}
	go p.Close()
	return next
}

// Publish implements relay.Publisher. The events go in waves: in one wave each partition gets one batch, which the cluster
// stores as a whole or not at all, and the next wave begins when all its batches are answered. So a batch that fails can never
// be overtaken by a later event of its aggregates: those are in the same batch, or not sent yet.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	p := publication{
		broker: b, events: events, errs: make([]error, len(events)), records: make([]*kgo.Record, len(events)), limits: map[string]int{},
		failed: map[convergo.Aggregate]int{}, alone: map[slot]bool{},
	}
	for i := range events {
		p.left = append(p.left, i)
	}
	for len(p.left) > 0 {
		wave := p.gather(ctx)
		if len(wave) == 0 {
			continue // everything that was left is refused
		}
		if !p.send(ctx, wave) {
			break
		}
	}
	return p.errs
}

// publication is one call of Publish.
type publication struct {
	broker  *Broker
	events  []convergo.Event
	records []*kgo.Record
	errs    []error
	limits  map[string]int             // largest record of each topic
	failed  map[convergo.Aggregate]int // the aggregate's event that failed
	left    []int                      // events that are neither sent nor refused, in order
	alone   map[slot]bool              // partitions of which a batch was too large: one event a batch from there on
}

type slot struct {
	topic     string
	partition int32
}

// gather takes the next wave from what is left: of each partition as much as one batch holds.
func (p *publication) gather(ctx context.Context) (wave []int) {
	size := map[slot]int{}
	full := map[slot]bool{}
	var left []int
	for _, i := range p.left {
		e := p.events[i]
		if before, ok := p.failed[e.Aggregate]; ok {
			p.errs[i] = after(e, p.events[before], p.errs[before])
			continue
		}
		if err := p.prepare(ctx, i); err != nil {
			p.fail(i, err)
			continue
		}
		r := p.records[i]
		s := slot{r.Topic, r.Partition}
		n := sizeOf(r)
		if full[s] || size[s] > 0 && (p.alone[s] || size[s]+n > p.limits[e.Topic]-overhead) {
			full[s] = true // nothing later of this partition may go into the wave either
			left = append(left, i)
			continue
		}
		size[s] += n
		wave = append(wave, i)
	}
	p.left = left
	return wave
}

// prepare makes the record of an event that may be sent.
func (p *publication) prepare(ctx context.Context, i int) error {
	if p.records[i] != nil {
		return nil
	}
	e := p.events[i]
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return convergo.Permanent(fmt.Errorf("payload too large for the broker: %d > %d bytes", n, convergo.MaxPayloadBytes))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(err)
	}
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("not sent: %w", err))
	}
	if _, ok := p.limits[e.Topic]; !ok {
		limit, err := p.broker.prepare(ctx, e.Topic)
		if err != nil {
			return err
		}
		p.limits[e.Topic] = limit
	}
	r := p.broker.record(e)
	if n, limit := sizeOf(r), p.limits[e.Topic]-overhead; n > limit {
		return convergo.Permanent(fmt.Errorf("message too large for topic %s: %d > %d bytes with its headers", r.Topic, n, limit))
	}
	p.records[i] = r
	return nil
}

func (p *publication) fail(i int, err error) {
	p.errs[i] = fmt.Errorf("publish %s: %w", p.events[i].Key, err)
	p.failed[p.events[i].Aggregate] = i
}

// after is the error of an event that was not sent because of an earlier one. It shares an outage; another verdict is not its own.
func after(e, failed convergo.Event, err error) error {
	late := fmt.Errorf("publish %s: not sent, because %s before it failed", e.Key, failed.Key)
	if convergo.VerdictOf(err) == convergo.Outage {
		return convergo.Unreachable(late)
	}
	return late
}

type result struct {
	index int
	err   error
}

// send sends a wave and waits for its answers. It returns false when the time is over: nothing else is sent then.
func (p *publication) send(ctx context.Context, wave []int) bool {
	ctx, cancel := context.WithTimeout(ctx, p.broker.cfg.Timeout)
	defer cancel()
	var client *producer
	select {
	case client = <-p.broker.producers:
	case <-ctx.Done():
		p.outage(wave, fmt.Errorf("not sent, no producer is free: %w", ctx.Err()))
		return false
	}
	client = p.broker.current(client)
	results := make(chan result, len(wave))
	for _, i := range wave {
		client.Produce(ctx, p.records[i], func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		_ = client.Flush(ctx) // its only error is ctx's
	}()
	p.broker.cfg.Probe.At("broker.sent")
	answers := map[int]error{}
	open := true
	for open && len(answers) < len(wave) {
		select {
		case r := <-results:
			answers[r.index] = r.err
		case <-ctx.Done():
			open = false
		}
	}
	over := ctx.Err()
	cancel()
	<-flushed
	open = open && !hung(answers)
	p.broker.giveBack(client, open)
	p.settle(wave, answers, over)
	if !open {
		p.outage(nil, errors.New("not sent, because the cluster did not answer in time"))
	}
	return open
}

// hung tells whether a record was given up without the cluster's answer.
func hung(answers map[int]error) bool {
	for _, err := range answers {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrRecordTimeout) {
			return true
		}
	}
	return false
}

// giveBack makes a producer free for the next call. A new one takes the place of one that holds records whose fate nobody knows: the relay will publish those
// again, and must not meet them in the old one's queue. What the old one has on the wire can still be stored: a repeat, which
// comes after its first copy and never instead of it.
func (b *Broker) giveBack(client *producer, clean bool) {
	if !clean {
		if next, err := b.newProducer(); err == nil { // the same options have worked before
			go client.Close() // it waits for requests on the wire
			client = next
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		go client.Close()
		return
	}
	b.producers <- client
}

func (p *publication) outage(wave []int, err error) {
	for _, i := range append(wave, p.left...) {
		p.errs[i] = fmt.Errorf("publish %s: %w", p.events[i].Key, convergo.Unreachable(err))
	}
}

// settle notes the answers. A batch that was too large, or had something in it that the cluster refuses, is sent again in
// batches of one, so that the one whose fault it is is found and its neighbors go through.
func (p *publication) settle(wave []int, answers map[int]error, over error) {
	count := map[slot]int{}
	for _, i := range wave {
		count[slot{p.records[i].Topic, p.records[i].Partition}]++
	}
	var again []int
	for _, i := range wave {
		r := p.records[i]
		s := slot{r.Topic, r.Partition}
		err, answered := answers[i]
		switch {
		case !answered:
			p.broker.doubt(p.events[i].Topic)
			p.fail(i, convergo.Unreachable(fmt.Errorf("no confirmation: %w", over)))
		case err == nil:
		case convergo.VerdictOf(verdict(err)) == convergo.Park && count[s] > 1:
			p.alone[s] = true
			p.records[i] = p.broker.record(p.events[i]) // a record is sent once
			again = append(again, i)
		case errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge):
			p.broker.doubt(p.events[i].Topic)
			p.fail(i, convergo.Permanent(fmt.Errorf("message of %d bytes is too large for topic %s, whose limit was %d bytes: %w",
				sizeOf(r), r.Topic, p.limits[p.events[i].Topic], err)))
		default:
			p.broker.doubt(p.events[i].Topic)
			p.fail(i, verdict(err))
		}
	}
	p.left = append(again, p.left...)
	if len(again) > 0 {
		slices.Sort(p.left)
	}
}
