package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// The first relay's renewal gives half of its lanes to the second one, and the answer that says so is lost. Its old leases
// look good to it for many seconds more.
func TestARelayThatDoesNotKnowWhichLanesItGaveAwayWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		var losing atomic.Bool
		store := &faulty{Store: inner, lose: func(relay.LeaseRequest) bool { return losing.Load() }}
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(50 * time.Millisecond) }}
		first := start(store, b, relay.Config{Poll: 50 * time.Millisecond})
		pass(time.Second)
		second := start(inner, b, relay.Config{Poll: 50 * time.Millisecond})
		losing.Store(true)
		for v := 1; v <= 60; v++ {
			add(t, inner, events200(v)...)
			pass(200 * time.Millisecond)
		}
		losing.Store(false)
		until(t, time.Minute, "all events", b.has(60*200))
		pass(time.Minute)
		wantOnce(t, b, 60*200)
		if a, z := first.Stats().Lanes, second.Stats().Lanes; a != 32 || z != 32 {
			t.Errorf("the relays hold %d and %d lanes, want 32 each", a, z)
		}
		first.stop(t)
		second.stop(t)
	})
}

func events200(version int) (events []convergo.Event) {
	for o := range 200 {
		events = append(events, event(fmt.Sprintf("O-%d", o), version))
	}
	return events
}

// Under a slow broker something is in flight all the time: no renewal finds the relay idle, and what is in flight cannot be
// given away.
func TestARelayThatJoinsGetsItsShareWithinATermHoweverSlowTheBrokerIs(t *testing.T) {
	for _, slow := range []time.Duration{3 * time.Second, 8 * time.Second} {
		t.Run(slow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const lease = 15 * time.Second
				store := memory.New()
				var fast atomic.Bool
				b := &broker{before: func(context.Context, []convergo.Event) {
					if !fast.Load() {
						<-time.After(slow)
					}
				}}
				orders(t, store, 400, 40)
				first := start(store, b, relay.Config{Lease: lease, Batch: 64})
				pass(20 * time.Second)
				second := start(store, b, relay.Config{Lease: lease, Batch: 64})
				took := until(t, lease, "its share", func() bool { return second.Stats().Lanes == convergo.Lanes/2 })
				t.Logf("half of the lanes after %v", took)
				third := start(store, b, relay.Config{Lease: lease, Batch: 64})
				took = until(t, 2*lease, "the third's share", func() bool { return third.Stats().Lanes >= 20 })
				t.Logf("a third of the lanes after %v", took)
				pass(time.Minute)
				for i, r := range []*running{first, second, third} {
					if s := r.Stats(); s.Sent == 0 || s.LeaseLosses != 0 || s.Lanes < 20 || s.Lanes > 22 {
						t.Errorf("relay %d: %+v, want its share and no lease losses", i, s)
					}
				}
				fast.Store(true)
				until(t, time.Minute, "everything", b.has(16_000))
				for _, r := range []*running{first, second, third} {
					r.stop(t)
				}
				wantOnce(t, b, 16_000)
			})
		})
	}
}

// It stood still between two windows of one batch, for longer than its leases: what it had claimed belongs to somebody else.
func TestARelayThatStoodStillBetweenTwoWindowsOfABatchPublishesNoMoreOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 15 * time.Second
		inner := memory.New()
		store, b := &faulty{Store: inner}, &broker{}
		orders(t, inner, 200, 2)
		var stood atomic.Bool
		first := start(store, b, relay.Config{Lease: lease, Batch: 4, Workers: 1, Probe: func(point string) {
			if point == "relay.settled" && stood.CompareAndSwap(false, true) {
				store.failWith(func(string) error { return errDown }) // as if the machine had stopped
				<-time.After(2 * lease)
			}
		}})
		pass(time.Second)
		sent := len(b.keys())
		if sent == 0 || sent > 4 {
			t.Fatalf("%d events were sent before it stood still, want one window of four", sent)
		}
		second := start(inner, b, relay.Config{Lease: lease})
		until(t, 2*lease, "the others, by another relay", b.has(400))
		pass(2 * lease)
		wantOnce(t, b, 400)
		store.failWith(nil)
		first.stop(t)
		second.stop(t)
		wantOnce(t, b, 400)
	})
}
