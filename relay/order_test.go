package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// TestOrderPerAggregateHoldsWhateverFails runs whole systems from a seed: several relays that come, go and die, a broker
// and a store that fail at random, events that arrive meanwhile. A failure names the seed.
func TestOrderPerAggregateHoldsWhateverFails(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		w := world{
			Relays: rapid.IntRange(1, 4).Draw(rt, "relays"), Orders: rapid.IntRange(1, 40).Draw(rt, "orders"),
			Failing: rapid.Float64Range(0, 0.3).Draw(rt, "failing"), Deaths: rapid.IntRange(0, 3).Draw(rt, "deaths"),
		}
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = w.run(t, seed) })
		if problem != "" {
			rt.Fatalf("seed %d, %+v: %s", seed, w, problem)
		}
	})
}

type world struct {
	Relays, Orders int
	Failing        float64
	Deaths         int
}

const perOrder = 8

// run plays the world and describes what is wrong with it; "" when nothing is.
func (w world) run(t *testing.T, seed uint64) string {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	chance := func(p float64) bool { mu.Lock(); defer mu.Unlock(); return random.Float64() < p }
	pick := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }

	inner := memory.New()
	b := &broker{
		before: func(context.Context, []convergo.Event) { <-time.After(time.Duration(pick(300)) * time.Millisecond) },
		answer: func(context.Context, convergo.Event) error {
			switch {
			case !chance(w.Failing):
				return nil
			case chance(0.1):
				return convergo.Unreachable(errors.New("outage"))
			default:
				return errors.New("again")
			}
		},
	}
	crashed, crashes := map[*running]*faulty{}, 0
	launch := func() *running {
		store := &faulty{Store: inner}
		store.failWith(func(string) error {
			if chance(w.Failing / 4) {
				return errDown
			}
			return nil
		})
		r := start(store, b, relay.Config{Batch: 16, MaxAttempts: 1000, Backoff: convergo.Backoff{Cap: 10 * time.Second}})
		inner.OnEvents(r.Wake)
		crashed[r] = store
		return r
	}
	var relays []*running
	for range w.Relays {
		relays = append(relays, launch())
	}
	for v := 1; v <= perOrder; v++ {
		for o := range w.Orders {
			add(t, inner, event(fmt.Sprintf("O-%d", o), v))
		}
		pass(time.Duration(pick(4000)) * time.Millisecond)
		if crashes < w.Deaths && chance(0.5) { // one dies, or one leaves; another comes
			i := pick(len(relays))
			if chance(0.7) {
				crashed[relays[i]].failWith(func(string) error { return errDown })
			}
			crashes++
			relays[i].cancel()
			relays[i] = launch()
		}
	}
	deadline := time.Now().Add(4 * time.Hour)
	for len(b.copies()) < w.Orders*perOrder && time.Now().Before(deadline) {
		pass(time.Second)
	}
	for r := range crashed {
		r.cancel()
		if err := <-r.done; err != nil {
			return "Run returned " + err.Error()
		}
	}
	if n := len(b.copies()); n != w.Orders*perOrder {
		return fmt.Sprintf("%d of %d events arrived", n, w.Orders*perOrder)
	}
	return b.inversion()
}
