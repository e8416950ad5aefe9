package nats

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// Publisher publishes events to one stream. It implements relay.Publisher. Its fields are set before its first use.
type Publisher struct {
	JetStream jetstream.JetStream // its limit on what is on its way must be above the windows of all publishers
	Stream    string
	Layout    Layout
	Window    int // events of one call that are on their way at a time
	// MaxMessage is the largest message, headers included, that server and stream take, in bytes.
	MaxMessage int
	// Closed, when it is closed, ends every wait for a confirmation.
	Closed <-chan struct{}
	// Probe point: broker.sent (handed to the connection, not confirmed).
	Probe convergo.Probe
	// Server is what errors call the server: its URL without secrets. Default "the server".
	Server string
	// Unheard is told that no stream takes what is published. It must not block. Default nobody.
	Unheard func()
}

var errClosed = errors.New("the broker is closed")

// Publish implements relay.Publisher. Events of different aggregates are on their way together, Window at most; of one
// aggregate only one at a time, so that a failure in the middle can never let a later one overtake it. A confirmation is the
// stream's own: stored, and found by every consumer of the subject.
func (p *Publisher) Publish(ctx context.Context, events []convergo.Event) []error {
	c := publication{Publisher: p, events: events, errs: make([]error, len(events))}
	c.chain()
	for len(c.ready) > 0 || len(c.sent) > 0 {
		for len(c.ready) > 0 && len(c.sent) < p.Window {
			i := c.ready[0]
			c.ready = c.ready[1:]
			c.send(ctx, i)
		}
		if len(c.sent) > 0 {
			f := c.sent[0]
			c.sent = c.sent[1:]
			c.settle(ctx, f)
		}
	}
	return c.errs
}

// publication is one call of Publish.
type publication struct {
	*Publisher
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

func (c *publication) chain() {
	c.next = make([]int, len(c.events))
	last := make(map[convergo.Aggregate]int, len(c.events))
	for i, e := range c.events {
		c.next[i] = -1
		if before, ok := last[e.Aggregate]; ok {
			c.next[before] = i
		} else {
			c.ready = append(c.ready, i)
		}
		last[e.Aggregate] = i
	}
}

func (c *publication) send(ctx context.Context, i int) {
	e := c.events[i]
	if err := ctx.Err(); err != nil {
		c.fail(i, convergo.Unreachable(fmt.Errorf("publish %s: not sent: %w", e.Key, err)))
		return
	}
	message, err := c.message(e)
	if err != nil {
		c.fail(i, err)
		return
	}
	future, err := c.JetStream.PublishMsgAsync(message, jetstream.WithRetryAttempts(0))
	if err != nil {
		c.fail(i, fmt.Errorf("publish %s: %w", e.Key, c.verdict(err)))
		return
	}
	c.Probe.At("broker.sent")
	c.sent = append(c.sent, inFlight{i, future})
}

func (c *publication) settle(ctx context.Context, f inFlight) {
	e := c.events[f.index]
	var err error
	select {
	case ack := <-f.future.Ok():
		err = c.confirm(ctx, e, ack)
	case refusal := <-f.future.Err():
		err = c.verdict(refusal)
	case <-ctx.Done():
		err = convergo.Unreachable(fmt.Errorf("no confirmation: %w", ctx.Err()))
	case <-c.Closed:
		err = convergo.Unreachable(errClosed)
	}
	if err != nil {
		c.fail(f.index, fmt.Errorf("publish %s: %w", e.Key, err))
		return
	}
	if following := c.next[f.index]; following >= 0 {
		c.ready = append(c.ready, following)
	}
}

// fail records the failure and refuses the aggregate's later events. They share an outage; another verdict is not theirs.
func (c *publication) fail(i int, err error) {
	c.errs[i] = err
	for j := c.next[i]; j >= 0; j = c.next[j] {
		late := fmt.Errorf("publish %s: not sent, because %s before it failed", c.events[j].Key, c.events[i].Key)
		if convergo.VerdictOf(err) == convergo.Outage {
			late = convergo.Unreachable(late)
		}
		c.errs[j] = late
	}
}

// message refuses, for good, what no later attempt could send.
func (p *Publisher) message(e convergo.Event) (*nats.Msg, error) {
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return nil, convergo.Permanent(fmt.Errorf("publish %s: payload too large for the broker: %d > %d bytes", e.Key, n, convergo.MaxPayloadBytes))
	}
	if err := e.Validate(); err != nil {
		return nil, convergo.Permanent(fmt.Errorf("publish: %w", err))
	}
	m := Encode(p.Layout.Subject(e), e)
	if n := sizeOf(m); n > p.MaxMessage {
		return nil, convergo.Permanent(fmt.Errorf("publish %s: too large for the broker with its headers: %d > %d bytes", e.Key, n, p.MaxMessage))
	}
	return m, nil
}

// sizeOf is the size that the server compares with its limits.
func sizeOf(m *nats.Msg) int {
	n := len(m.Data) + len("NATS/1.0\r\n\r\n")
	for name, values := range m.Header {
		for _, value := range values {
			n += len(name) + len(": \r\n") + len(value)
		}
	}
	return n
}

// confirm looks at a confirmation. One that says "duplicate" is taken only when the stored message is this event: the
// window works by message id alone, and keys are unique per outbox, not per broker, so that another service's event may
// have the same one, and the first copy may have left the stream. Such an event is sent once more under an id of its own.
func (p *Publisher) confirm(ctx context.Context, e convergo.Event, ack *jetstream.PubAck) error {
	if ack.Stream != p.Stream {
		return fmt.Errorf("confirmed by stream %q, want %q", ack.Stream, p.Stream)
	}
	if !ack.Duplicate || p.holds(ctx, ack.Sequence, e) {
		return nil
	}
	msg := Encode(p.Layout.Subject(e), e)
	msg.Header.Set(nats.MsgIdHdr, messageID(e)+"#"+e.Topic+"."+e.Type+"#"+e.MessageID)
	again, err := p.JetStream.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return p.verdict(err)
	}
	if again.Stream != p.Stream {
		return fmt.Errorf("confirmed by stream %q, want %q", again.Stream, p.Stream)
	}
	return nil
}

func (p *Publisher) holds(ctx context.Context, seq uint64, e convergo.Event) bool {
	stream, err := p.JetStream.Stream(ctx, p.Stream)
	if err != nil {
		return false
	}
	stored, err := stream.GetMsg(ctx, seq)
	return err == nil && stored.Subject == p.Layout.Subject(e) && unquote(stored.Header.Get(convergo.HeaderKey)) == string(e.Key) &&
		bytes.Equal(stored.Data, e.Payload)
}

// verdict judges what the client or the server answered.
func (p *Publisher) verdict(err error) error {
	const tooLarge = 10054 // "message size exceeds maximum allowed"
	var api *jetstream.APIError
	if p.Unheard != nil && unheard(err) {
		p.Unheard()
	}
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded): // the client's words for it: nothing is buffered, see Config.options
		return convergo.Unreachable(fmt.Errorf("not connected to %s", cmp.Or(p.Server, "the server")))
	case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == tooLarge:
		return convergo.Permanent(err)
	case errors.As(err, &api) && api.Code < 500:
		return err
	default: // the server's own trouble, no stream, no connection, no time
		return convergo.Unreachable(err)
	}
}
