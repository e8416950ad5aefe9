package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// TakeOver is the law that what a relay had is taken over, with two whole relays on a real server: after a stop as soon as the other one's
// next claim has told of it, after a death within one and a half leases. number runs a query for one number; clock is the query for
// the server's time in microseconds.
func TakeOver(t *testing.T, store relay.Store, number func(query string) int64, clock string) {
	t.Helper()
	o := overtaking{t, store, number}
	// By its renewals alone the other one would have made a dozen claims first, or two dozen.
	if claims, _ := o.after(false, clock); claims > 3 {
		t.Errorf("after a stop the other relay made %d claims before it had the lanes, want 3 at most", claims)
	}
	if _, took := o.after(true, clock); took > overtakenLease*3/2 {
		t.Errorf("after a death it took %v, want one and a half leases at most", took)
	}
}

const overtakenLease = 4 * time.Second

type overtaking struct {
	*testing.T
	store  relay.Store
	number func(query string) int64
}

// after has one of two relays stop, or die, and tells how many claims the other one made, and how long it took, until it had all lanes.
func (o overtaking) after(killed bool, clock string) (claims int, took time.Duration) {
	o.Helper()
	first, second := &witnessed{Store: o.store}, &witnessed{Store: o.store}
	stop, rest := o.run("first", first), o.run("second", second)
	defer rest()
	o.until("the lanes are divided", func() bool { return o.lanes("first") == convergo.Lanes/2 && o.lanes("second") == convergo.Lanes/2 })
	// A young relay asks for lanes at each poll; one that renews only has settled down.
	o.until("the relays are no longer young", func() bool { return second.gap() > overtakenLease/4 })
	if killed {
		first.die()
	}
	stop()
	before, began := second.seen(), o.number(clock)
	o.until("the other relay has all lanes", func() bool { return o.lanes("second") == convergo.Lanes })
	return second.atLast() - before, time.Duration(o.number(clock)-began) * time.Microsecond
}

func (o overtaking) lanes(name string) int64 {
	return o.number("SELECT COUNT(*) FROM outbox_lane WHERE owner LIKE '" + name + "-%'")
}

func (o overtaking) until(what string, is func() bool) {
	o.Helper()
	limit, tick := time.NewTimer(time.Minute), time.NewTicker(5*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit.C:
			o.Fatalf("not within a minute: %s", what)
		}
	}
}

func (o overtaking) run(name string, store relay.Store) (stop func()) {
	ctx, cancel := context.WithCancel(o.Context())
	done := make(chan error, 1)
	r := relay.New(store, &publisher{}, relay.Config{Name: name, Lease: overtakenLease, Poll: 50 * time.Millisecond})
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			o.Error(err)
		}
	}
}

// witnessed is the store of one relay, which counts what it is asked for. When it is dead nothing comes through, so that nothing is
// given back.
type witnessed struct {
	relay.Store
	mu     sync.Mutex
	dead   bool
	claims int
	leased [2]time.Time // when the last calls for leases began
	all    int          // how many claims there were when it got the last lane
}

func (w *witnessed) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

func (w *witnessed) gap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leased[1].Sub(w.leased[0])
}

func (w *witnessed) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claims
}

func (w *witnessed) atLast() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// asked notes a call and tells whether it must fail.
func (w *witnessed) asked(note func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errors.New("killed")
	}
	note()
	return nil
}

func (w *witnessed) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	if err := w.asked(func() { w.claims++ }); err != nil {
		return relay.Claim{}, err
	}
	return w.Store.Claim(ctx, leases, perLane, now)
}

func (w *witnessed) Lease(ctx context.Context, request relay.LeaseRequest) ([]relay.Lease, error) {
	if err := w.asked(func() { w.leased = [2]time.Time{w.leased[1], time.Now()} }); err != nil {
		return nil, err
	}
	leases, err := w.Store.Lease(ctx, request)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(leases) == convergo.Lanes {
		w.all = w.claims
	}
	return leases, err
}

func (w *witnessed) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	if err := w.asked(func() {}); err != nil {
		return err
	}
	return w.Store.Release(ctx, owner, leases)
}
