package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

func TestAnIdleRelayCostsTwoStoreCallsASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, workers := range []int{1, 2, 8} {
			store := &faulty{Store: memory.New()}
			r := start(store, &broker{}, relay.Config{Workers: workers})
			pass(10 * time.Second)
			before, _ := store.calls()
			pass(100 * time.Second)
			after, by := store.calls()
			if n := after - before; n > 200 || n < 100 {
				t.Errorf("%d workers: %d calls in 100 idle seconds, want 100 to 200: %v", workers, n, by)
			}
			r.stop(t)
		}
	})
}

func TestAWakeUpIsServedAtOnceAndNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		r := start(store, b, relay.Config{Poll: time.Hour})
		store.OnEvents(r.Wake)
		pass(10 * time.Second)
		for range 1000 {
			r.Wake()
		}
		add(t, store, event("O-1", 1))
		synctest.Wait()
		if !b.has(1)() {
			t.Error("the event did not come without time going by")
		}
		r.stop(t)
		r.Wake() // after the end too
	})
}

func TestEveryEventIsSentWithTheRelaysOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, origin := range []string{"", "north"} {
			store, b := memory.New(), &broker{}
			r := start(store, b, relay.Config{Origin: origin})
			add(t, store, event("O-1", 1), event("O-2", 1))
			pass(10 * time.Second)
			r.stop(t)
			for _, e := range b.sent {
				if e.Origin != origin {
					t.Errorf("%s has the origin %q, want %q", e.Key, e.Origin, origin)
				}
			}
			if len(b.sent) != 2 {
				t.Errorf("%d events were sent, want 2", len(b.sent))
			}
		}
	})
}

func TestWithoutAWakeUpThePollFindsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		r := start(store, b, relay.Config{})
		pass(10*time.Second + 300*time.Millisecond)
		add(t, store, event("O-1", 1))
		until(t, time.Second, "the event", b.has(1))
		r.stop(t)
	})
}

func TestADelayedEventComesWhenItIsDueAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		r := start(store, b, relay.Config{Poll: time.Hour})
		store.OnEvents(r.Wake)
		late := event("O-1", 1)
		late.DeliverAt = time.Now().Add(15 * time.Minute)
		add(t, store, late)
		pass(15*time.Minute - time.Second)
		if b.has(1)() {
			t.Fatal("it came too early")
		}
		until(t, time.Second+50*time.Millisecond, "the delayed event", b.has(1))
		r.stop(t)
	})
}

func TestABacklogIsDrainedInFullBatches(t *testing.T) {
	for _, orderCount := range []int{1, 400} {
		t.Run(fmt.Sprint(orderCount, " orders"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, b := memory.New(), &broker{}
				const total = 20_000
				orders(t, store, orderCount, total/orderCount)
				r := start(store, b, relay.Config{})
				until(t, time.Minute, "the backlog", b.has(total))
				r.stop(t)
				wantOnce(t, b, total)
				if n := len(b.callSizes()); n > 2*total/512+10 {
					t.Errorf("%d calls for %d events, want about %d: batches of 512", n, total, total/512)
				}
			})
		})
	}
}

func TestAHotAggregateDoesNotKeepOthersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		orders(t, store, 1, 5000)
		var others []convergo.Event
		for i := range 100 {
			others = append(others, event(fmt.Sprintf("other-%d", i), 1))
		}
		add(t, store, others...)
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(100 * time.Millisecond) }}
		r := start(store, b, relay.Config{})
		until(t, 300*time.Millisecond, "one event of each other order", func() bool {
			copies := b.copies()
			for _, e := range others {
				if copies[convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)] == 0 && e.Aggregate.Lane() != event("O-0", 1).Aggregate.Lane() {
					return false
				}
			}
			return true
		})
		if b.has(5000)() {
			t.Error("the hot order was through before: this test shows nothing")
		}
		r.stop(t)
	})
}

func TestAKilledRelayIsReplacedWithinOneAndAHalfTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 15 * time.Second
		for range 5 { // relative to the survivor's renewals the death comes at another moment each time
			store := memory.New()
			survivor := start(store, &broker{}, relay.Config{Lease: lease})
			pass(2 * time.Second)
			orders(t, store, 200, 1)
			b := &broker{}
			survivor.stop(t)
			bury := kill(t, store, lease)
			second := start(store, b, relay.Config{Lease: lease})
			took := until(t, lease*3/2, "all events", b.has(200))
			t.Logf("taken over after %v", took)
			wantOnce(t, b, 200)
			second.stop(t)
			bury()
		}
	})
}

func TestAGracefulStopTakesASecondAtMostAndHandsTheLanesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(200 * time.Millisecond) }}
		first := start(store, b, relay.Config{})
		second := start(store, b, relay.Config{})
		pass(20 * time.Second)
		if a, z := first.Stats().Lanes, second.Stats().Lanes; a != 32 || z != 32 {
			t.Fatalf("the relays hold %d and %d lanes, want 32 each", a, z)
		}
		orders(t, store, 500, 2)
		pass(1100 * time.Millisecond)
		if took := first.stop(t); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		until(t, time.Second, "all lanes at the other relay", func() bool { return second.Stats().Lanes == convergo.Lanes })
		until(t, 5*time.Second, "all events by the other relay", b.has(1000))
		second.stop(t)
		wantOnce(t, b, 1000)
		if s := second.Stats(); s.LeaseLosses != 0 {
			t.Errorf("%+v, want no lease losses", s)
		}
	})
}

func TestARelayThatJoinsUnderLoadTakesLanesWithoutDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(700 * time.Millisecond) }}
		orders(t, store, 1000, 30)
		relays := []*running{start(store, b, relay.Config{})}
		for range 3 {
			pass(3 * time.Second)
			relays = append(relays, start(store, b, relay.Config{}))
		}
		until(t, 5*time.Minute, "all events", b.has(30_000))
		for i, r := range relays {
			if s := r.Stats(); s.Sent == 0 || s.LeaseLosses != 0 {
				t.Errorf("relay %d: %+v, want its share and no lease losses", i, s)
			}
			r.stop(t)
		}
		wantOnce(t, b, 30_000)
	})
}

func TestADeadEventIsLoggedLoudlyAndWithoutItsPayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		store := memory.New()
		add(t, store, event("O-1", 1))
		b := &broker{answer: func(context.Context, convergo.Event) error { return convergo.Permanent(errors.New("no such topic")) }}
		r := start(store, b, relay.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		pass(time.Second)
		r.stop(t)
		for _, want := range []string{"level=ERROR", string(key("O-1", 1)), "OrderChanged", "no such topic"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, log.String())
			}
		}
		if strings.Contains(log.String(), "secret payload") {
			t.Errorf("the log has the payload:\n%s", log.String())
		}
		if s := r.Stats(); !strings.Contains(s.LastError, "no such topic") || s.LastErrorAt.IsZero() {
			t.Errorf("%+v, want the last error", s)
		}
	})
}

func TestAnEventsOwnMaximumOfAttemptsComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		own, topics := event("O-own", 1), event("O-topic", 1)
		own.MaxAttempts = 2
		add(t, store, own, topics)
		var mu sync.Mutex
		attempts := map[convergo.Key]int{}
		count := func(k convergo.Key, n int) int { mu.Lock(); defer mu.Unlock(); attempts[k] += n; return attempts[k] }
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			count(e.Key, 1)
			return errors.New("no")
		}}
		r := start(store, b, relay.Config{Workers: 1, Topics: map[string]relay.TopicPolicy{"order": {
			MaxAttempts: 4, Backoff: convergo.Backoff{Schedule: []time.Duration{10 * time.Second, time.Minute}, Jitter: convergo.NoJitter},
		}}})
		pass(9 * time.Second)
		if n := count(key("O-own", 1), 0); n != 1 {
			t.Errorf("%d attempts after 9 s, want 1: the topic's schedule says 10 s", n)
		}
		pass(time.Hour)
		r.stop(t)
		if count(key("O-own", 1), 0) != 2 || count(key("O-topic", 1), 0) != 4 {
			t.Errorf("attempts %v, want 2 by the event and 4 by its topic", attempts)
		}
	})
}

// later is a refusal that says when to come again.
type later struct{ at time.Time }

func (l later) Error() string { return "too many requests" }

func (l later) RetryAt() time.Time { return l.at }

func TestAReceiverThatSaysWhenIsNotAskedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, at := memory.New(), time.Now().Add(10*time.Minute)
		add(t, store, event("O-1", 1))
		b := &broker{}
		b.answer = func(context.Context, convergo.Event) error {
			if time.Now().Before(at) {
				return fmt.Errorf("endpoint shop: %w", later{at})
			}
			return nil
		}
		r := start(store, b, relay.Config{MaxAttempts: 2})
		pass(9 * time.Minute)
		if n := len(b.copies()); n != 0 {
			t.Errorf("%d events were sent before the time", n)
		}
		until(t, 2*time.Minute, "the event", func() bool { return len(b.copies()) == 1 })
		r.stop(t)
		if s := r.Stats(); s.Failed != 1 || s.Dead != 0 {
			t.Errorf("%+v, want one failed attempt in ten minutes", s)
		}
	})
}

func TestTheProbePointsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var points []string
		store := memory.New()
		add(t, store, event("O-1", 1))
		r := start(store, &broker{}, relay.Config{Probe: func(p string) { points = append(points, p) }})
		pass(10 * time.Second)
		r.stop(t)
		if got := strings.Join(points, " "); got != "relay.claimed relay.published relay.settled" {
			t.Errorf("points: %s", got)
		}
	})
}

func TestASecondRunOfARunningRelayIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(memory.New(), &broker{}, relay.Config{})
		pass(time.Second)
		if err := r.Run(t.Context()); err == nil {
			t.Error("a second Run did not fail")
		}
		r.stop(t)
	})
}
