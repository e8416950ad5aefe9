// Package memory is a broker in memory. It keeps the contracts of relay.Publisher and inbox.Source and obeys the laws of
// brokertest, so it may stand in for any broker in tests; Faults lets it fail as real ones do. It keeps all that was
// published until the process ends and deduplicates nothing.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Config of the broker. The zero value works.
type Config struct {
	// MaxPayload is the largest payload in bytes. Default convergo.MaxPayloadBytes.
	MaxPayload int
	// Visibility is how long a delivery may stay unacknowledged before it is delivered again. Default 30 s. It is measured
	// by the process's clock, which testing/synctest replaces.
	Visibility time.Duration
}

// Broker keeps messages in the order in which they were published. Its methods are safe for concurrent use.
type Broker struct {
	cfg Config

	mu        sync.Mutex
	log       []message
	consumers map[string]*consumer
	changed   chan struct{} // closed and replaced whenever a Fetch that waits should look again
	faults    faults
}

type message struct {
	topic, eventType string
	headers          map[string]string
	payload          []byte
}

// aggregate is the zero value for a message that is no event.
func (m message) aggregate() convergo.Aggregate {
	return convergo.Aggregate{Type: m.headers[convergo.HeaderAggregateType], ID: m.headers[convergo.HeaderAggregateID]}
}

// New makes an empty broker.
func New(cfg Config) *Broker {
	if cfg.MaxPayload <= 0 {
		cfg.MaxPayload = convergo.MaxPayloadBytes
	}
	if cfg.Visibility <= 0 {
		cfg.Visibility = 30 * time.Second
	}
	return &Broker{cfg: cfg, consumers: map[string]*consumer{}, changed: make(chan struct{})}
}

// Publish implements relay.Publisher.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.wake()
	errs := make([]error, len(events))
	failed := map[convergo.Aggregate]error{}
	for i, e := range events {
		if before, ok := failed[e.Aggregate]; ok {
			errs[i] = follower(e, before)
			continue
		}
		if errs[i] = b.publish(ctx, e); errs[i] != nil {
			failed[e.Aggregate] = errs[i]
		}
	}
	return errs
}

// follower is the error of an event whose predecessor failed: they share an outage, another verdict is not its own.
func follower(e convergo.Event, before error) error {
	err := fmt.Errorf("publish %s: not sent, because an earlier event of %s failed", e.Key, e.Aggregate)
	if convergo.VerdictOf(before) == convergo.Outage {
		return convergo.Unreachable(err)
	}
	return err
}

func (b *Broker) publish(ctx context.Context, e convergo.Event) error {
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("publish %s: %w", e.Key, err))
	}
	if err := b.faults.publish(e); err != nil {
		return fmt.Errorf("publish %s: %w", e.Key, err)
	}
	if n := len(e.Payload); n > b.cfg.MaxPayload {
		return convergo.Permanent(fmt.Errorf("publish %s: payload too large for the broker: %d > %d bytes", e.Key, n, b.cfg.MaxPayload))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(fmt.Errorf("publish: %w", err))
	}
	b.log = append(b.log, message{e.Topic, e.Type, e.Wire(), append([]byte{}, e.Payload...)})
	if b.faults.loseConfirm() {
		return convergo.Unreachable(fmt.Errorf("publish %s: no confirmation", e.Key))
	}
	return nil
}

// PublishRaw stores a message as another program could have sent it, valid or not.
func (b *Broker) PublishRaw(subject convergo.Subject, headers map[string]string, payload []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, message{subject.Topic, subject.Type, maps.Clone(headers), append([]byte{}, payload...)})
	b.wake()
}

// Published is every valid event that was stored, in order, second copies included.
func (b *Broker) Published() []convergo.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	var events []convergo.Event
	for _, m := range b.log {
		if e, err := m.event(); err == nil {
			events = append(events, e)
		}
	}
	return events
}

func (m message) event() (convergo.Event, error) {
	return convergo.FromWire(m.headers, append([]byte{}, m.payload...))
}

// Subscribe makes the consumer when it is new, beginning with the first message, and otherwise goes on where it stopped,
// with these subjects and those of before. Several sources of one consumer share its events; an aggregate's events come in order to all of them
// together, because no source gets one while another holds an earlier one unacknowledged.
func (b *Broker) Subscribe(_ context.Context, name string, subjects []convergo.Subject) (inbox.Source, error) {
	if len(subjects) == 0 {
		return nil, fmt.Errorf("subscribe %s: no subjects: a consumer needs at least one", name)
	}
	for _, s := range subjects {
		if err := s.Validate(); err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", name, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.consumers[name]
	if c == nil {
		c = &consumer{name: name, out: map[int]*flight{}}
		b.consumers[name] = c
	}
	for _, s := range subjects {
		if !slices.Contains(c.subjects, s) {
			c.subjects = append(c.subjects, s)
		}
	}
	b.wake()
	return &source{broker: b, consumer: c}, nil
}

// Pending is, per consumer, how many events are not yet delivered or not yet acknowledged.
func (b *Broker) Pending(context.Context) (map[string]int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := map[string]int64{}
	for name, c := range b.consumers {
		n := int64(len(c.out) + len(c.held))
		for _, m := range b.log[c.next:] {
			if c.wants(m) {
				n++
			}
		}
		pending[name] = n
	}
	return pending, nil
}

// Durability says what is lost when the process ends.
func (b *Broker) Durability() string {
	return "Everything is in memory: the end of the process loses all of it."
}

// wake makes every waiting Fetch look again. The caller holds the lock.
func (b *Broker) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

var errOutage = errors.New("the broker is down")
