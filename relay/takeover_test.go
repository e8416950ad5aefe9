package relay_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// settled starts n relays, and lets time go by until they know each other and renew their leases at a third of their term only.
func settled(t *testing.T, store relay.Store, b *broker, n int, cfg relay.Config) (relays []*running) {
	t.Helper()
	for range n {
		relays = append(relays, start(store, b, cfg))
	}
	pass(50 * time.Second)
	lanes := 0
	for i, r := range relays {
		held := r.Stats().Lanes
		if share := (convergo.Lanes + n - 1) / n; held < convergo.Lanes-(n-1)*share || held > share {
			t.Fatalf("relay %d of %d holds %d lanes", i, n, held)
		}
		lanes += held
	}
	if lanes != convergo.Lanes {
		t.Fatalf("%d lanes are held, want all", lanes)
	}
	return relays
}

func lanesOf(relays []*running) (lanes int) {
	for _, r := range relays {
		lanes += r.Stats().Lanes
	}
	return lanes
}

// Relative to the survivors' renewals and polls the stop comes at another moment each time.
func TestTheLanesOfARelayThatStopsAreSomebodysAgainWithinAPoll(t *testing.T) {
	for _, n := range []int{2, 3} {
		for phase := range 12 {
			synctest.Test(t, func(t *testing.T) {
				store, b := memory.New(), &broker{}
				relays := settled(t, store, b, n, relay.Config{})
				pass(time.Duration(phase) * 430 * time.Millisecond)
				relays[0].stop(t)
				rest := relays[1:]
				took := until(t, time.Second, "all lanes at the others", func() bool { return lanesOf(rest) == convergo.Lanes })
				orders(t, store, 300, 1) // also the lanes know
				until(t, time.Second, "an event of each lane", b.has(300))
				if took > time.Second {
					t.Errorf("%d relays, phase %d: %v", n, phase, took)
				}
				for _, r := range rest {
					if s := r.Stats(); s.LeaseLosses != 0 {
						t.Errorf("%+v, want no lease losses", s)
					}
					r.stop(t)
				}
				wantOnce(t, b, 300)
			})
		}
	}
}

// The survivor has something in flight all the time: of a fast broker, so that it claims often, or of one so slow that all its workers
// are busy for longer than a Poll.
func TestABusyRelayTakesOverWithinAPollToo(t *testing.T) {
	for _, slow := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(slow) }}
			relays := settled(t, store, b, 2, relay.Config{Batch: 8})
			pass(1700 * time.Millisecond)
			orders(t, store, 640, 10)
			pass(500 * time.Millisecond)
			relays[0].stop(t)
			took := until(t, time.Second, "all lanes at the other", func() bool { return relays[1].Stats().Lanes == convergo.Lanes })
			t.Logf("%v for a call: %v", slow, took)
			if b.has(6400)() {
				t.Error("all events were through: the relay was not busy")
			}
			until(t, time.Hour, "all events", b.has(6400))
			relays[1].stop(t)
			wantOnce(t, b, 6400)
			if s := relays[1].Stats(); s.LeaseLosses != 0 {
				t.Errorf("%+v, want no lease losses", s)
			}
		})
	}
}

func TestTheLanesOfAKilledRelayAreSomebodysAgainAPollAfterItsLease(t *testing.T) {
	for phase := range 6 {
		synctest.Test(t, func(t *testing.T) {
			const lease = 15 * time.Second
			inner, b := memory.New(), &broker{}
			door := &faulty{Store: inner}
			dead := start(door, &broker{}, relay.Config{Lease: lease})
			rest := []*running{start(inner, b, relay.Config{Lease: lease}), start(inner, b, relay.Config{Lease: lease})}
			pass(50*time.Second + time.Duration(phase)*900*time.Millisecond)
			if lanes := lanesOf(rest); lanes > 2*22 || lanes < 2*20 {
				t.Fatalf("the others hold %d lanes, want two thirds", lanes)
			}
			door.failWith(func(string) error { return errDown }) // it reaches nothing any more, and gives nothing back
			orders(t, inner, 300, 1)
			limit := lease + time.Second
			until(t, limit, "all lanes at the others", func() bool { return lanesOf(rest) == convergo.Lanes })
			until(t, time.Second, "an event of each lane", b.has(300))
			dead.stop(t)
			for _, r := range rest {
				r.stop(t)
			}
			wantOnce(t, b, 300)
		})
	}
}

// nothingFree answers that there are lanes without an owner, and that none of them is for this relay.
type nothingFree struct{ *faulty }

func (s nothingFree) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	c, err := s.faulty.Claim(ctx, leases, perLane, now)
	c.Unowned = true
	return c, err
}

func TestLanesThatAreAnothersShareAreAskedForOnceAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		store := nothingFree{&faulty{Store: inner}}
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(10 * time.Millisecond) }}
		r := start(store, b, relay.Config{Batch: 4})
		pass(40 * time.Second)
		for _, busy := range []bool{false, true} {
			if busy {
				orders(t, inner, 500, 100)
			}
			_, before := store.calls()
			pass(20 * time.Second)
			_, after := store.calls()
			if n := after["Lease"] - before["Lease"]; n < 15 || n > 25 {
				t.Errorf("busy: %v: %d calls of Lease in 20 s, want one a second and the renewals", busy, n)
			}
			if busy && b.has(50_000)() {
				t.Error("all events were through: the relay was not busy")
			}
		}
		r.stop(t)
		if where := b.inversion(); where != "" {
			t.Error(where)
		}
		if copies := len(b.copies()); copies != len(b.keys()) {
			t.Error(fmt.Sprint(len(b.keys()), " deliveries of ", copies, " events"))
		}
	})
}
