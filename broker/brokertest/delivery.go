package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

func deliveryLaws() []law {
	return []law{
		{"AnAggregatesEventsComeInOrder", func(b Backend) bool { return b.Guarantees.OrderedPerAggregate }, inOrder},
		{"FetchTakesWhatIsThereAndWaitsForNoMore", nil, noWaitForMore},
		{"AWaitingFetchGetsTheNextEventAtOnce", nil, waitingFetch},
		{"ACanceledFetchReturnsPromptlyAndKeepsNothing", nil, canceledFetch},
		{"AnUnacknowledgedDeliveryComesAgain", func(b Backend) bool { return b.Guarantees.Redelivers > 0 }, unackedAgain},
		{"AnAcknowledgedDeliveryNeverComesAgain", nil, ackedNever},
		{"AReturnedDeliveryComesAfterItsDelay", func(b Backend) bool { return b.Guarantees.DelaysReturns }, returnedLater},
		{"EveryConsumerGetsAllOfItsSubjects", nil, consumersAreIndependent},
		{"FetchersOfOneConsumerShare", func(b Backend) bool { return b.Guarantees.Shares }, fetchersShare},
	}
}

func inOrder(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	var events []convergo.Event
	next := map[int]int64{}
	for i := range 500 {
		a := (i * i) % 7
		next[a]++
		events = append(events, paid(fmt.Sprint("O-", a), next[a]))
	}
	publish(t, b.Broker, events[:250]...)
	publish(t, b.Broker, events[250:]...)
	last := map[string]int64{}
	for _, d := range fetch(t, s, len(events)) {
		if d.Event.Version != last[d.Event.Aggregate.ID]+1 {
			t.Fatalf("%s came after version %d", d.Event.Key, last[d.Event.Aggregate.ID])
		}
		last[d.Event.Aggregate.ID] = d.Event.Version
	}
}

func noWaitForMore(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, series("O-1", 1, 3)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for n := 0; n < 3; {
		start := time.Now()
		got, err := s.Fetch(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > b.Guarantees.Prompt {
			t.Errorf("took %s for %d deliveries that were there", took, len(got))
		}
		n += len(got)
	}
}

func waitingFetch(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	for v := int64(1); v <= 3; v++ {
		came := make(chan []inbox.Delivery, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			got, err := s.Fetch(ctx, 10)
			if err != nil {
				t.Errorf("fetch: %v", err)
			}
			came <- got
		}()
		publish(t, b.Broker, paid("O-1", v))
		start := time.Now()
		got := <-came
		if took := time.Since(start); took > b.Guarantees.Prompt {
			t.Errorf("came %s after it was confirmed", took)
		}
		if len(got) != 1 || got[0].Event.Version != v {
			t.Fatalf("got %v", keys(got))
		}
		ack(t, got...)
	}
}

// canceledFetch cancels while an event arrives. Whether the event came to that call or not, the next one must not wait for
// a redelivery of what the canceled one was given.
func canceledFetch(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	prompt := b.Guarantees.Prompt
	if r := b.Guarantees.Redelivers; r > 0 {
		prompt = min(prompt, r*6/10)
	}
	for v := int64(1); v <= 100; v++ {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var got []inbox.Delivery
		go func() {
			var err error
			got, err = s.Fetch(ctx, 10)
			ended <- err
		}()
		arrives := v%10 != 0
		if arrives {
			publish(t, b.Broker, paid("O-1", v))
		}
		cancel()
		start := time.Now()
		err := <-ended
		if took := time.Since(start); took > b.Guarantees.Prompt {
			t.Fatalf("returned %s after it was canceled", took)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v, want context.Canceled", err)
		}
		if arrives && len(got) == 0 {
			got = fetch(t, s, 1)
			if took := time.Since(start); took > prompt {
				t.Fatalf("what the canceled fetch was given came %s later", took)
			}
		}
		ack(t, got...)
	}
}

func unackedAgain(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, paid("O-1", 1))
	first := fetch(t, s, 1)
	if first[0].Attempt > 1 {
		t.Errorf("the first delivery is attempt %d", first[0].Attempt)
	}
	start := time.Now()
	again := fetch(t, s, 1)
	if took := time.Since(start); took > b.Guarantees.Redelivers+b.Guarantees.Prompt {
		t.Errorf("came again after %s, promised after %s", took, b.Guarantees.Redelivers)
	}
	if again[0].Event.Key != first[0].Event.Key || again[0].Attempt == 1 {
		t.Errorf("got %s, attempt %d", again[0].Event.Key, again[0].Attempt)
	}
	ack(t, again...)
}

func ackedNever(t *testing.T, b Backend) {
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, series("O-1", 1, 50)...)
	ack(t, fetch(t, s, 50)...)
	nothing(t, s, b.Guarantees.Redelivers+2*silence)
	closeSource(t, s)
	nothing(t, subscribe(t, b.Broker, "payment"), silence)
}

func returnedLater(t *testing.T, b Backend) {
	const delay = 400 * time.Millisecond
	s := subscribe(t, b.Broker, "payment")
	publish(t, b.Broker, paid("O-1", 1), paid("O-2", 1))
	got := fetch(t, s, 2)
	ack(t, got[1])
	start := time.Now()
	if err := got[0].Return(t.Context(), delay); err != nil {
		t.Fatal(err)
	}
	again := fetch(t, s, 1)
	if took := time.Since(start); took < delay*9/10 || took > delay+b.Guarantees.Prompt+time.Second {
		t.Errorf("came again after %s, asked for %s", took, delay)
	}
	if again[0].Event.Key != got[0].Event.Key {
		t.Errorf("got %s, want %s", again[0].Event.Key, got[0].Event.Key)
	}
	if err := again[0].Return(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	ack(t, fetch(t, s, 1)...)
	nothing(t, s, silence)
}

func consumersAreIndependent(t *testing.T, b Backend) {
	closed, stock := convergo.Subject{Topic: "order", Type: "OrderClosed"}, convergo.Subject{Topic: "stock"}
	events := []convergo.Event{
		paid("O-1", 1), event("order", "OrderClosed", "O-2", 1), event("stock", "StockHeld", "O-3", 1), event("ordering", "OrderPaid", "O-4", 1),
	}
	type independent struct {
		source   inbox.Source
		subjects []convergo.Subject
		want     []convergo.Event
	}
	var all []independent
	add := func(name string, want []convergo.Event, subjects ...convergo.Subject) {
		all = append(all, independent{subscribe(t, b.Broker, name, subjects...), subjects, want})
	}
	add("payment", events[:1], orders...)
	add("ledger", events[:2], convergo.Subject{Topic: "order"}, orders[0])
	add("shipping", events[1:3], closed, stock)
	publish(t, b.Broker, events...)
	for _, c := range all {
		got := asked(t, c.source, len(c.want), c.subjects...)
		ack(t, got...)
		same(t, Guarantees{}, got, c.want) // between aggregates there is no order
		nothingAsked(t, c.source, silence, c.subjects...)
	}
}

func fetchersShare(t *testing.T, b Backend) {
	const fetchers, events = 4, 400
	var all []convergo.Event
	for i := range events {
		all = append(all, paid(fmt.Sprint("O-", i), 1))
	}
	sources := make([]inbox.Source, fetchers)
	for i := range sources {
		sources[i] = subscribe(t, b.Broker, "payment")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	seen := map[convergo.Key]int{}
	var wg sync.WaitGroup
	for _, s := range sources {
		wg.Go(func() {
			for {
				got, err := s.Fetch(ctx, 8)
				if err != nil {
					return
				}
				mu.Lock()
				for _, d := range got {
					seen[d.Event.Key]++
					_ = d.Ack(ctx)
				}
				if len(seen) == events {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	publish(t, b.Broker, all...)
	wg.Wait()
	if len(seen) != events {
		t.Errorf("%d of %d events came", len(seen), events)
	}
	for key, n := range seen {
		if n > 1 {
			t.Errorf("%s came to %d fetchers", key, n)
		}
	}
}
