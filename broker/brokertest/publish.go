package brokertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func publishLaws() []law {
	return []law{
		{"AConfirmedEventIsStoredAndRouted", keepsHistory, confirmedIsStored},
		{"AnEventThatNothingStoresIsAnError", func(b Backend) bool { return b.Unroute != nil }, unroutedIsAnError},
		{"AFailedEventHoldsBackTheLaterOnesOfItsAggregateOnly", nil, failureHoldsItsAggregate},
		{"CaseB07AnOversizedEventIsRefusedForGoodWithBothSizes", nil, oversizedIsRefused},
		{"AnInvalidEventIsRefusedForGood", nil, invalidIsRefused},
		{"APublishWithoutTimeIsAnOutageAndNotTheMessagesFault", nil, noTimeIsAnOutage},
		{"AnEventPublishedTwiceArrivesAndIsNoError", nil, twiceIsNoError},
		{"TwoServicesMayUseOneKey", nil, sameKeyOfTwoTopics},
		{"OneKeyWithTwoPayloadsIsNotSwallowed", nil, sameKeyOtherPayload},
		{"AReplayedEventArrivesOnceMore", nil, replayedArrives},
		{"ManyPublishersAtOnceLoseNothing", nil, concurrentPublishers},
	}
}

func keepsHistory(b Backend) bool { return b.Guarantees.KeepsHistory }

func confirmedIsStored(t *testing.T, b Backend) {
	events := series("O-1", 1, 300)
	publish(t, b.Broker, events...)
	same(t, b.Guarantees, fetch(t, subscribe(t, b.Broker, "late"), len(events)), events)
}

func unroutedIsAnError(t *testing.T, b Backend) {
	b.Unroute(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for i, err := range b.Broker.Publish(ctx, series("O-1", 1, 3)) {
		if err == nil {
			t.Errorf("event %d is confirmed and nothing stores it", i)
		} else if convergo.VerdictOf(err) == convergo.Park {
			t.Errorf("event %d: %v: a missing route is not the message's fault", i, err)
		}
	}
}

func tooLarge(b Backend, id string, version int64) convergo.Event {
	e := paid(id, version)
	e.Payload = make([]byte, b.Guarantees.MaxPayload+1)
	return e
}

func failureHoldsItsAggregate(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	events := []convergo.Event{paid("A", 1), tooLarge(b, "A", 2), paid("A", 3), paid("B", 1), paid("A", 4), paid("B", 2)}
	errs := b.Broker.Publish(t.Context(), events)
	for i, wantErr := range []bool{false, true, true, false, true, false} {
		if (errs[i] != nil) != wantErr {
			t.Errorf("%s: error %v, want one: %v", events[i].Key, errs[i], wantErr)
		}
	}
	for _, i := range []int{2, 4} {
		if v := convergo.VerdictOf(errs[i]); v == convergo.Park {
			t.Errorf("%s is blameless, and its error says %s: %v", events[i].Key, v, errs[i])
		}
	}
	got := fetch(t, s, 3)
	ack(t, got...)
	nothing(t, s, silence)
	for _, d := range got {
		if d.Event.Aggregate.ID == "A" && d.Event.Version != 1 {
			t.Errorf("%s was sent after an earlier event of its aggregate failed", d.Event.Key)
		}
	}
}

func oversizedIsRefused(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	errs := b.Broker.Publish(t.Context(), []convergo.Event{paid("m-1", 1), tooLarge(b, "m-2", 1), paid("m-3", 1)})
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the neighbors failed too: %v, %v", errs[0], errs[2])
	}
	if errs[1] == nil || convergo.VerdictOf(errs[1]) != convergo.Park {
		t.Fatalf("error %v, verdict %s; want a permanent one", errs[1], convergo.VerdictOf(errs[1]))
	}
	for _, size := range []int{b.Guarantees.MaxPayload + 1, b.Guarantees.MaxPayload} {
		if !strings.Contains(errs[1].Error(), fmt.Sprint(size)) {
			t.Errorf("error %q does not name %d", errs[1], size)
		}
	}
	ack(t, fetch(t, s, 2)...)
	nothing(t, s, silence)
}

func invalidIsRefused(t *testing.T, b Backend) {
	noTopic, dots, blank := paid("O-1", 1), paid("O-2", 1), paid("O-3", 1)
	noTopic.Topic, dots.Type, blank.Key = "", "Order.>", " "
	for i, err := range b.Broker.Publish(t.Context(), []convergo.Event{noTopic, dots, blank}) {
		if err == nil || convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("event %d: error %v, want a permanent one", i, err)
		}
	}
}

func noTimeIsAnOutage(t *testing.T, b Backend) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i, err := range b.Broker.Publish(ctx, series("O-1", 1, 3)) {
		if err == nil || convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("event %d: error %v with verdict %s, want an outage", i, err, convergo.VerdictOf(err))
		}
	}
}

func twiceIsNoError(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, paid("O-1", 1))
	publish(t, b.Broker, paid("O-1", 1))
	publish(t, b.Broker, paid("O-2", 1))
	seen := map[convergo.Key]bool{}
	for len(seen) < 2 {
		for _, d := range fetch(t, s, 1) {
			seen[d.Event.Key] = true
			ack(t, d)
		}
	}
}

// replayedArrives publishes what an operator has made pending again: the same event from another place in the outbox's queue. A
// broker that drops repeats must not take it for one.
func replayedArrives(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	e := paid("O-1", 1)
	e.Position = 41
	publish(t, b.Broker, e)
	ack(t, fetch(t, s, 1)...)
	e.Position = 77
	publish(t, b.Broker, e)
	again := fetch(t, s, 1)
	ack(t, again...)
	want := paid("O-1", 1) // where it stood does not travel
	sameEvent(t, again[0].Event, want)
	if again[0].Event.Position != 0 {
		t.Errorf("the position %d came along", again[0].Event.Position)
	}
}

func sameKeyOfTwoTopics(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "ledger", convergo.Subject{Topic: "order"}, convergo.Subject{Topic: "payment"})
	one, other := event("order", "Paid", "O-1", 1), event("payment", "Paid", "O-1", 1)
	publish(t, b.Broker, one)
	publish(t, b.Broker, other)
	topics := map[string]bool{}
	for _, d := range fetch(t, s, 2) {
		topics[d.Event.Topic] = true
	}
	if len(topics) != 2 {
		t.Errorf("only the events of %v arrived", topics)
	}
}

func sameKeyOtherPayload(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	one, other := paid("O-1", 1), paid("O-1", 1)
	other.Payload, other.MessageID = []byte(`{"amount":2}`), "another-message"
	publish(t, b.Broker, one)
	publish(t, b.Broker, other)
	got := fetch(t, s, 2)
	if string(got[0].Event.Payload) == string(got[1].Event.Payload) {
		t.Errorf("both deliveries have the payload %s", got[0].Event.Payload)
	}
}

func concurrentPublishers(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	const publishers, each = 8, 100
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i, err := range b.Broker.Publish(t.Context(), series(fmt.Sprint("O-", p), 1, each)) {
				if err != nil {
					t.Errorf("publisher %d, event %d: %v", p, i, err)
				}
			}
		})
	}
	wg.Wait()
	last := map[string]int64{}
	for _, d := range fetch(t, s, publishers*each) {
		ack(t, d)
		if b.Guarantees.OrderedPerAggregate && d.Event.Version != last[d.Event.Aggregate.ID]+1 {
			t.Fatalf("%s came after version %d", d.Event.Key, last[d.Event.Aggregate.ID])
		}
		last[d.Event.Aggregate.ID] = d.Event.Version
	}
	nothing(t, s, silence)
}
