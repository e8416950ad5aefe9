// Package brokertest is the list of laws that every broker obeys. A broker's own test calls Run with a way to make an
// empty backend; a law that a backend does not promise in its Guarantees is not run, so what a broker is weaker in is
// written down where it is made.
package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
)

// Broker is both sides of a broker.
type Broker interface {
	relay.Publisher
	Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error)
}

// Guarantees is what a broker promises beyond what every broker must.
type Guarantees struct {
	// Durable: what was confirmed, and how far each consumer came, outlives Backend.Restart.
	Durable bool
	// OrderedPerAggregate: a single fetcher sees an aggregate's events in the order in which they were published.
	OrderedPerAggregate bool
	// RecoversInOrder: after a restart, what was delivered and not acknowledged comes at once, before anything newer.
	RecoversInOrder bool
	// GathersAcks: acknowledgements are told to the server a moment later, or when their source is closed. A server that stops in between
	// delivers again.
	GathersAcks bool
	// Shares: several fetchers of one consumer divide its events among them.
	Shares bool
	// KeepsHistory: a consumer that subscribes for the first time gets what was published before.
	KeepsHistory bool
	// DelaysReturns: a returned delivery stays away for the delay that was asked for.
	DelaysReturns bool
	// Redelivers is how long an unacknowledged delivery stays away at most; 0 when it does not come again by itself.
	Redelivers time.Duration
	// SurvivesKill: what was confirmed, and how far each consumer came, outlives Backend.Kill.
	SurvivesKill bool
	// InstancesShare: the instances of one consumer in several processes (Backend.Another) divide its events among them, and
	// together they get each aggregate's events in order, also while one of them comes or goes.
	InstancesShare bool
	// HandsOver is how long it takes at most until another instance has what belonged to one that closed or died, and until
	// one that joins has its share. Needed when InstancesShare.
	HandsOver time.Duration
	// Prompt is how soon an event that is there reaches a Fetch, on a machine that is busy with other tests. Default 5 s.
	Prompt time.Duration
	// MaxPayload is the largest payload in bytes. Default convergo.MaxPayloadBytes.
	MaxPayload int
}

// Backend is an empty broker to be tested.
type Backend struct {
	Broker     Broker
	Guarantees Guarantees
	// Restart stops the server as a clean shutdown does, starts it on the same data, and returns a Broker on it: the same one
	// when that finds the server again by itself. Needed when Durable.
	Restart func(t *testing.T) Broker
	// Kill ends the server with SIGKILL, starts it on the same data, and returns when it can be used. The Broker and its
	// sources must find it again by themselves. nil: impossible here, as for a server in the test's own process.
	Kill func(t *testing.T)
	// Another opens one more Broker on the same server, as another process would. die ends that one as the death of its
	// process does: its connections are cut and nothing is given back, left or said before; a nil die says that this cannot
	// be done. nil: only one process can use the broker.
	Another func(t *testing.T) (another Broker, die func())
	// PublishRaw sends a message as a foreign program could: these headers and nothing else.
	PublishRaw func(ctx context.Context, subject convergo.Subject, headers map[string]string, payload []byte) error
	// Unroute takes away what stores the broker's messages, so that a publish has nowhere to go. nil: impossible here.
	Unroute func(t *testing.T)
	// Empty stops the server, takes away all that it has stored, starts it, and returns when it can be used. The Broker and its sources
	// must go on by themselves. nil: the law is not declared, for a broker that has no server, or none that could lose its data while
	// the programs that use it live.
	Empty func(t *testing.T)
}

// Run checks the laws, each on a backend of its own.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	for _, l := range laws() {
		t.Run(l.name, func(t *testing.T) {
			l.run(t, open(t))
		})
	}
}

// RunOne checks one law, by its name, on a backend that may be another than the one for all laws: for example one whose Kill
// ends one of several servers.
func RunOne(t *testing.T, name string, b Backend) {
	t.Helper()
	for _, l := range laws() {
		if l.name == name {
			if l.needs != nil && !l.needs(b) {
				t.Fatalf("the backend does not declare what the law %s is about", name)
			}
			l.run(t, b)
			return
		}
	}
	t.Fatalf("there is no law %s", name)
}

func (l law) run(t *testing.T, b Backend) {
	if b.Guarantees.InstancesShare && b.Another == nil {
		t.Fatal("the backend's instances share, and it has no Another to show it")
	}
	b.Guarantees.Prompt = cmp.Or(b.Guarantees.Prompt, 5*time.Second)
	b.Guarantees.MaxPayload = cmp.Or(b.Guarantees.MaxPayload, convergo.MaxPayloadBytes)
	if l.needs != nil && !l.needs(b) {
		t.Log("nothing was checked: the broker does not declare it")
		return
	}
	l.check(t, b)
}

type law struct {
	name  string
	needs func(Backend) bool // nil: every broker
	check func(*testing.T, Backend)
}

func laws() []law {
	return slices.Concat(publishLaws(), contentLaws(), deliveryLaws(), lifeLaws(), emptiedLaws(), instanceLaws())
}

// patience is how long a law waits for something that must come; silence how long it listens for what must not.
const (
	patience = 30 * time.Second
	silence  = 150 * time.Millisecond
)

var orders = []convergo.Subject{{Topic: "order", Type: "OrderPaid"}}

func event(topic, eventType, id string, version int64) convergo.Event {
	key := convergo.KeyFor(eventType, id, version)
	return convergo.Event{
		Key: key, MessageID: fmt.Sprintf("m-%s-%s", topic, key), Topic: topic, Type: eventType,
		Aggregate: convergo.Aggregate{Type: topic, ID: id}, Version: version, Payload: fmt.Appendf(nil, `{"id":%q,"version":%d}`, id, version),
		CreatedAt: time.UnixMicro(1_796_000_000_000_001).UTC(),
	}
}

func paid(id string, version int64) convergo.Event { return event("order", "OrderPaid", id, version) }

func series(id string, from, to int64) []convergo.Event {
	var events []convergo.Event
	for v := from; v <= to; v++ {
		events = append(events, paid(id, v))
	}
	return events
}

func publish(t *testing.T, b Broker, events ...convergo.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	errs := b.Publish(ctx, events)
	if len(errs) != len(events) {
		t.Fatalf("%d errors for %d events", len(errs), len(events))
	}
	for i, err := range errs {
		if err != nil {
			t.Fatalf("publish %s: %v", events[i].Key, err)
		}
	}
}

func subscribe(t *testing.T, b Broker, consumer string, subjects ...convergo.Subject) inbox.Source {
	t.Helper()
	if len(subjects) == 0 {
		subjects = orders
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := b.Subscribe(ctx, consumer, subjects)
	if err != nil {
		t.Fatalf("subscribe %s: %v", consumer, err)
	}
	return s
}

// closeSource tells whether the source is one that is closed: it holds resources, for example its part of the events.
func closeSource(t *testing.T, s inbox.Source) bool {
	t.Helper()
	closer, ok := s.(io.Closer)
	if ok {
		if err := closer.Close(); err != nil {
			t.Error("close: ", err)
		}
	}
	return ok
}

// fetch waits for n deliveries, in calls that each keep to the contract of Fetch.
func fetch(t *testing.T, s inbox.Source, n int) []inbox.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []inbox.Delivery
	for len(all) < n {
		most := min(n-len(all), 64)
		got, err := s.Fetch(ctx, most)
		if err != nil {
			t.Fatalf("fetch after %d of %d: %v", len(all), n, err)
		}
		if len(got) == 0 || len(got) > most {
			t.Fatalf("Fetch(%d) returned %d deliveries", most, len(got))
		}
		all = append(all, got...)
	}
	return all
}

func ack(t *testing.T, deliveries ...inbox.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatalf("ack %s: %v", d.Event.Key, err)
		}
	}
}

// asked waits for n deliveries of the subjects. What else comes must be of their topics: a source may leave it to the inbox to tell
// which types are wanted.
func asked(t *testing.T, s inbox.Source, n int, subjects ...convergo.Subject) []inbox.Delivery {
	t.Helper()
	var all []inbox.Delivery
	for len(all) < n {
		got, others := part(t, fetch(t, s, 1), subjects)
		ack(t, others...)
		all = append(all, got...)
	}
	return all
}

// part divides deliveries into those of the subjects and the others.
func part(t *testing.T, deliveries []inbox.Delivery, subjects []convergo.Subject) (of, others []inbox.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		switch {
		case slices.ContainsFunc(subjects, func(s convergo.Subject) bool { return s.Covers(d.Event.Topic, d.Event.Type) }):
			of = append(of, d)
		case slices.ContainsFunc(subjects, func(s convergo.Subject) bool { return s.Topic == d.Event.Topic }):
			others = append(others, d)
		default:
			t.Errorf("came, and must not: %s of topic %s", d.Event.Key, d.Event.Topic)
		}
	}
	return of, others
}

// nothingAsked checks that no delivery of the subjects comes for a while.
func nothingAsked(t *testing.T, s inbox.Source, while time.Duration, subjects ...convergo.Subject) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	for {
		got, err := s.Fetch(ctx, 10)
		of, others := part(t, got, subjects)
		for _, d := range of {
			t.Errorf("came, and must not: %s, attempt %d", d.Event.Key, d.Attempt)
		}
		ack(t, others...)
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("fetch: %v", err)
			}
			return
		}
	}
}

// nothing checks that no delivery comes for a while.
func nothing(t *testing.T, s inbox.Source, while time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	got, err := s.Fetch(ctx, 10)
	for _, d := range got {
		t.Errorf("came, and must not: %s, attempt %d", d.Event.Key, d.Attempt)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("fetch: %v", err)
	}
}

func keys(deliveries []inbox.Delivery) []convergo.Key {
	var all []convergo.Key
	for _, d := range deliveries {
		all = append(all, d.Event.Key)
	}
	return all
}

func keysOf(events []convergo.Event) []convergo.Key {
	var all []convergo.Key
	for _, e := range events {
		all = append(all, e.Key)
	}
	return all
}

// same compares as sets when the broker promises no order.
func same(t *testing.T, g Guarantees, got []inbox.Delivery, want []convergo.Event) {
	t.Helper()
	have, expect := keys(got), keysOf(want)
	if !g.OrderedPerAggregate {
		slices.Sort(have)
		slices.Sort(expect)
	}
	if !slices.Equal(have, expect) {
		t.Errorf("got  %v\nwant %v", have, expect)
	}
}
