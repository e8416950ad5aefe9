package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// Publish implements relay.Publisher. Events of different aggregates are on their way together, Config.Window at most;
// of one aggregate only one at a time, so that a failure in the middle can never let a later one overtake it.
// A confirmation is the stream's own: stored, and found by every consumer of the subject.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	p := publication{broker: b, events: events, errs: make([]error, len(events))}
	p.chain()
	for len(p.ready) > 0 || len(p.sent) > 0 {
		for len(p.ready) > 0 && len(p.sent) < b.cfg.Window {
			i := p.ready[0]
			p.ready = p.ready[1:]
			p.send(ctx, i)
		}
		if len(p.sent) > 0 {
			f := p.sent[0]
			p.sent = p.sent[1:]
			p.settle(ctx, f)
		}
	}
	return p.errs
}

// publication is one call of Publish.
type publication struct {
	broker *Broker
	events []convergo.Event
	errs   []error
	next   []int // index of the aggregate's next event, -1 for its last
	ready  []int // events whose predecessor is confirmed
	sent   []inFlight
}

type inFlight struct {
	index  int
	future jetstream.PubAckFuture
}

func (p *publication) chain() {
	p.next = make([]int, len(p.events))
	last := make(map[convergo.Aggregate]int, len(p.events))
	for i, e := range p.events {
		p.next[i] = -1
		if before, ok := last[e.Aggregate]; ok {
			p.next[before] = i
		} else {
			p.ready = append(p.ready, i)
		}
		last[e.Aggregate] = i
	}
}

func (p *publication) send(ctx context.Context, i int) {
	e := p.events[i]
	if err := ctx.Err(); err != nil {
		p.fail(i, convergo.Unreachable(fmt.Errorf("publish %s: not sent: %w", e.Key, err)))
		return
	}
	if err := check(e); err != nil {
		p.fail(i, err)
		return
	}
	future, err := p.broker.js.PublishMsgAsync(encode(e), jetstream.WithRetryAttempts(0))
	if err != nil {
		p.fail(i, fmt.Errorf("publish %s: %w", e.Key, verdict(err)))
		return
	}
	p.broker.cfg.Probe.At("broker.sent")
	p.sent = append(p.sent, inFlight{i, future})
}

func (p *publication) settle(ctx context.Context, f inFlight) {
	e := p.events[f.index]
	var err error
	select {
	case ack := <-f.future.Ok():
		err = p.broker.confirm(ctx, e, ack)
	case refusal := <-f.future.Err():
		err = verdict(refusal)
	case <-ctx.Done():
		err = convergo.Unreachable(fmt.Errorf("no confirmation: %w", ctx.Err()))
	case <-p.broker.closed:
		err = convergo.Unreachable(errClosed)
	}
	if err != nil {
		p.fail(f.index, fmt.Errorf("publish %s: %w", e.Key, err))
		return
	}
	if following := p.next[f.index]; following >= 0 {
		p.ready = append(p.ready, following)
	}
}

// fail records the failure and refuses the aggregate's later events. They share an outage; another verdict is not theirs.
func (p *publication) fail(i int, err error) {
	p.errs[i] = err
	for j := p.next[i]; j >= 0; j = p.next[j] {
		late := fmt.Errorf("publish %s: not sent, because %s before it failed", p.events[j].Key, p.events[i].Key)
		if convergo.VerdictOf(err) == convergo.Outage {
			late = convergo.Unreachable(late)
		}
		p.errs[j] = late
	}
}

var errClosed = errors.New("the embedded broker is closed")

func check(e convergo.Event) error {
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return convergo.Permanent(fmt.Errorf("publish %s: payload too large for the broker: %d > %d bytes", e.Key, n, convergo.MaxPayloadBytes))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(fmt.Errorf("publish: %w", err))
	}
	return nil
}

// confirm looks at a confirmation. One that says "duplicate" is taken only when the stored message is this event: the
// window works by message id alone, and keys are unique per outbox, not per broker, so that another service's event may
// have the same one, and the first copy may have left the stream. Such an event is sent once more under an id of its own.
func (b *Broker) confirm(ctx context.Context, e convergo.Event, ack *jetstream.PubAck) error {
	if ack.Stream != streamName {
		return fmt.Errorf("confirmed by stream %q, want %q", ack.Stream, streamName)
	}
	if !ack.Duplicate || b.holds(ctx, ack.Sequence, e) {
		return nil
	}
	msg := encode(e)
	msg.Header.Set(nats.MsgIdHdr, messageID(e)+"#"+e.Topic+"."+e.Type+"#"+e.MessageID)
	again, err := b.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return verdict(err)
	}
	if again.Stream != streamName {
		return fmt.Errorf("confirmed by stream %q, want %q", again.Stream, streamName)
	}
	return nil
}

func (b *Broker) holds(ctx context.Context, seq uint64, e convergo.Event) bool {
	stream, err := b.js.Stream(ctx, streamName)
	if err != nil {
		return false
	}
	stored, err := stream.GetMsg(ctx, seq)
	return err == nil && stored.Subject == subjectOf(e) && stored.Header.Get(convergo.HeaderKey) == string(e.Key) && bytes.Equal(stored.Data, e.Payload)
}

// verdict judges what the client or the server answered.
func verdict(err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return convergo.Permanent(fmt.Errorf("message too large for the broker: headers and payload > %d bytes: %w", maxMessage, err))
	case errors.As(err, &api) && api.ErrorCode == 10054: // "message size exceeds maximum allowed"
		return convergo.Permanent(err)
	case errors.As(err, &api) && api.Code < 500:
		return err
	default: // the server's own trouble, no stream, no connection, no time
		return convergo.Unreachable(err)
	}
}

func outage(err error) error { return convergo.Unreachable(err) }
