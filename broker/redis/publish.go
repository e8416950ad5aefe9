package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo"
)

// mostBytes is how much payload one transaction carries; the server does nothing else while it runs.
const mostBytes = 4 << 20

// Publish implements relay.Publisher. The events go in transactions of Config.Chunk, one after another: each is stored as a
// whole or not at all, so that no failure inside can let a later event of an aggregate overtake an earlier one. After a
// transaction that failed nothing else is sent.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	if b.cfg.LookOnly {
		return slices.Repeat([]error{errLookOnly}, len(events))
	}
	p := publication{broker: b, events: events, errs: make([]error, len(events)), failed: map[convergo.Aggregate]int{}}
	for i := 0; i < len(events); {
		i = p.gather(ctx, i)
		if err := p.send(ctx); err != nil {
			p.refuse(i, err)
			break
		}
	}
	return p.errs
}

// publication is one call of Publish.
type publication struct {
	broker *Broker
	events []convergo.Event
	errs   []error
	failed map[convergo.Aggregate]int // the aggregate's event that failed
	chunk  []int
}

// gather fills the next chunk and returns the index behind it. An event that may not be sent is refused here, and so are
// the later ones of its aggregate.
func (p *publication) gather(ctx context.Context, from int) int {
	p.chunk = p.chunk[:0]
	size := 0
	for i := from; i < len(p.events); i++ {
		if len(p.chunk) == p.broker.cfg.Chunk || size >= mostBytes {
			return i
		}
		e := p.events[i]
		if before, ok := p.failed[e.Aggregate]; ok {
			p.errs[i] = after(e, p.events[before], p.errs[before])
			continue
		}
		err := check(e)
		if err == nil {
			err = p.broker.prepare(ctx, e.Topic)
		}
		if err != nil {
			p.errs[i] = fmt.Errorf("publish %s: %w", e.Key, err)
			p.failed[e.Aggregate] = i
			continue
		}
		p.chunk = append(p.chunk, i)
		size += len(e.Payload)
	}
	return len(p.events)
}

// after is the error of an event that was not sent because of an earlier one. It shares an outage; another verdict is not its own.
func after(e, failed convergo.Event, err error) error {
	late := fmt.Errorf("publish %s: not sent, because %s before it failed", e.Key, failed.Key)
	if convergo.VerdictOf(err) == convergo.Outage {
		return convergo.Unreachable(late)
	}
	return late
}

func check(e convergo.Event) error {
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return convergo.Permanent(fmt.Errorf("payload too large for the broker: %d > %d bytes", n, convergo.MaxPayloadBytes))
	}
	return convergo.Permanent(e.Validate())
}

// send stores the chunk in one transaction.
func (p *publication) send(ctx context.Context) error {
	if len(p.chunk) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("not sent: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, p.broker.cfg.Timeout)
	defer cancel()
	conn := p.broker.client.Conn()      // WAIT is about what was written on its own connection
	defer func() { _ = conn.Close() }() // it goes back to the pool
	pipe := conn.TxPipeline()
	records := map[string]*redis.BoolCmd{}
	for _, i := range p.chunk {
		e := p.events[i]
		if records[e.Topic] == nil {
			records[e.Topic] = pipe.HSetNX(ctx, p.broker.topicsKey(), e.Topic, p.broker.cfg.Partitions)
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: p.broker.streamKey(e.Topic, p.broker.partitionOf(e.Aggregate)), Values: fields(e)})
	}
	commands, err := pipe.Exec(ctx)
	p.broker.cfg.Probe.At("broker.sent")
	if err != nil && p.partly(commands) {
		return nil
	}
	if err != nil {
		return verdict(err)
	}
	for topic, missing := range records {
		if missing.Val() {
			p.broker.report(Loss{Topic: topic, What: "the topic's record is gone: the server has lost its data"})
		}
	}
	return p.replicated(ctx, conn)
}

// partly tells whether the transaction ran although a command in it failed, and settles its events if so. It happens when a
// key is no stream: then every event of that partition fails alike, and no order is broken.
func (p *publication) partly(commands []redis.Cmder) bool {
	var errs []error
	for _, c := range commands {
		if c.Name() != "xadd" {
			continue
		}
		if err := c.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return false
		}
		errs = append(errs, c.Err())
	}
	if len(errs) != len(p.chunk) {
		return false
	}
	for n, i := range p.chunk {
		if errs[n] != nil {
			p.errs[i] = fmt.Errorf("publish %s: %w", p.events[i].Key, verdict(errs[n]))
			p.failed[p.events[i].Aggregate] = i
		}
	}
	return true
}

// replicated waits until as many replicas as asked for have what was written.
func (p *publication) replicated(ctx context.Context, conn *redis.Conn) error {
	want := p.broker.cfg.Replicas
	if want <= 0 {
		return nil
	}
	have, err := conn.Wait(ctx, want, p.broker.cfg.Timeout/2).Result()
	if err != nil {
		return verdict(err)
	}
	if have < int64(want) {
		return convergo.Unreachable(fmt.Errorf("%d of %d replicas have it: not confirmed", have, want))
	}
	return nil
}

// refuse gives the chunk's error to the chunk and to all from there on: nothing else is sent by this call.
func (p *publication) refuse(from int, err error) {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = convergo.Unreachable(err)
	}
	for _, i := range p.chunk {
		p.errs[i] = fmt.Errorf("publish %s: %w", p.events[i].Key, err)
	}
	for i := from; i < len(p.events); i++ {
		p.errs[i] = fmt.Errorf("publish %s: not sent, because an earlier transaction failed: %w", p.events[i].Key, err)
	}
}
