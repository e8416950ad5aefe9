package rocketmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// What one request carries at most. A broker's limit for a request is 4 MiB (maxMessageSize).
const (
	batchMessages = 128
	batchBytes    = 1 << 20
)

// producerGroup names the senders to the brokers; it has no meaning for plain messages.
const producerGroup = "producer"

// Publish implements relay.Publisher. Each queue gets its events in their order, in requests one after another, of which the
// broker stores all messages or none; the queues are served together. A confirmation is the broker's "success": with
// SYNC_FLUSH the messages are on its disk, with SYNC_MASTER on its slaves. A confirmation that says that the disk or a slave
// was too late is none. Nothing is sent again here, and never to another queue.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	p := &publication{broker: b, events: events, errs: make([]error, len(events)), failed: map[convergo.Aggregate]failure{}}
	queues := p.sort(ctx)
	var sending sync.WaitGroup
	for at, indexes := range queues {
		sending.Go(func() { p.send(ctx, at, indexes) })
	}
	sending.Wait()
	return p.errs
}

// publication is one call of Publish.
type publication struct {
	broker *Broker
	events []convergo.Event
	errs   []error // each written by one goroutine only: that of its event's queue

	mu     sync.Mutex
	failed map[convergo.Aggregate]failure
}

// failure is the first of an aggregate.
type failure struct {
	index int
	err   error
}

// sort checks the events and gives the indexes of those to be sent by their queue. A topic is looked up once, whatever comes of it: name
// servers that do not answer cost a time-out each time.
func (p *publication) sort(ctx context.Context) map[partition][]int {
	type found struct {
		parts []partition
		err   error
	}
	topics := map[string]found{}
	queues := map[partition][]int{}
	for i, e := range p.events {
		if p.heldBack(i) {
			continue
		}
		if err := check(e); err != nil {
			p.fail(i, err)
			continue
		}
		topic, looked := topics[e.Topic]
		if !looked {
			topic.parts, topic.err = p.broker.partitions(ctx, p.broker.topicName(e.Topic))
			topics[e.Topic] = topic
		}
		if topic.err != nil {
			p.fail(i, fmt.Errorf("publish %s: %w", e.Key, topic.err))
			continue
		}
		at := topic.parts[int(e.Aggregate.Lane())%len(topic.parts)]
		queues[at] = append(queues[at], i)
	}
	return queues
}

// check refuses for good what no broker may be given.
func check(e convergo.Event) error {
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return convergo.Permanent(fmt.Errorf("publish %s: payload too large for the broker: %d > %d bytes", e.Key, n, convergo.MaxPayloadBytes))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(fmt.Errorf("publish: %w", err))
	}
	return nil
}

func (p *publication) fail(i int, err error) {
	p.errs[i] = err
	p.mu.Lock()
	defer p.mu.Unlock()
	if first, ok := p.failed[p.events[i].Aggregate]; !ok || i < first.index {
		p.failed[p.events[i].Aggregate] = failure{i, err}
	}
}

// heldBack fails an event whose aggregate had an earlier failure. It shares an outage; another verdict is not its own.
func (p *publication) heldBack(i int) bool {
	p.mu.Lock()
	before, held := p.failed[p.events[i].Aggregate]
	p.mu.Unlock()
	if !held || before.index >= i {
		return false
	}
	err := fmt.Errorf("publish %s: not sent, because %s before it failed", p.events[i].Key, p.events[before.index].Key)
	if convergo.VerdictOf(before.err) == convergo.Outage {
		err = convergo.Unreachable(err)
	}
	p.errs[i] = err
	return true
}

// send sends the events of one queue.
func (p *publication) send(ctx context.Context, at partition, indexes []int) {
	for len(indexes) > 0 {
		var chosen []int
		var messages []message
		size := 0
		for _, i := range indexes {
			if p.heldBack(i) {
				chosen, messages = append(chosen, i), append(messages, message{})
				continue
			}
			m := encode(p.events[i])
			if size += len(m.body) + len(m.properties); size > batchBytes && len(messages) > 0 || len(messages) == batchMessages {
				break
			}
			chosen, messages = append(chosen, i), append(messages, m)
		}
		indexes = indexes[len(chosen):]
		p.sendBatch(ctx, at, chosen, messages)
	}
}

// sendBatch sends messages in one request. When the broker says that one of them is at fault they are sent one by one, so
// that only that one is.
func (p *publication) sendBatch(ctx context.Context, at partition, indexes []int, messages []message) {
	var sent []int
	var these []message
	for n, i := range indexes {
		if p.errs[i] == nil {
			sent, these = append(sent, i), append(these, messages[n])
		}
	}
	if len(sent) == 0 {
		return
	}
	err := p.broker.put(ctx, at, these)
	switch {
	case err == nil:
	case len(sent) > 1 && convergo.VerdictOf(err) == convergo.Park:
		for n, i := range sent {
			if !p.heldBack(i) {
				p.sendBatch(ctx, at, []int{i}, these[n:n+1])
			}
		}
	default:
		for _, i := range sent {
			p.fail(i, fmt.Errorf("publish %s: %w", p.events[i].Key, err))
		}
	}
}

// put sends messages to a queue in one request and waits for the confirmation.
func (b *Broker) put(ctx context.Context, at partition, messages []message) error {
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("not sent: %w", err))
	}
	req := sendRequest(at, producerGroup, messages[0], 0)
	if len(messages) > 1 {
		req = request(codeSendBatch, sendFields(at, producerGroup, "", 0, true), batch(messages))
	}
	_, err := b.send(ctx, at, req)
	return err
}

func sendRequest(at partition, group string, m message, flags int) *command {
	return request(codeSend, sendFields(at, group, m.properties, flags, false), m.body)
}

// sendFields names what a send request must say, each by the protocol's one letter. The topic that a new one would be made
// like is this one itself: nothing is ever made by sending.
func sendFields(at partition, group, properties string, flags int, batch bool) map[string]string {
	return fields("a", group, "b", at.Topic, "c", at.Topic, "d", 0, "e", at.Queue, "f", flags, "g", time.Now().UnixMilli(), "h", 0,
		"i", properties, "j", 0, "k", false, "l", 0, "m", batch, "n", at.Broker)
}

func (b *Broker) send(ctx context.Context, at partition, req *command) (*command, error) {
	address, err := b.address(at.Broker)
	if err != nil {
		b.stale(at.Topic)
		return nil, err
	}
	answer, err := b.sending.call(ctx, address, req)
	b.cfg.Probe.At("broker.sent")
	switch refusedWith(err) {
	case answerNoTopic:
		b.gone(at.Topic)
	case -1:
		if err != nil {
			b.stale(at.Topic)
		}
		return answer, err
	case answerIllegalMessage:
		return nil, convergo.Permanent(fmt.Errorf("%d bytes of body and %d of properties: %w", len(req.body), len(req.Fields["i"]), err))
	case answerFlushTimeout:
		return nil, convergo.Unreachable(fmt.Errorf("stored, and not known to be on the disk: %w", err))
	case answerNoSlave, answerSlaveTimeout:
		return nil, convergo.Unreachable(fmt.Errorf("stored, and not known to be on a slave: %w", err))
	}
	// Busy, read-only, no such topic, no permission: all of them are the servers' affair and no message's.
	b.stale(at.Topic)
	return nil, convergo.Unreachable(fmt.Errorf("broker %s, topic %s: %w", at.Broker, at.Topic, err))
}
