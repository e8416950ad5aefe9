// Package storetest is the list of laws that every store obeys: each is a sentence and runs as a subtest. A store's test
// calls Run with a function that opens an empty one. A bug found in one store becomes a law for all.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
)

// Store is what the laws about transactions need.
type Store[TX any] interface {
	Update(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	Nested(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error
}

// Backend is an empty store with all its parts, and the hooks that a law needs to look at it from outside. All are
// required but Operators and Reopen.
type Backend[TX any] struct {
	Store    Store[TX]
	Outbox   outbox.Store[TX]
	Relay    relay.Store
	Inbox    inbox.Store[TX]
	Parking  inbox.Parking[TX]
	Outside  outside.Store[TX]
	Requests idempotency.Store[TX]
	// Operators may be nil when Store is an ops.Store itself.
	Operators ops.Store

	// Add is an effect of a handler: inside tx it adds n to a number of that name, 0 at first, in a table of the test's own.
	Add func(ctx context.Context, tx TX, name string, n int) error
	// Value is the committed number.
	Value func(ctx context.Context, name string) (int, error)
	// ExpireLeases makes every lease (lanes, outgoing calls) and every relay's membership look as if its term had passed.
	ExpireLeases func(ctx context.Context) error
	// OnEvents and OnCalls register the wake-up that follows a commit that added events, or outgoing calls.
	OnEvents, OnCalls func(wake func())
	// RowLocks: writers lock rows and not the whole store, so that two transactions can be under way at once, wait for one
	// another, and deadlock. The laws about that then wait inside an Update for another one; elsewhere that would hang.
	RowLocks bool
	// Conflict makes the database ask for the transaction to be begun again, as it does to end a deadlock. Nil when it never asks.
	Conflict func(ctx context.Context, tx TX) error
	// Reopen closes the store and opens it again on the same data. Nil when nothing outlives the process.
	Reopen func(t *testing.T) Backend[TX]
}

// rig is a backend in a running law.
type rig[TX any] struct {
	*testing.T
	Backend[TX]
	ctx  context.Context
	base time.Time // "now" of the law; stores take it as an argument
}

type law[TX any] struct {
	sentence string
	check    func(r *rig[TX])
}

// Run checks every law, each on a store of its own that open returns. open registers the store's closing with t.Cleanup.
func Run[TX any](t *testing.T, open func(t *testing.T) Backend[TX]) {
	for _, chapter := range []struct {
		name string
		laws []law[TX]
	}{
		{"transactions", transactionLaws[TX]()},
		{"outbox", outboxLaws[TX]()},
		{"leases", leaseLaws[TX]()},
		{"relay", relayLaws[TX]()},
		{"budget", budgetLaws[TX]()},
		{"inbox", inboxLaws[TX]()},
		{"notes", noteLaws[TX]()},
		{"outside", outsideLaws[TX]()},
		{"requests", requestLaws[TX]()},
		{"instances", instanceLaws[TX]()},
		{"engine", engineLaws[TX]()},
		{"operators", operatorLaws[TX]()},
		{"retention", retentionLaws[TX]()},
	} {
		t.Run(chapter.name, func(t *testing.T) {
			for _, l := range chapter.laws {
				t.Run(l.sentence, func(t *testing.T) { l.check(start(t, open)) })
			}
		})
	}
	t.Run("random histories look as the model says", func(t *testing.T) { modelLaw(t, open) })
}

func start[TX any](t *testing.T, open func(t *testing.T) Backend[TX]) *rig[TX] {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a store that hangs fails its law
	t.Cleanup(cancel)
	return &rig[TX]{T: t, Backend: withOperators(t, open(t)), ctx: ctx, base: time.Now().UTC().Truncate(time.Microsecond)}
}

func withOperators[TX any](t *testing.T, b Backend[TX]) Backend[TX] {
	t.Helper()
	if b.Operators == nil {
		operators, ok := b.Store.(ops.Store)
		if !ok {
			t.Fatal("the backend has no Operators, and its Store is no ops.Store")
		}
		b.Operators = operators
	}
	return b
}

// must ends the law on an error that it does not expect.
func (r *rig[TX]) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// update runs fn in a transaction that has to commit.
func (r *rig[TX]) update(fn func(ctx context.Context, tx TX) error) {
	r.Helper()
	r.must(r.Store.Update(r.ctx, fn))
}

// event is the n-th event of an aggregate.
func event(a convergo.Aggregate, n int) convergo.Event {
	return convergo.Event{
		MessageID: fmt.Sprintf("message-%s-%d", a.ID, n), Key: convergo.KeyFor("OrderChanged", a.ID, int64(n)),
		Type: "OrderChanged", Topic: "order", Aggregate: a, Version: int64(n), Payload: []byte(fmt.Sprintf(`{"n":%d}`, n)),
	}
}

func order(id string) convergo.Aggregate { return convergo.Aggregate{Type: "order", ID: id} }

// orderIn is the n-th order whose lane is the given one.
func orderIn(lane convergo.Lane, n int) convergo.Aggregate {
	for i := 0; ; i++ {
		a := order(fmt.Sprintf("O-%d", i))
		if a.Lane() != lane {
			continue
		}
		if n == 0 {
			return a
		}
		n--
	}
}

// insert commits the events, which must all be new, in one transaction.
func (r *rig[TX]) insert(events ...convergo.Event) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outbox.Insert(ctx, tx, events)
		for i, ok := range fresh {
			if !ok {
				r.Errorf("event %s is not fresh", events[i].Key)
			}
		}
		return err
	})
}

const longTerm = time.Hour // of leases that must not expire by themselves in a law

// lease takes lanes for owner; it must get some.
func (r *rig[TX]) lease(owner string, held ...relay.Lease) []relay.Lease {
	r.Helper()
	leases, err := r.Relay.Lease(r.ctx, relay.LeaseRequest{Owner: owner, Held: held, Term: longTerm})
	r.must(err)
	return leases
}

// claim is what may be sent at base+after; the claim's times are checked to be UTC.
func (r *rig[TX]) claim(leases []relay.Lease, perLane int, after time.Duration) relay.Claim {
	r.Helper()
	c, err := r.Relay.Claim(r.ctx, leases, perLane, r.base.Add(after))
	r.must(err)
	return c
}

// settle applies s at base+after under the leases of its events.
func (r *rig[TX]) settle(leases []relay.Lease, after time.Duration, s relay.Settlement) {
	r.Helper()
	s.Leases, s.Now = leases, r.base.Add(after)
	r.must(r.Relay.Settle(r.ctx, s))
}

// fail is a failed attempt at p, to be tried again at base+next.
func (r *rig[TX]) fail(p relay.Pending, next time.Duration) relay.Failure {
	return relay.Failure{Pending: p, Error: "no answer", Next: r.base.Add(next), Place: "relay.publish"}
}

// keys are the events' keys, with "held " before those that must not be sent.
func keys(events []relay.Pending) []string {
	list := make([]string, len(events))
	for i, p := range events {
		list[i] = string(p.Event.Key)
		if p.Held {
			list[i] = "held " + list[i]
		}
	}
	return list
}

func versions(events []relay.Pending) []int64 {
	list := make([]int64, len(events))
	for i, p := range events {
		list[i] = p.Event.Version
	}
	return list
}

// value is the committed number of the law's effect.
func (r *rig[TX]) value(name string) int {
	r.Helper()
	n, err := r.Value(r.ctx, name)
	r.must(err)
	return n
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func equalLists[T comparable](t testing.TB, what string, got []T, want ...T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}
