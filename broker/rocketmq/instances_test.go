package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

func paid(id string, version int64) convergo.Event {
	return convergo.Event{
		Key: convergo.KeyFor("OrderPaid", id, version), MessageID: fmt.Sprint("m-", id, "-", version), Topic: "order", Type: "OrderPaid",
		Aggregate: convergo.Aggregate{Type: "order", ID: id}, Version: version, Payload: []byte(`{}`), CreatedAt: time.UnixMicro(1_796_000_000_000_000).UTC(),
	}
}

func publish(t *testing.T, b *Broker, events ...convergo.Event) {
	t.Helper()
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatalf("publish %s: %v", events[i].Key, err)
		}
	}
}

func subscribe(t *testing.T, b *Broker, consumer string) *source {
	t.Helper()
	s, err := b.Subscribe(t.Context(), consumer, []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	return s.(*source)
}

// fetch waits for n deliveries.
func fetch(t *testing.T, s inbox.Source, n int) []inbox.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all []inbox.Delivery
	for len(all) < n {
		got, err := s.Fetch(ctx, n-len(all))
		if err != nil {
			t.Fatalf("fetch after %d of %d: %v", len(all), n, err)
		}
		all = append(all, got...)
	}
	return all
}

func ack(t *testing.T, deliveries ...inbox.Delivery) {
	t.Helper()
	for _, d := range deliveries {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.NewTimer(30 * time.Second)
	defer end.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-end.C:
			t.Fatal("not within 30 s: ", what)
		case <-look.C:
		}
	}
}

// spread is an event for each of many aggregates, so that every queue has some.
func spread(version int64) []convergo.Event {
	var events []convergo.Event
	for i := range 64 {
		events = append(events, paid(fmt.Sprint("O-", i), version))
	}
	return events
}

func TestAClosedInstanceGivesItsQueuesBackBeforeItsLocksRunOut(t *testing.T) {
	cfg := configOf(shared(t), prefix())
	cfg.LockTerm = time.Hour // what is not given back stays for good, as far as this client knows
	first, second := open(t, cfg), open(t, cfg)
	leaver := subscribe(t, first, "payment")
	publish(t, first, spread(1)...)
	ack(t, fetch(t, leaver, 64)...)
	publish(t, first, spread(2)...)
	begin := time.Now()
	if err := leaver.Close(); err != nil {
		t.Fatal(err)
	}
	closed := time.Since(begin)
	stayer := subscribe(t, second, "payment")
	for _, d := range fetch(t, stayer, 64) {
		if d.Event.Version != 2 {
			t.Errorf("%s came again although it was acknowledged", d.Event.Key)
		}
	}
	if took := time.Since(begin); took > 30*time.Second { // a broker forgets a lock after 60 s by itself
		t.Errorf("took %s, of it %s for closing", took, closed)
	}
}

func TestASubscriptionThatNobodyFetchesFromLeavesItsQueuesToOthers(t *testing.T) {
	cfg := configOf(shared(t), prefix())
	cfg.Idle = 300 * time.Millisecond
	idle, busy := open(t, cfg), open(t, cfg)
	s := subscribe(t, idle, "payment")
	publish(t, busy, spread(1)...)
	ack(t, fetch(t, s, 64)...)
	publish(t, busy, spread(2)...)
	ack(t, fetch(t, subscribe(t, busy, "payment"), 64)...)
	// It takes part again as soon as it fetches.
	publish(t, busy, spread(3)...)
	if got := fetch(t, s, 1); got[0].Event.Version != 3 {
		t.Errorf("got version %d, want 3", got[0].Event.Version)
	}
}

func TestAPositionIsNotTakenOverBeforeTheWorkOnItIsDone(t *testing.T) {
	cfg := configOf(shared(t), prefix())
	first, second := open(t, cfg), open(t, cfg)
	one := subscribe(t, first, "payment")
	publish(t, first, spread(1)...)
	working := fetch(t, one, 64)
	two := subscribe(t, second, "payment")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := two.Fetch(ctx, 64); err == nil {
		t.Fatalf("%d messages went to the instance that joined while the other one works on them", len(got))
	}
	ack(t, working...)
	publish(t, first, spread(2)...)
	for _, d := range fetch(t, two, 1) {
		if d.Event.Version != 2 {
			t.Errorf("%s came again", d.Event.Key)
		}
	}
}
