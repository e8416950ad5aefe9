package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// subscription is the topics that a consumer reads, by their names at the brokers. Of a topic it gets all types: the brokers could
// choose by tag, but what an instance leaves out is left out for all of them, and one of another version may have a handler.
type subscription map[string]bool

func (b *Broker) subscriptionOf(subjects []convergo.Subject) (subscription, error) {
	if len(subjects) == 0 {
		return nil, errors.New("no subjects: a consumer needs at least one")
	}
	s := subscription{}
	for _, subject := range subjects {
		if err := subject.Validate(); err != nil {
			return nil, err
		}
		s[b.topicName(subject.Topic)] = true
	}
	return s, nil
}

// everything is the expression by which a broker leaves out nothing of a topic.
const everything = "*"

func (s subscription) topics() []string { return slices.Sorted(maps.Keys(s)) }

// Subscribe makes a source of the consumer's events. It begins with all that the broker still has of a topic that is new to
// the consumer, and otherwise where the consumer stopped. All sources that one Broker has of a consumer share one place in
// its group, and the topics of all of them; instances of the consumer in other processes share the queues with it.
// The first Fetch takes queues, not Subscribe. The source is an io.Closer; a closed one's deliveries come again elsewhere.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	if err := (convergo.Subject{Topic: consumer}).Validate(); err != nil {
		return nil, fmt.Errorf("subscribe: consumer %q: %w", consumer, err)
	}
	wanted, err := b.subscriptionOf(subjects)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
	}
	for _, name := range wanted.topics() {
		if _, err := b.partitions(ctx, name); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, convergo.Unreachable(errClosed)
	}
	m := b.members[consumer]
	if m == nil {
		m = newMember(b, consumer)
		b.members[consumer] = m
	}
	s := &source{member: m}
	m.add(s, wanted)
	return s, nil
}

// source is one reader of a consumer's events.
type source struct{ member *member }

// Fetch implements inbox.Source.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	since := s.member.outage()
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("fetch for %s: %w", s.member.consumer, err)
		}
		got, changed, wait, err := s.member.take(s, max(most, 1), since)
		if err != nil {
			return nil, fmt.Errorf("fetch for %s: %w", s.member.consumer, convergo.Unreachable(err))
		}
		if len(got) > 0 {
			return got, nil
		}
		pause(ctx, changed, wait)
	}
}

// Close gives back what was delivered to this source and not acknowledged; the consumer's last source gives its queues back.
func (s *source) Close() error {
	s.member.remove(s)
	return nil
}

// pause waits for a change, for the time, or for the end of ctx.
func pause(ctx context.Context, changed <-chan struct{}, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// delivery hands out one flight of a queue.
func (m *member) delivery(q *queue, f *flight) inbox.Delivery {
	d := inbox.Delivery{
		Ack:    func(context.Context) error { return m.ack(q, f) },
		Return: func(_ context.Context, delay time.Duration) error { return m.giveBack(q, f, delay) },
	}
	// How often a message was delivered by other instances is not known to the broker.
	if f.times > 1 {
		d.Attempt = f.times
	}
	d.Partition = q.name
	d.Event, d.Malformed = decode(f.message)
	return d
}
