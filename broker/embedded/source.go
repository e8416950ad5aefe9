package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
	wire "github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/inbox"
)

// pullFor is how long one request to the server waits before it is made again.
const pullFor = 30 * time.Second

var errClosed = errors.New("the embedded broker is closed")

func outage(err error) error { return convergo.Unreachable(err) }

// Subscribe makes the durable consumer when it is new, with everything that the stream still has of its subjects, and
// otherwise goes on where the consumer stopped. When the subjects differ from those of the last time the consumer is
// updated: a subject that was added is delivered from the consumer's position on. Several sources of one consumer share
// its events.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	filters, err := filtersOf(subjects)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
	}
	_, err = b.js.CreateOrUpdateConsumer(ctx, streamName, jetstream.ConsumerConfig{
		Durable: consumer, FilterSubjects: filters, DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: b.cfg.AckWait, MaxDeliver: -1, MaxAckPending: b.cfg.MaxAckPending, MaxWaiting: 512,
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
	}
	return &source{broker: b, consumer: consumer}, nil
}

func filtersOf(subjects []convergo.Subject) ([]string, error) {
	if len(subjects) == 0 {
		return nil, errors.New("no subjects: a consumer needs at least one")
	}
	for _, s := range subjects {
		if err := s.Validate(); err != nil {
			return nil, err
		}
	}
	return layout().Filters(subjects, "*"), nil
}

type source struct {
	broker   *Broker
	consumer string
}

// Fetch asks once with "no wait" and an expiry, to which the server answers with what is there, or else with the first
// that comes; either way nothing lingers for a batch to fill.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		got, err := s.pull(ctx, max(most, 1))
		if err != nil {
			return nil, fmt.Errorf("fetch for %s: %w", s.consumer, outage(err))
		}
		if len(got) > 0 {
			return got, nil
		}
	}
}

func (s *source) pull(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	inboxSubject := s.broker.conn.NewInbox()
	arrivals := make(chan *nats.Msg, most+8) // the server sends at most "most" messages and a status
	sub, err := s.broker.conn.ChanSubscribe(inboxSubject, arrivals)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails when the connection is closed or the subscription is drained
	request, err := json.Marshal(map[string]any{"batch": most, "no_wait": true, "expires": pullFor})
	if err != nil {
		return nil, err
	}
	if err := s.broker.conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+streamName+"."+s.consumer, inboxSubject, request); err != nil {
		return nil, err
	}
	expired := time.NewTimer(pullFor + time.Second)
	defer expired.Stop()
	var got []inbox.Delivery
	for len(got) < most {
		select {
		case m := <-arrivals:
			if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 && m.Reply == "" {
				return got, statusError(status, m.Header.Get("Description"))
			}
			got = append(got, s.delivery(m))
		case <-expired.C:
			return got, nil
		case <-s.broker.closed:
			return nil, errClosed
		case <-ctx.Done():
			s.giveBack(sub, arrivals, got)
			return nil, ctx.Err()
		}
	}
	return got, nil
}

// statusError tells an ordinary end of a request from trouble.
func statusError(status, description string) error {
	switch status {
	case "404", "408": // nothing more there; expired, or others are waiting already
		return nil
	default:
		return fmt.Errorf("the broker answered %s %s", status, description)
	}
}

// giveBack returns what arrived for a Fetch that was canceled. The order matters: first the server forgets the request,
// then all that it had sent before is here, then that is returned; otherwise a message in between would stay away until
// AckWait.
func (s *source) giveBack(sub *nats.Subscription, arrivals <-chan *nats.Msg, got []inbox.Delivery) {
	if sub.Drain() != nil || s.broker.conn.FlushTimeout(time.Second) != nil {
		return // the connection is closed; an unacknowledged delivery comes again
	}
	for {
		select {
		case m := <-arrivals:
			if m.Reply != "" {
				got = append(got, s.delivery(m))
			}
		default:
			for _, d := range got {
				_ = d.Return(context.Background(), 0) // as above
			}
			return
		}
	}
}

func (s *source) delivery(m *nats.Msg) inbox.Delivery {
	d := inbox.Delivery{
		Ack: func(context.Context) error {
			s.broker.acked.Store(s.consumer, m.Reply)
			return s.answer(m, "+ACK")
		},
		Return: func(_ context.Context, delay time.Duration) error {
			if delay <= 0 {
				return s.answer(m, "-NAK")
			}
			return s.answer(m, fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
		},
	}
	d.Event, d.Malformed = wire.Decode(m.Header, m.Data)
	// The server is in this process: what it has counted and not written yet dies with it. The next process begins in order.
	d.Partition = streamName
	if meta, err := m.Metadata(); err == nil {
		d.Attempt = int(meta.NumDelivered)
	}
	return d
}

func (s *source) answer(m *nats.Msg, word string) error {
	if err := s.broker.conn.Publish(m.Reply, []byte(word)); err != nil {
		return fmt.Errorf("answer %s to the broker for %s: %w", word, s.consumer, outage(err))
	}
	return nil
}
