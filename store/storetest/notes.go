package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// noteLaws hold for a Parking that has inbox.Notes; another one has none of them to keep.
func noteLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"beginnings at one message are counted in a row, by consumer and partition", begunInARow[TX]},
		{"a beginning rolls back with its transaction", begunRollsBack[TX]},
		{"of many who note a beginning at once each is counted", begunByMany[TX]},
		{"a type is registered since it was last said, by consumer", typesRegistered[TX]},
		{"of many who register types at once all are registered", registeredByMany[TX]},
		{"a message that fails behind others keeps its place", failedKeepsPlace[TX]},
	}
}

// notes calls fn with the store's notes in a transaction that has to commit, if it has any.
func (r *rig[TX]) notes(fn func(ctx context.Context, tx TX, n inbox.Notes[TX]) error) {
	r.Helper()
	if n, ok := any(r.Parking).(inbox.Notes[TX]); ok {
		r.update(func(ctx context.Context, tx TX) error { return fn(ctx, tx, n) })
	}
}

// begin notes one beginning and wants it to be the so-manieth in a row.
func (r *rig[TX]) begin(name, part string, key convergo.Key, want int) {
	r.Helper()
	r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
		times, err := n.Begin(ctx, tx, name, part, key, r.base)
		equal(r, name+" at "+string(key)+" of "+part, times, want)
		return err
	})
}

func begunInARow[TX any](r *rig[TX]) {
	r.begin(consumer, "order/0", "A", 1)
	r.begin(consumer, "order/0", "A", 2)
	r.begin(consumer, "order/1", "A", 1)
	r.begin("points", "order/0", "A", 1)
	r.begin(consumer, "Order/0", "A", 1) // names are bytes
	r.begin(consumer, "order/1", "B", 1)
	r.begin(consumer, "order/0", "A", 3)
	r.begin(consumer, "order/0", "a", 1)
	r.begin(consumer, "order/0", "A", 1)
	r.begin(consumer, "order/1", "B", 2)
}

func begunRollsBack[TX any](r *rig[TX]) {
	r.begin(consumer, "order/0", "A", 1)
	n, ok := any(r.Parking).(inbox.Notes[TX])
	if !ok {
		return
	}
	err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		if _, err := n.Begin(ctx, tx, consumer, "order/0", "A", r.base); err != nil {
			r.Error(err)
		}
		return errWanted
	})
	equal(r, "the transaction's error is that of its function", err != nil, true)
	r.begin(consumer, "order/0", "A", 2)
}

func begunByMany[TX any](r *rig[TX]) {
	const many = 8
	var group sync.WaitGroup
	var mu sync.Mutex
	var counts []int
	for range many {
		group.Go(func() {
			r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
				times, err := n.Begin(ctx, tx, consumer, "order/0", "A", r.base)
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					counts = append(counts, times)
				}
				return err
			})
		})
	}
	group.Wait()
	r.begin(consumer, "order/0", "A", many+1)
	slices.Sort(counts)
	if counts = slices.Compact(counts); counts != nil && len(counts) != many {
		r.Errorf("%d processes were told %v", many, counts)
	}
}

func typesRegistered[TX any](r *rig[TX]) {
	register := func(name string, at time.Duration, types ...string) {
		r.Helper()
		r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
			return n.Register(ctx, tx, name, types, r.base.Add(at))
		})
	}
	registered := func(what, name string, since time.Duration, want ...string) {
		r.Helper()
		r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
			types, err := n.Registered(ctx, tx, name, r.base.Add(since))
			slices.Sort(types)
			equalLists(r, what, types, want...)
			return err
		})
	}
	registered("at first", consumer, -1000*time.Hour)
	register(consumer, time.Hour, "Paid", "Canceled")
	register("points", time.Hour, "Shipped")
	registered("since before", consumer, 0, "Canceled", "Paid")
	registered("since that moment", consumer, time.Hour, "Canceled", "Paid")
	registered("since later", consumer, time.Hour+time.Microsecond)
	registered("another consumer's", "points", 0, "Shipped")
	register(consumer, 2*time.Hour, "Paid", "paid")
	registered("since the second time", consumer, 2*time.Hour, "Paid", "paid")
	register(consumer, 0, "Paid") // by an instance whose clock is late
	registered("the later time stays", consumer, 2*time.Hour, "Paid", "paid")
}

func registeredByMany[TX any](r *rig[TX]) {
	var group sync.WaitGroup
	for i := range 8 {
		types := []string{"A", "B", "C", "D", "E"}
		if i%2 == 0 {
			slices.Reverse(types)
		}
		group.Go(func() {
			r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
				return n.Register(ctx, tx, consumer, types, r.base)
			})
		})
	}
	group.Wait()
	r.notes(func(ctx context.Context, tx TX, n inbox.Notes[TX]) error {
		types, err := n.Registered(ctx, tx, consumer, r.base)
		equal(r, "types", len(types), 5)
		return err
	})
}

func failedKeepsPlace[TX any](r *rig[TX]) {
	a := order("1")
	r.enqueue(consumer, event(a, 1), event(a, 2), event(a, 3))
	r.failMessage(consumer, event(a, 2), 1, 0)
	equalLists(r, "up to the one that failed", queuedVersions(r.queue(consumer, a, 10, 0)), 1, 2)
	r.dequeue(consumer, event(a, 1), 0)
	equalLists(r, "alone", queuedVersions(r.queue(consumer, a, 10, 0)), 2)
	r.dequeue(consumer, event(a, 2), 0)
	equalLists(r, "the last", queuedVersions(r.queue(consumer, a, 10, 0)), 3)
}
