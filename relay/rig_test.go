package relay_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// broker is a publisher that confirms what answer lets through and keeps a record. It obeys the publisher's contract:
// of an aggregate nothing is sent behind a failure.
type broker struct {
	mu     sync.Mutex
	sent   []convergo.Event
	calls  []int // events of each call
	answer func(ctx context.Context, e convergo.Event) error
	before func(ctx context.Context, events []convergo.Event)
}

func (b *broker) Publish(ctx context.Context, events []convergo.Event) []error {
	b.mu.Lock()
	b.calls = append(b.calls, len(events))
	b.mu.Unlock()
	if b.before != nil {
		b.before(ctx, events)
	}
	errs := make([]error, len(events))
	failed := map[convergo.Aggregate]error{}
	for i, e := range events {
		if failed[e.Aggregate] != nil {
			errs[i] = fmt.Errorf("not sent: an earlier event failed: %w", failed[e.Aggregate])
			continue
		}
		if b.answer != nil {
			errs[i] = b.answer(ctx, e)
		}
		if errs[i] != nil {
			failed[e.Aggregate] = errs[i]
			continue
		}
		b.mu.Lock()
		b.sent = append(b.sent, e)
		b.mu.Unlock()
	}
	return errs
}

func (b *broker) keys() []convergo.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := make([]convergo.Key, len(b.sent))
	for i, e := range b.sent {
		keys[i] = e.Key
	}
	return keys
}

func (b *broker) callSizes() []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// copies is how often each event arrived.
func (b *broker) copies() map[convergo.Key]int {
	copies := map[convergo.Key]int{}
	for _, k := range b.keys() {
		copies[k]++
	}
	return copies
}

// inversion describes the first place where an aggregate's event came for the first time after a newer one; "" for none.
func (b *broker) inversion() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := map[convergo.Aggregate]int64{}
	seen := map[convergo.Key]bool{}
	for i, e := range b.sent {
		if !seen[e.Key] && e.Version <= last[e.Aggregate] {
			return fmt.Sprintf("delivery %d: %s came after version %d", i, e.Key, last[e.Aggregate])
		}
		seen[e.Key] = true
		last[e.Aggregate] = max(last[e.Aggregate], e.Version)
	}
	return ""
}

// faulty is a store with a door: fail may refuse a call, and all calls are counted.
type faulty struct {
	relay.Store
	mu    sync.Mutex
	count map[string]int
	fail  func(method string) error
	on    func(relay.Settlement)
	lose  func(relay.LeaseRequest) bool // the call is done, its answer is lost
}

func (f *faulty) call(method string) error {
	f.mu.Lock()
	if f.count == nil {
		f.count = map[string]int{}
	}
	f.count[method]++
	fail := f.fail
	f.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(method)
}

func (f *faulty) calls() (n int, by map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.count {
		n += c
	}
	return n, maps.Clone(f.count)
}

func (f *faulty) failWith(fail func(method string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *faulty) Lease(ctx context.Context, req relay.LeaseRequest) ([]relay.Lease, error) {
	if err := f.call("Lease"); err != nil {
		return nil, err
	}
	leases, err := f.Store.Lease(ctx, req)
	if f.lose != nil && f.lose(req) {
		return nil, errDown
	}
	return leases, err
}

func (f *faulty) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	if err := f.call("Release"); err != nil {
		return err
	}
	return f.Store.Release(ctx, owner, leases)
}

func (f *faulty) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	if err := f.call("Claim"); err != nil {
		return relay.Claim{}, err
	}
	return f.Store.Claim(ctx, leases, perLane, now)
}

func (f *faulty) Settle(ctx context.Context, s relay.Settlement) error {
	if err := f.call("Settle"); err != nil {
		return err
	}
	if f.on != nil {
		f.on(s)
	}
	return f.Store.Settle(ctx, s)
}

func (f *faulty) Hasten(ctx context.Context, leases []relay.Lease, mark string, most int, now time.Time) (int, error) {
	if err := f.call("Hasten"); err != nil {
		return 0, err
	}
	return f.Store.Hasten(ctx, leases, mark, most, now)
}

var errDown = errors.New("the store is down")

// event is the n-th of an order; n is also its version.
func event(order string, n int) convergo.Event {
	return convergo.Event{
		Type: "OrderChanged", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: order}, Version: int64(n),
		Payload: []byte("secret payload"),
	}
}

func key(order string, n int) convergo.Key { return convergo.KeyFor("OrderChanged", order, int64(n)) }

func add(t testing.TB, store *memory.Store, events ...convergo.Event) {
	t.Helper()
	box := outbox.New(store, outbox.Config{})
	err := store.Update(context.Background(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) })
	if err != nil {
		t.Fatal(err)
	}
}

// orders adds n events of each of the orders O-0 … O-(count-1), in turns.
func orders(t testing.TB, store *memory.Store, count, n int) {
	t.Helper()
	var events []convergo.Event
	for v := 1; v <= n; v++ {
		for o := range count {
			events = append(events, event(fmt.Sprintf("O-%d", o), v))
		}
	}
	add(t, store, events...)
}

// running is a relay that runs in the bubble of a test.
type running struct {
	*relay.Relay
	cancel context.CancelFunc
	done   chan error
}

func start(store relay.Store, publisher relay.Publisher, cfg relay.Config) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{relay.New(store, publisher, cfg), cancel, make(chan error, 1)}
	go func() { r.done <- r.Run(ctx) }()
	return r
}

// stop ends the relay and returns how long that took.
func (r *running) stop(t testing.TB) time.Duration {
	t.Helper()
	began := time.Now()
	r.cancel()
	if err := <-r.done; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	return time.Since(began)
}

// pass lets the bubble's time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// until lets time go by until the condition holds, for at most limit, and returns how long it took.
func until(t testing.TB, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for synctest.Wait(); !condition(); pass(10 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Errorf("after %v still not: %s", limit, what)
			break
		}
	}
	return time.Since(began)
}

func (b *broker) has(n int) func() bool {
	return func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.sent) >= n
	}
}

func wantOnce(t testing.TB, b *broker, n int) {
	t.Helper()
	copies := b.copies()
	if len(copies) != n {
		t.Errorf("%d different events arrived, want %d", len(copies), n)
	}
	for k, c := range copies {
		if c != 1 {
			t.Errorf("%s arrived %d times, want once", k, c)
		}
	}
	if where := b.inversion(); where != "" {
		t.Error(where)
	}
}
