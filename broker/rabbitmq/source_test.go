package rabbitmq

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func TestCaseB24ALaterAcknowledgementDoesNotPassOverAnEarlierDeliveryThatStillRuns(t *testing.T) {
	cfg := config(shared(t))
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("O", 10), paid("O", 11), paid("O", 12))
	got := fetch(t, s, 3)
	must(t, got[1].Ack(t.Context()))
	must(t, got[2].Ack(t.Context()))
	die(b) // 10 still ran
	again := open(t, cfg)
	d := fetch(t, subscribe(t, again, "payment"), 1)[0]
	if d.Event.Version != 10 || d.Attempt == 1 {
		t.Errorf("version %d came, attempt %d, want 10 once more", d.Event.Version, d.Attempt)
	}
}

func TestCaseB25WhatIsGivenBackStaysHereComesAgainInOrderAndHoldsNoOtherAggregate(t *testing.T) {
	cfg := config(shared(t))
	cfg.Partitions = 1
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("A", 1))
	publish(t, b, paid("A", 2), paid("B", 1))
	first := fetch(t, s, 1)[0]
	const delay = 3 * time.Second
	start := time.Now()
	must(t, first.Return(t.Context(), delay))
	other := fetch(t, s, 1)[0]
	if other.Event.Aggregate.ID != "B" || time.Since(start) >= delay {
		t.Errorf("%s came after %v, want B at once", other.Event.Key, time.Since(start))
	}
	must(t, other.Ack(t.Context()))
	for want := int64(1); want <= 2; want++ {
		d := fetch(t, s, 1)[0]
		if took := time.Since(start); d.Event.Version != want || took < delay*9/10 {
			t.Errorf("%s came after %v, want version %d after its delay", d.Event.Key, took, want)
		}
		if want == 1 && d.Attempt != 2 {
			t.Errorf("attempt %d, want 2", d.Attempt)
		}
		must(t, d.Ack(t.Context()))
	}
	q, err := channel(t, shared(t)).QueueDeclarePassive(b.queue("payment", 0), true, false, false, false, nil)
	if err != nil || q.Messages != 0 {
		t.Errorf("%d messages went back to the server, error %v", q.Messages, err)
	}
}

func TestCaseB25AClosedSourceGivesBackWhatItHas(t *testing.T) {
	cfg := config(shared(t))
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("A", 1), paid("A", 2))
	fetch(t, s, 2)
	must(t, s.(io.Closer).Close())
	if _, err := s.Fetch(t.Context(), 1); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("a closed source: %v", err)
	}
	other := open(t, cfg)
	for i, d := range fetch(t, subscribe(t, other, "payment"), 2) {
		if d.Event.Version != int64(i+1) {
			t.Errorf("version %d came as number %d", d.Event.Version, i+1)
		}
	}
}

func TestAnAckAfterTheConnectionWasLostIsAnError(t *testing.T) {
	b := open(t, config(shared(t)))
	s := subscribe(t, b, "payment")
	publish(t, b, paid("A", 1))
	before := fetch(t, s, 1)[0]
	b.consume.mu.Lock()
	_ = b.consume.raw.Close()
	b.consume.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		again, err := s.Fetch(ctx, 1)
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		if len(again) == 0 {
			continue
		}
		if err := before.Ack(t.Context()); convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("ack of what came on the lost connection: %v", err)
		}
		if again[0].Attempt == 1 {
			t.Error("the second delivery is attempt 1")
		}
		must(t, again[0].Ack(t.Context()))
		return
	}
}

func TestASourceMakesItsQueuesAgainWhenTheyWereDeleted(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	ch := channel(t, r)
	for p := range b.cfg.Partitions {
		_, err := ch.QueueDelete(b.queue("payment", p), false, false, false)
		must(t, err)
	}
	deadline := time.Now().Add(20 * time.Second)
	try := func() error { return b.Publish(t.Context(), []convergo.Event{paid("A", 1)})[0] }
	for err := try(); err != nil; err = try() {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	for {
		got, err := s.Fetch(ctx, 1)
		if len(got) == 1 {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// It may be the subject of a newer version of the program, of which no instance runs at this moment.
func TestASubjectStaysBoundWhenAnotherProcessSubscribesWithoutIt(t *testing.T) {
	cfg := config(shared(t))
	first := open(t, cfg)
	s, err := first.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}, {Topic: "stock", Type: "StockHeld"}})
	must(t, err)
	must(t, s.(io.Closer).Close())
	first.Close()
	second := open(t, cfg)
	subscribe(t, second, "payment")
	stock := paid("S", 1)
	stock.Topic, stock.Type = "stock", "StockHeld"
	other := paid("A", 1)
	other.Type = "OrderClosed"
	publish(t, second, stock, other)
	never := paid("A", 2)
	never.Topic, never.Type = "stock", "StockLost"
	if err := second.Publish(t.Context(), []convergo.Event{never})[0]; err == nil {
		t.Error("an event of a subject that nobody asked for finds a queue")
	}
}

// A server that is killed seconds after queues were made forgets the last one's log (see Broker.anchor).
func TestNewQueuesSurviveAKillRightAfterTheFirstConfirmation(t *testing.T) {
	r := shared(t)
	b := open(t, config(r))
	s := subscribe(t, b, "payment")
	var events []convergo.Event
	for i := range 64 {
		events = append(events, paid(fmt.Sprint("O-", i), 1))
	}
	publish(t, b, events...)
	must(t, r.Crash())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	seen := map[convergo.Key]bool{}
	for len(seen) < len(events) {
		got, _ := s.Fetch(ctx, 64)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d confirmed events came", len(seen), len(events))
		}
		for _, d := range got {
			seen[d.Event.Key] = true
		}
	}
}

// The classic kind keeps the same order and survives the same faults on its one node.
func TestClassicQueuesKeepOrderAndSurviveAKill(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	cfg.Classic = true
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	var events []convergo.Event
	for v := int64(1); v <= 50; v++ {
		events = append(events, paid("A", v))
	}
	publish(t, b, events...)
	for _, d := range fetch(t, s, 10) {
		_ = d
	}
	must(t, r.Crash())
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for want := int64(1); want <= 50; {
		got, _ := s.Fetch(ctx, 50)
		if ctx.Err() != nil {
			t.Fatalf("version %d did not come", want)
		}
		for _, d := range got {
			if d.Event.Version != want {
				t.Fatalf("version %d came, want %d", d.Event.Version, want)
			}
			want++
		}
	}
}
