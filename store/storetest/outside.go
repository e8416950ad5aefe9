package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
)

func outsideLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a call is added once, and only if its transaction commits", callOnce[TX]},
		{"a call comes out as it went in, not before its time, and only to those who make its kind", callComesOut[TX]},
		{"an expired lease is taken over with a new token and is ambiguous", takenOver[TX]},
		{"a stale token finishes nothing", staleFinishes[TX]},
		{"a finished call is never claimed again", finishedIsOver[TX]},
		{"a call that must wait comes again when it is due, with its attempts and its doubt", waitsAgain[TX]},
		{"finishing rolls back with its transaction", finishRollsBack[TX]},
		{"calls of one group are serial and a failed one does not block for ever", groupsSerial[TX]},
		{"of many who claim at once, one gets a call", oneClaims[TX]},
	}
}

const kind = "channel.refund"

func call(n int) outside.Call {
	return outside.Call{Kind: kind, Key: convergo.Key(fmt.Sprintf("RF-%d", n)), Payload: []byte(fmt.Sprintf(`{"n":%d}`, n))}
}

func (r *rig[TX]) add(list ...outside.Call) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		for _, c := range list {
			fresh, err := r.Outside.Add(ctx, tx, c, r.base)
			if err != nil {
				return err
			}
			equal(r, "fresh "+string(c.Key), fresh, true)
		}
		return nil
	})
}

func (r *rig[TX]) claimCalls(at time.Duration, kinds ...string) []outside.Claimed {
	r.Helper()
	if len(kinds) == 0 {
		kinds = []string{kind}
	}
	list, _, err := r.Outside.Claim(r.ctx, kinds, longTerm, 100, r.base.Add(at))
	r.must(err)
	return list
}

// finish returns whether the token still stood.
func (r *rig[TX]) finish(c outside.Claimed, o outside.Outcome) (held bool) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) (err error) {
		held, err = r.Outside.Finish(ctx, tx, c, o, r.base)
		return err
	})
	return held
}

func callKeys(list []outside.Claimed) (keys []convergo.Key) {
	for _, c := range list {
		keys = append(keys, c.Key)
	}
	return keys
}

func callOnce[TX any](r *rig[TX]) {
	woken := r.countWakes(r.OnCalls)
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		_, err := r.Outside.Add(ctx, tx, call(1), r.base)
		return errors.Join(err, errWanted)
	})
	equal(r, "wake-ups after a rollback", woken.Load(), 0)
	equal(r, "claimed after a rollback", len(r.claimCalls(0)), 0)
	r.add(call(1))
	if woken.Load() == 0 {
		r.Error("no wake-up for a call that was committed")
	}
	again := call(1)
	again.Payload = []byte("other")
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outside.Add(ctx, tx, again, r.base)
		equal(r, "fresh again", fresh, false)
		return errors.Join(err, r.Add(ctx, tx, "n", 1))
	})
	equal(r, "an effect after the duplicate", r.value("n"), 1)
	list := r.claimCalls(0)
	equalLists(r, "claimed", callKeys(list), "RF-1")
	equal(r, "payload of the first", string(list[0].Payload), `{"n":1}`)
	equal(r, "finished", r.finish(list[0], outside.Outcome{State: outside.Done}), true)
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outside.Add(ctx, tx, call(1), r.base)
		equal(r, "fresh after it is done", fresh, false)
		return err
	})
}

func callComesOut[TX any](r *rig[TX]) {
	now, late, other := call(1), call(2), call(3)
	now.Key, now.Payload, now.Group = "RF-😀", []byte{0, 0xff, '"', '\n'}, "G-é"
	late.NotBefore = r.base.Add(time.Hour)
	other.Kind = "carrier.book"
	r.add(now, late, other)
	list, next, err := r.Outside.Claim(r.ctx, []string{kind}, longTerm, 10, r.base)
	r.must(err)
	equalLists(r, "claimed", callKeys(list), now.Key)
	got := list[0]
	equal(r, "payload", string(got.Payload), string(now.Payload))
	equal(r, "group", got.Group, now.Group)
	equal(r, "kind", got.Kind, now.Kind)
	equal(r, "attempts", got.Attempts, 0)
	equal(r, "ambiguous", got.Ambiguous, false)
	equal(r, "next due is told", next.IsZero(), false)
	equal(r, "next due is not after the delayed one", next.After(late.NotBefore), false)
	equal(r, "claimed a microsecond early", len(r.claimCalls(time.Hour-time.Microsecond)), 0)
	equalLists(r, "claimed in time", callKeys(r.claimCalls(time.Hour)), late.Key)
	equalLists(r, "claimed by the other kind's maker", callKeys(r.claimCalls(0, "x", "carrier.book")), other.Key)
}

func takenOver[TX any](r *rig[TX]) {
	r.add(call(1))
	first := r.claimCalls(0)
	equal(r, "claimed while the lease stands", len(r.claimCalls(0)), 0)
	r.must(r.ExpireLeases(r.ctx))
	second := r.claimCalls(0)
	equalLists(r, "taken over", callKeys(second), "RF-1")
	equal(r, "ambiguous", second[0].Ambiguous, true)
	equal(r, "attempts: the unfinished one counts", second[0].Attempts, 1)
	if second[0].Token == first[0].Token {
		r.Errorf("the token %d is the old one", second[0].Token)
	}
	equal(r, "finished by the first", r.finish(first[0], outside.Outcome{State: outside.Done}), false)
	equal(r, "finished by the second", r.finish(second[0], outside.Outcome{State: outside.Done}), true)
}

func staleFinishes[TX any](r *rig[TX]) {
	r.add(call(1))
	first := r.claimCalls(0)[0]
	r.must(r.ExpireLeases(r.ctx))
	second := r.claimCalls(0)[0]
	for _, o := range []outside.Outcome{
		{State: outside.Done, Result: []byte("late")}, {State: outside.Failed, Error: "late"}, {State: outside.Waiting, Next: r.base},
	} {
		equal(r, fmt.Sprintf("state %d by a stale token", o.State), r.finish(first, o), false)
	}
	unknown := second
	unknown.Key = "RF-unknown"
	equal(r, "an unknown call", r.finish(unknown, outside.Outcome{State: outside.Done}), false)
	equal(r, "claimed meanwhile", len(r.claimCalls(0)), 0)
	equal(r, "finished by its owner", r.finish(second, outside.Outcome{State: outside.Waiting, Next: r.base}), true)
	equal(r, "finished twice by its owner", r.finish(second, outside.Outcome{State: outside.Done}), false)
	equalLists(r, "claimed again", callKeys(r.claimCalls(0)), "RF-1")
}

func finishedIsOver[TX any](r *rig[TX]) {
	r.add(call(1), call(2))
	list := r.claimCalls(0)
	equal(r, "done", r.finish(list[0], outside.Outcome{State: outside.Done, Result: []byte{0xff, 0}}), true)
	equal(r, "failed", r.finish(list[1], outside.Outcome{State: outside.Failed, Error: "refused"}), true)
	r.must(r.ExpireLeases(r.ctx))
	again, next, err := r.Outside.Claim(r.ctx, []string{kind}, longTerm, 10, r.base.Add(1000*time.Hour))
	r.must(err)
	equal(r, "claimed", len(again), 0)
	equal(r, "next due", next.IsZero(), true)
	equal(r, "finished again", r.finish(list[0], outside.Outcome{State: outside.Failed}), false)
}

func waitsAgain[TX any](r *rig[TX]) {
	r.add(call(1))
	for n, ambiguous := range []bool{false, true, false, true} {
		at := time.Duration(n) * time.Minute
		list := r.claimCalls(at)
		if len(list) != 1 {
			r.Fatalf("round %d: %d claimed", n, len(list))
		}
		equal(r, "attempts", list[0].Attempts, n)
		if n > 0 {
			equal(r, "ambiguous", list[0].Ambiguous, n%2 == 0)
		}
		r.finish(list[0], outside.Outcome{
			State: outside.Waiting, Error: "timeout", Next: r.base.Add(at + time.Minute), Ambiguous: ambiguous,
		})
		early, next, err := r.Outside.Claim(r.ctx, []string{kind}, longTerm, 10, r.base.Add(at+time.Minute-time.Microsecond))
		r.must(err)
		equal(r, "claimed early", len(early), 0)
		equal(r, "next due", next.Equal(r.base.Add(at+time.Minute)), true)
	}
}

func finishRollsBack[TX any](r *rig[TX]) {
	r.add(call(1))
	c := r.claimCalls(0)[0]
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		held, err := r.Outside.Finish(ctx, tx, c, outside.Outcome{State: outside.Done}, r.base)
		equal(r, "held, to be rolled back", held, true)
		return errors.Join(err, errWanted)
	})
	equal(r, "held after the rollback", r.finish(c, outside.Outcome{State: outside.Done}), true)
}

func groupsSerial[TX any](r *rig[TX]) {
	var list []outside.Call
	for n := range 6 {
		c := call(n)
		c.Group = fmt.Sprintf("G-%d", n%2)
		list = append(list, c)
	}
	list = append(list, call(6), call(7)) // of no group
	r.add(list...)
	first := r.claimCalls(0)
	equal(r, "claimed: one of each group and all without", len(first), 4)
	by := map[convergo.Key]outside.Claimed{}
	for _, c := range first {
		by[c.Key] = c
	}
	equal(r, "claimed while they run", len(r.claimCalls(0)), 0)
	r.finish(by["RF-0"], outside.Outcome{State: outside.Failed, Error: "refused"})
	equalLists(r, "after a failure the next of its group", callKeys(r.claimCalls(0)), "RF-2")
	r.finish(by["RF-1"], outside.Outcome{State: outside.Waiting, Next: r.base.Add(time.Minute)})
	equal(r, "claimed while the oldest waits", len(r.claimCalls(0)), 0)
	again := r.claimCalls(time.Minute)
	equalLists(r, "the oldest again, and not the one behind it", callKeys(again), "RF-1")
	r.finish(again[0], outside.Outcome{State: outside.Done})
	equalLists(r, "then the one behind it", callKeys(r.claimCalls(time.Minute)), "RF-3")
}

func oneClaims[TX any](r *rig[TX]) {
	const calls = 40
	for n := range calls {
		r.add(call(n))
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	times := map[convergo.Key]int{}
	for range 8 {
		group.Go(func() {
			for {
				list, _, err := r.Outside.Claim(r.ctx, []string{kind}, longTerm, 3, r.base)
				if err != nil {
					r.Error(err)
				}
				if len(list) == 0 {
					return
				}
				mu.Lock()
				for _, c := range list {
					times[c.Key]++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	equal(r, "different calls claimed", len(times), calls)
	for key, n := range times {
		equal(r, "times that "+string(key)+" was claimed", n, 1)
	}
}
