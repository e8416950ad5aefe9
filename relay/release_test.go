package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// hastener asks before each release of events whose receiver is back, and may refuse it.
type hastener struct {
	relay.Store
	mu    sync.Mutex
	asked []int // how many each was of
	ask   func(most int) error
}

func (h *hastener) Hasten(ctx context.Context, leases []relay.Lease, mark string, most int, now time.Time) (int, error) {
	h.mu.Lock()
	h.asked = append(h.asked, most)
	h.mu.Unlock()
	if err := h.ask(most); err != nil {
		return 0, err
	}
	return h.Store.Hasten(ctx, leases, mark, most, now)
}

func (h *hastener) sizes() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// What those that came through have earned is not lost with a call of the store: the next release is of as many, and of those that came since.
func TestAReleaseThatTheStoreRefusesIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		store, d, b := waiting(t, n)
		failed := false
		h := &hastener{Store: store, ask: func(int) error {
			if !failed {
				failed = true
				return errDown
			}
			return nil
		}}
		r := start(h, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		d.away.Store(false) // places are a quarter of a second apart: others come through before the release is tried again
		until(t, time.Minute, "two releases", func() bool { return len(h.sizes()) >= 2 })
		if sizes := h.sizes(); len(sizes) < 2 || sizes[1] < sizes[0]+2 {
			t.Errorf("releases of %d", sizes)
		}
		until(t, time.Minute, "all events", b.has(2*n))
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// The store refuses a large release, and meanwhile the receiver is away again: who comes next is one.
func TestAReleaseThatTheStoreRefusesIsForgottenWhenTheReceiverIsAwayAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store, d, b := waiting(t, n)
		refused := make(chan int64, 1)
		var done atomic.Bool
		h := &hastener{Store: store, ask: func(most int) error {
			if most < 256 || done.Swap(true) {
				return nil
			}
			d.away.Store(true)
			<-time.After(3 * time.Second) // those that were released find out
			refused <- d.again.Load()
			return errDown
		}}
		r := start(h, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		d.away.Store(false)
		until(t, time.Minute, "a large release is refused", func() bool { return len(refused) > 0 })
		before := <-refused
		pass(5 * time.Second)
		if vain := d.again.Load() - before; vain > 60 { // the places of a line are a quarter of a second apart, and those of the old one are left
			t.Errorf("%d were tried in the five seconds after, releases of %d", vain, h.sizes())
		}
		d.away.Store(false)
		until(t, time.Minute, "all events", b.has(2*n))
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// Who was sent its event and has not answered yet is asked soon anyway. A release goes to those who wait for their turn; else the few that a
// slow receiver has would take up the few that each of its answers earns, and it would get no more at a time for ever.
func TestWhoseAnswerIsAwaitedIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, turned = 60, 4
		var all []convergo.Event
		for o := range slow + turned {
			all = append(all, event(fmt.Sprint("O-", o), 1))
		}
		store := memory.New()
		add(t, store, all...)
		var away atomic.Bool
		away.Store(true)
		rest := map[string]bool{}
		for o := range turned {
			rest[fmt.Sprint("O-", slow+o)] = true
		}
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			switch {
			case rest[e.Aggregate.ID] && away.Load():
				return errAway
			case !rest[e.Aggregate.ID] && e.Aggregate.ID != "new":
				return convergo.Unavailable(sent{errors.New("not answered yet")})
			}
			return nil
		}}
		r := start(store, b, relay.Config{})
		pass(10 * time.Minute)
		away.Store(false)
		add(t, store, event("new", 1))
		until(t, 4*time.Second, "all that were turned away follow the one that came through", b.has(1+turned))
		r.stop(t)
	})
}

// A receiver that is back and refuses most of what waited for it, for good, has answered: those behind are not held up by the refused ones.
func TestEventsThatDieWhenTheirReceiverIsBackHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store, d, b := waiting(t, n)
		b.answer = func(ctx context.Context, e convergo.Event) error {
			if err := d.answer(ctx, e); err != nil {
				return err
			}
			if e.Version == 1 && e.Aggregate.Lane()%4 != 0 {
				return convergo.Permanent(errors.New("no such order"))
			}
			return nil
		}
		r := start(store, b, relay.Config{OnDead: relay.SkipEvent})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		d.away.Store(false)
		took := until(t, 10*time.Minute, "all events", func() bool { return r.Stats().Sent+r.Stats().Dead >= 2*n })
		if took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		r.stop(t)
	})
}

// A receiver that is back and refuses most of what waited for it, each for something about itself, holds up nobody that it would take.
func TestEventsThatAReceiverRefusesWhenItIsBackHoldUpNoOther(t *testing.T) {
	for name, of := range map[string]int{"seven of ten": 7, "nearly all": 9} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 3000
				store, d, b := waiting(t, n)
				var taken atomic.Int64
				b.answer = func(ctx context.Context, e convergo.Event) error {
					if err := d.answer(ctx, e); err != nil {
						return err
					}
					if order(e)%10 < of {
						return errors.New("404: no such order")
					}
					taken.Add(1)
					return nil
				}
				r := start(store, b, relay.Config{})
				until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
				pass(time.Hour)
				d.away.Store(false)
				took := until(t, 20*time.Minute, "all that it takes", func() bool { return taken.Load() >= int64(2*n*(10-of)/10) })
				if took > 150*time.Second { // those that are refused come again, and one more is tried with them until one comes through
					t.Errorf("it took %v", took)
				}
				r.stop(t)
			})
		})
	}
}

// order is the number of the event's order.
func order(e convergo.Event) (n int) {
	_, _ = fmt.Sscanf(e.Aggregate.ID, "O-%d", &n)
	return n
}
