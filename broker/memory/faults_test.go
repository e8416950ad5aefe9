package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/memory"
	"github.com/convergo/convergo/inbox"
)

func paid(id string, version int64) convergo.Event {
	key := convergo.KeyFor("OrderPaid", id, version)
	return convergo.Event{
		Key: key, MessageID: fmt.Sprint("m-", key), Topic: "order", Type: "OrderPaid",
		Aggregate: convergo.Aggregate{Type: "order", ID: id}, Version: version, Payload: []byte("{}"),
	}
}

func source(t *testing.T, b *memory.Broker) inbox.Source {
	t.Helper()
	s, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, b *memory.Broker, events ...convergo.Event) {
	t.Helper()
	for _, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func fetch(t *testing.T, s inbox.Source) []inbox.Delivery {
	t.Helper()
	got, err := s.Fetch(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAnUnacknowledgedDeliveryComesAgainAfterTheVisibilityTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{})
		s := source(t, b)
		publish(t, b, paid("O-1", 1))
		fetch(t, s)
		start := time.Now()
		got := fetch(t, s)
		if waited := time.Since(start); waited != 30*time.Second {
			t.Errorf("came again after %s, want 30s", waited)
		}
		if got[0].Attempt != 2 {
			t.Errorf("attempt %d, want 2", got[0].Attempt)
		}
	})
}

func TestAReturnedDeliveryComesAfterItsDelayToTheMicrosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{})
		s := source(t, b)
		publish(t, b, paid("O-1", 1))
		if err := fetch(t, s)[0].Return(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		fetch(t, s)
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("came again after %s, want 1m", waited)
		}
	})
}

func TestAnOutageFailsEverythingAndKeepsEverything(t *testing.T) {
	b := memory.New(memory.Config{})
	s := source(t, b)
	publish(t, b, paid("O-1", 1))
	held := fetch(t, s)[0]
	b.Outage(true)
	_, fetchErr := s.Fetch(t.Context(), 1)
	for what, err := range map[string]error{
		"publish": b.Publish(t.Context(), []convergo.Event{paid("O-1", 2)})[0], "fetch": fetchErr,
		"ack": held.Ack(t.Context()), "return": held.Return(t.Context(), 0),
	} {
		if convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("%s: %v, want an outage", what, err)
		}
	}
	b.Outage(false)
	publish(t, b, paid("O-1", 2))
	if got := fetch(t, s); len(got) != 1 || got[0].Event.Version != 2 {
		t.Errorf("got %v", got)
	}
}

func TestAnOutageEndsAFetchThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{})
		s := source(t, b)
		ended := make(chan error)
		go func() { _, err := s.Fetch(context.Background(), 1); ended <- err }()
		synctest.Wait()
		b.Outage(true)
		if err := <-ended; convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("error %v", err)
		}
	})
}

func TestFaultsHappenAsOftenAsTheyWereAskedFor(t *testing.T) {
	b := memory.New(memory.Config{Visibility: time.Millisecond})
	s := source(t, b)
	broken := errors.New("broken")

	b.FailNext(1, broken)
	errs := b.Publish(t.Context(), []convergo.Event{paid("A", 1), paid("A", 2), paid("B", 1)})
	if !errors.Is(errs[0], broken) || errs[1] == nil || errs[2] != nil {
		t.Errorf("FailNext: %v", errs)
	}
	b.RefuseIf(func(e convergo.Event) error {
		if e.Aggregate.ID == "C" {
			return convergo.Permanent(broken)
		}
		return nil
	})
	errs = b.Publish(t.Context(), []convergo.Event{paid("C", 1), paid("C", 2), paid("B", 2)})
	if convergo.VerdictOf(errs[0]) != convergo.Park || convergo.VerdictOf(errs[1]) != convergo.Again || errs[1] == nil || errs[2] != nil {
		t.Errorf("RefuseIf: %v", errs)
	}
	b.RefuseIf(nil)

	b.LoseConfirms(1)
	if err := b.Publish(t.Context(), []convergo.Event{paid("D", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("LoseConfirms: %v", err)
	}
	if n := len(b.Published()); n != 3 {
		t.Errorf("%d stored, want B-1, B-2 and the unconfirmed D-1", n)
	}

	b.LoseAcks(1)
	for _, d := range fetch(t, s) {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := fetch(t, s); len(got) != 1 || got[0].Attempt != 2 || got[0].Ack(t.Context()) != nil {
		t.Errorf("LoseAcks: %v", got)
	}

	b.DeliverTwice(1)
	publish(t, b, paid("E", 1))
	first := fetch(t, s)
	if len(first) != 1 || first[0].Ack(t.Context()) != nil {
		t.Fatalf("DeliverTwice: %v", first)
	}
	if second := fetch(t, s); len(second) != 1 || second[0].Event.Key != first[0].Event.Key {
		t.Errorf("DeliverTwice: %v", second)
	}
	if pending, err := b.Pending(t.Context()); err != nil || pending["payment"] != 0 {
		t.Errorf("pending %v, %v", pending, err)
	}
}
