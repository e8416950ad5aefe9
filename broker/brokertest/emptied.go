package brokertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

func emptiedLaws() []law {
	return []law{{
		"ABrokerThatComesBackEmptyIsFilledAgainAndLivingSubscriptionsGoOn", func(b Backend) bool { return b.Empty != nil }, emptied,
	}}
}

// emptied plays a replay after a loss: the publisher and the subscription live through it, and nobody starts anew.
func emptied(t *testing.T, b Backend) {
	const aggregates, before, after = 12, 5, 8
	s := subscribe(t, b.Broker, "payment")
	var old, fresh []convergo.Event
	for v := int64(1); v <= after; v++ {
		for a := range aggregates {
			if e := paid(fmt.Sprint("O-", a), v); v <= before {
				old = append(old, e)
			} else {
				fresh = append(fresh, e)
			}
		}
	}
	publish(t, b.Broker, old...)
	ack(t, fetch(t, s, len(old))...)

	b.Empty(t)
	for i := range old {
		old[i].Position = int64(10_000 + i) // as an operator's replay gives it
	}
	start := time.Now()
	// More than was read before: a position of the old data would pass over the first of them.
	insist(t, b.Broker, old)
	insist(t, b.Broker, fresh)
	t.Logf("all is stored again after %s", time.Since(start).Round(time.Millisecond))
	got := arriving(t, s, slices.Concat(old, fresh))
	t.Logf("all has arrived after %s", time.Since(start).Round(time.Millisecond))
	if !b.Guarantees.OrderedPerAggregate {
		return
	}
	last := map[convergo.Aggregate]int64{}
	for _, e := range got {
		if e.Version < last[e.Aggregate] {
			t.Errorf("%s came for the first time behind version %d", e.Key, last[e.Aggregate])
		}
		last[e.Aggregate] = e.Version
	}
}

// insist publishes as a relay does: what failed is sent again a moment later, and an outage is no reason to give up.
func insist(t *testing.T, b Broker, events []convergo.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		once, done := context.WithTimeout(ctx, patience/3)
		errs := b.Publish(once, events)
		done()
		var failed []convergo.Event
		var last error
		for i, err := range errs {
			if err == nil {
				continue
			}
			if convergo.VerdictOf(err) == convergo.Park {
				t.Fatalf("%s: %v: lost data is not the message's fault", events[i].Key, err)
			}
			failed, last = append(failed, events[i]), err
		}
		if events = failed; len(events) == 0 {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%d events cannot be published, the last one because: %v", len(failed), last)
		}
	}
}

// arriving acknowledges until each of the events has come, and returns them as they came for the first time. A fetch may fail as long as
// the broker is away.
func arriving(t *testing.T, s inbox.Source, events []convergo.Event) (first []convergo.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	missing := map[convergo.Key]bool{}
	for _, e := range events {
		missing[e.Key] = true
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for len(missing) > 0 {
		got, err := s.Fetch(ctx, 64)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d did not arrive, for example %v; the last fetch: %v", len(missing), len(events), sample(missing), err)
		}
		for _, d := range got {
			if missing[d.Event.Key] {
				first = append(first, d.Event)
				delete(missing, d.Event.Key)
			}
			_ = d.Ack(ctx) // one that fails comes again
		}
		if err != nil {
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
	}
	return first
}

func sample(missing map[convergo.Key]bool) (some []convergo.Key) {
	for k := range missing {
		some = append(some, k)
	}
	slices.Sort(some)
	return some[:min(3, len(some))]
}
