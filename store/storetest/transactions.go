package storetest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/convergo/convergo"
)

var errWanted = errors.New("wanted by the law")

func transactionLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a rolled-back event never existed", rolledBackEvent[TX]},
		{"a panic and a lost goroutine roll back and the store goes on", panicRollsBack[TX]},
		{"a savepoint's events vanish with it and no wake-up is left (B04)", savepointVanishes[TX]},
		{"a failed or panicking savepoint undoes only its own writes, however deep", nestedUndoesItself[TX]},
		{"functions after the commit run in order, once, and never for what was undone", afterCommit[TX]},
		{"concurrent updates lose nothing", noLostUpdate[TX]},
		{"an update whose context has ended leaves nothing", endedContext[TX]},
		{"what was committed is there after a restart", survivesRestart[TX]},
	}
}

func rolledBackEvent[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	woken := r.countWakes(r.OnEvents)
	err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		_, err := r.Outbox.Insert(ctx, tx, []convergo.Event{e})
		return errors.Join(err, r.Add(ctx, tx, "n", 1), errWanted)
	})
	if !errors.Is(err, errWanted) {
		r.Fatalf("Update returned %v, not the function's error", err)
	}
	equal(r, "wake-ups", woken.Load(), 0)
	equal(r, "the effect", r.value("n"), 0)
	leases := r.lease("a")
	equalLists(r, "claimed", keys(r.claim(leases, 10, 0).Events))
	r.insert(e) // the key is free
	equalLists(r, "claimed after a real commit", keys(r.claim(leases, 10, 0).Events), string(e.Key))
}

func panicRollsBack[TX any](r *rig[TX]) {
	func() {
		defer func() { _ = recover() }()
		_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
			if err := r.Add(ctx, tx, "n", 1); err != nil {
				r.Error(err)
			}
			panic("a handler's mistake")
		})
		r.Error("the panic was swallowed")
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
			if err := r.Add(ctx, tx, "n", 1); err != nil {
				r.Error(err)
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	r.update(func(ctx context.Context, tx TX) error { return r.Add(ctx, tx, "n", 10) })
	equal(r, "the effect", r.value("n"), 10)
}

func savepointVanishes[TX any](r *rig[TX]) {
	woken := r.countWakes(r.OnEvents)
	insert := func(ctx context.Context, tx TX, n int) error {
		_, err := r.Outbox.Insert(ctx, tx, []convergo.Event{event(order("1"), n)})
		return err
	}
	r.update(func(ctx context.Context, tx TX) error {
		err := r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
			return errors.Join(insert(ctx, tx, 1), errWanted)
		})
		if !errors.Is(err, errWanted) {
			r.Errorf("Nested returned %v, not the function's error", err)
		}
		return nil
	})
	equal(r, "wake-ups with nothing written", woken.Load(), 0)
	r.update(func(ctx context.Context, tx TX) error {
		_ = r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
			return errors.Join(insert(ctx, tx, 2), errWanted)
		})
		return insert(ctx, tx, 3)
	})
	if woken.Load() == 0 {
		r.Error("no wake-up for the event that was committed")
	}
	leases := r.lease("a")
	equalLists(r, "claimed", versions(r.claim(leases, 10, 0).Events), 3)
}

func nestedUndoesItself[TX any](r *rig[TX]) {
	add := func(n int) func(ctx context.Context, tx TX) error {
		return func(ctx context.Context, tx TX) error { return r.Add(ctx, tx, "n", n) }
	}
	r.update(func(ctx context.Context, tx TX) error {
		err := r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error { // kept, but for what its own savepoints undid
			_ = r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error { return errors.Join(add(1)(ctx, tx), errWanted) })
			return errors.Join(add(10)(ctx, tx), r.Store.Nested(ctx, tx, add(100)))
		})
		_ = r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error { // undone with the savepoint that succeeded in it
			return errors.Join(add(1000)(ctx, tx), r.Store.Nested(ctx, tx, add(10_000)), errWanted)
		})
		func() {
			defer func() { _ = recover() }()
			if nested := r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
				_ = add(100_000)(ctx, tx)
				panic("a handler's mistake")
			}); nested == nil {
				r.Error("the panic was swallowed")
			}
		}()
		return errors.Join(err, add(1_000_000)(ctx, tx))
	})
	equal(r, "the effect", r.value("n"), 1_000_110)
}

func afterCommit[TX any](r *rig[TX]) {
	var ran []int
	hook := func(tx TX, n int) {
		if h, ok := any(tx).(convergo.AfterCommit); ok {
			h.AfterCommit(func() { ran = append(ran, n) })
		}
	}
	offered := false
	r.update(func(ctx context.Context, tx TX) error {
		_, offered = any(tx).(convergo.AfterCommit)
		hook(tx, 1)
		_ = r.Store.Nested(ctx, tx, func(_ context.Context, tx TX) error { hook(tx, 2); return errWanted })
		err := r.Store.Nested(ctx, tx, func(_ context.Context, tx TX) error { hook(tx, 3); return nil })
		hook(tx, 4)
		equal(r, "ran before the commit", len(ran), 0)
		return err
	})
	_ = r.Store.Update(r.ctx, func(_ context.Context, tx TX) error { hook(tx, 5); return errWanted })
	if offered {
		equalLists(r, "ran", ran, 1, 3, 4)
	}
}

func noLostUpdate[TX any](r *rig[TX]) {
	const workers, rounds = 16, 20
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range rounds {
				err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
					if err := r.Add(ctx, tx, "n", 1); err != nil {
						return err
					}
					if i%4 == 3 {
						return errWanted // its neighbours must not notice
					}
					return nil
				})
				if err != nil && !errors.Is(err, errWanted) {
					r.Error(err)
				}
			}
		})
	}
	group.Wait()
	equal(r, "the effect", r.value("n"), workers*rounds*3/4)
}

func endedContext[TX any](r *rig[TX]) {
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	err := r.Store.Update(ended, func(ctx context.Context, tx TX) error { return r.Add(ctx, tx, "n", 1) })
	if convergo.VerdictOf(err) != convergo.Outage { // it did not begin, so it says nothing about the function
		r.Errorf("Update returned %v", err)
	}
	during, cancel := context.WithCancel(r.ctx)
	err = r.Store.Update(during, func(ctx context.Context, tx TX) error {
		err := r.Add(ctx, tx, "n", 10)
		cancel()
		return err
	})
	// A commit may win the race; what counts is that the answer is the truth.
	want := 0
	if err == nil {
		want = 10
	}
	equal(r, "the effect", r.value("n"), want)
	r.update(func(ctx context.Context, tx TX) error { return r.Add(ctx, tx, "n", 100) })
	equal(r, "the effect of the next", r.value("n"), want+100)
}

func survivesRestart[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(event(a, 1), event(a, 2), event(a, 3))
	r.update(func(ctx context.Context, tx TX) error { return r.Add(ctx, tx, "n", 7) })
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	r.settle(leases, 0, settleSent(c.Events[:1]))
	if r.Reopen != nil {
		r.Backend = withOperators(r.T, r.Reopen(r.T))
	}
	r.must(r.Relay.Release(r.ctx, "a", leases))
	leases = r.lease("b")
	equalLists(r, "claimed", versions(r.claim(leases, 10, 0).Events), 2, 3)
	equal(r, "the effect", r.value("n"), 7)
}

// countWakes registers a wake-up that counts.
func (r *rig[TX]) countWakes(register func(wake func())) *atomic.Int64 {
	var n atomic.Int64
	register(func() { n.Add(1) })
	return &n
}
