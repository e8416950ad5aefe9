package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

func TestAHungBatchNeverBlocksTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		orders(t, store, 10, 1)
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(time.Hour) }}
		r := start(store, b, relay.Config{PublishTimeout: 10 * time.Minute})
		pass(time.Second)
		if took := r.stop(t); took > 7*time.Second {
			t.Errorf("stopping took %v, want the 5 s of ShutdownTimeout and little more", took)
		}
		if s := r.Stats(); s.Failed != 0 {
			t.Errorf("%+v: a shutdown spends no attempts", s)
		}
		second := start(store, &broker{}, relay.Config{})
		until(t, time.Second, "leases given back", func() bool { return second.Stats().Sent == 10 })
		second.stop(t)
		pass(2 * time.Hour)
	})
}

func TestAPublisherThatPanicsOrAnswersWronglyCostsAttemptsAndOnlyThePoisonDies(t *testing.T) {
	poison := key("O-3", 1)
	has := func(events []convergo.Event) bool {
		for _, e := range events {
			if e.Key == poison {
				return true
			}
		}
		return false
	}
	for name, publish := range map[string]func(*broker, context.Context, []convergo.Event) []error{
		"panic": func(b *broker, ctx context.Context, events []convergo.Event) []error {
			if has(events) {
				panic("index out of range")
			}
			return b.Publish(ctx, events)
		},
		"wrong length": func(b *broker, ctx context.Context, events []convergo.Event) []error {
			if has(events) {
				return nil
			}
			return b.Publish(ctx, events)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, b := memory.New(), &broker{}
				orders(t, store, 60, 1)
				r := start(store, publisherFunc(func(ctx context.Context, e []convergo.Event) []error { return publish(b, ctx, e) }),
					relay.Config{MaxAttempts: 8})
				pass(time.Hour)
				r.stop(t)
				wantOnce(t, b, 59)
				if s := r.Stats(); s.Dead != 1 || s.Outages != 0 {
					t.Errorf("%+v, want one dead event and no outage", s)
				}
			})
		})
	}
}

func TestACallThatNeverReturnsIsGivenUpAndTheNumberOfThemIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var calls atomic.Int64
		end := make(chan struct{})
		r := start(store, publisherFunc(func(context.Context, []convergo.Event) []error {
			calls.Add(1)
			<-end
			return nil
		}), relay.Config{PublishTimeout: 100 * time.Millisecond, MaxAttempts: 1_000_000, Backoff: convergo.Backoff{Cap: time.Second}})
		orders(t, store, 64, 1)
		pass(10 * time.Minute)
		if n := calls.Load(); n > 70 {
			t.Errorf("%d calls hang at the same time, want 64 and little more", n)
		}
		if s := r.Stats(); !s.InOutage {
			t.Errorf("%+v, want an outage", s)
		}
		r.stop(t)
		close(end)
	})
}

func TestAStoreThatFailsIsAskedAgainAndNothingIsLostOrDoubled(t *testing.T) {
	for _, method := range []string{"Lease", "Claim", "Settle"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New()
				store, b := &faulty{Store: inner}, &broker{}
				orders(t, inner, 100, 2)
				store.failWith(func(m string) error {
					if m == method {
						return errDown
					}
					return nil
				})
				r := start(store, b, relay.Config{})
				pass(8 * time.Second)
				if s := r.Stats(); s.Sent != 0 || !strings.Contains(s.LastError, errDown.Error()) {
					t.Errorf("while the store fails: %+v", s)
				}
				n, by := store.calls()
				if n > 150 {
					t.Errorf("%d calls of a failing store in 8 s: %v", n, by)
				}
				store.failWith(nil)
				until(t, 6*time.Second, "everything settled", func() bool { return r.Stats().Sent == 200 })
				r.stop(t)
				wantOnce(t, b, 200)
			})
		})
	}
}

func TestARelayThatCannotRenewStopsPublishingBeforeOthersTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 15 * time.Second
		inner := memory.New()
		cutOff := &faulty{Store: inner}
		b, lateTo := &broker{}, atomic.Int64{}
		first := start(cutOff, publisherFunc(func(ctx context.Context, events []convergo.Event) []error {
			if lateTo.Load() > 0 {
				lateTo.Add(int64(len(events)))
			}
			return b.Publish(ctx, events)
		}), relay.Config{Lease: lease})
		pass(time.Second)
		cutOff.failWith(func(m string) error {
			if m == "Lease" {
				return errDown
			}
			return nil
		})
		pass(lease)
		lateTo.Store(1)
		if s := first.Stats(); s.LeaseLosses != convergo.Lanes {
			t.Errorf("%+v, want all lanes lost", s)
		}
		orders(t, inner, 10, 1) // reading and settling would work
		first.Wake()
		second := start(inner, b, relay.Config{Lease: lease})
		until(t, lease, "the events by the second relay", b.has(10))
		pass(time.Minute)
		if n := lateTo.Load(); n != 1 {
			t.Errorf("a relay without leases published %d events", n-1)
		}
		wantOnce(t, b, 10)
		cutOff.failWith(nil)
		until(t, lease*2, "its share again", func() bool { return first.Stats().Lanes == 32 })
		first.stop(t)
		second.stop(t)
	})
}

func TestARelayThatWasPausedNoticesBeforeItPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 15 * time.Second
		inner := memory.New()
		store, b := &faulty{Store: inner}, &broker{}
		var paused atomic.Bool
		r := start(store, b, relay.Config{Lease: lease, Probe: func(point string) {
			if point == "relay.claimed" && paused.CompareAndSwap(false, true) {
				store.failWith(func(string) error { return errDown })
				<-time.After(2 * lease) // as if the machine had stopped between reading and publishing
			}
		}})
		pass(time.Second)
		orders(t, inner, 10, 1)
		r.Wake()
		pass(2 * lease)
		if b.has(1)() {
			t.Error("it published with leases that had ended")
		}
		store.failWith(nil)
		until(t, lease, "the events, with new leases", b.has(10))
		r.stop(t)
		wantOnce(t, b, 10)
	})
}

func TestARefusedSettlementIsDroppedAndTheEventsComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		store, b := &faulty{Store: inner}, &broker{}
		var refused atomic.Bool
		store.failWith(func(m string) error {
			if m == "Settle" && refused.CompareAndSwap(false, true) {
				return fmt.Errorf("lane 7: %w", relay.ErrLeaseLost)
			}
			return nil
		})
		orders(t, inner, 10, 1)
		r := start(store, b, relay.Config{Workers: 1})
		until(t, 10*time.Second, "everything settled", func() bool { return r.Stats().Sent == 10 })
		pass(time.Minute)
		r.stop(t)
		if n := len(b.keys()); n != 20 {
			t.Errorf("%d deliveries, want each event twice", n)
		}
		if s := r.Stats(); s.LeaseLosses != 1 {
			t.Errorf("%+v, want one lease loss", s)
		}
	})
}

func TestDuplicatesAreAtMostCrashesTimesBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crashes, batch, lease = 5, 32, 15 * time.Second
		inner, b := memory.New(), &broker{}
		orders(t, inner, 100, 20)
		for range crashes {
			store := &faulty{Store: inner}
			var dead atomic.Bool
			corpse := start(store, b, relay.Config{Batch: batch, Workers: 1, Lease: lease, Probe: func(point string) {
				if point == "relay.published" && len(b.keys()) > 64 && dead.CompareAndSwap(false, true) {
					store.failWith(func(string) error { return errDown }) // killed between the confirmation and the settlement
				}
			}})
			until(t, lease*2, "the crash", dead.Load)
			corpse.cancel()
			<-corpse.done
			pass(2 * lease)
		}
		r := start(inner, b, relay.Config{})
		until(t, lease*2, "all events", func() bool { return len(b.copies()) == 2000 })
		r.stop(t)
		if n := len(b.keys()) - 2000; n > crashes*batch || n == 0 {
			t.Errorf("%d duplicates after %d crashes, want 1 to %d", n, crashes, crashes*batch)
		}
		if where := b.inversion(); where != "" {
			t.Error(where)
		}
	})
}

type publisherFunc func(ctx context.Context, events []convergo.Event) []error

func (f publisherFunc) Publish(ctx context.Context, events []convergo.Event) []error {
	return f(ctx, events)
}

func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
