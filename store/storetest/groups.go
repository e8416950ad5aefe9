package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
)

// groupsAmongMany: some add, in transactions of two groups each, and others claim and finish, all at the same time.
func groupsAmongMany[TX any](r *rig[TX]) {
	const adders, claimers, rounds, groups = 4, 6, 12, 3
	var mu sync.Mutex
	started := map[string]convergo.Key{}
	finished := map[convergo.Key]int{}
	var adding, claiming sync.WaitGroup
	added := make(chan struct{})
	for a := range adders {
		adding.Go(func() {
			for n := range rounds {
				err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
					for g := range 2 {
						c := outside.Call{Kind: kind, Key: convergo.Key(fmt.Sprintf("%d-%d-%d", a, n, g)), Group: fmt.Sprint("G-", (a+n+g)%groups)}
						if _, err := r.Outside.Add(ctx, tx, c, r.base); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					r.Error(err)
				}
			}
		})
	}
	for range claimers {
		claiming.Go(func() {
			for last := false; r.ctx.Err() == nil; {
				list, _, err := r.Outside.Claim(r.ctx, []string{kind}, longTerm, 2, r.base)
				if err != nil {
					r.Error(err)
					return
				}
				for _, c := range list {
					mu.Lock()
					if other, two := started[c.Group]; two {
						r.Errorf("group %s: %s is started while %s is", c.Group, c.Key, other)
					}
					started[c.Group] = c.Key
					mu.Unlock()
				}
				for _, c := range list {
					mu.Lock()
					delete(started, c.Group) // before the commit: the next of the group can only come after it
					finished[c.Key]++
					mu.Unlock()
					if !r.finish(c, outside.Outcome{State: outside.Done}) {
						r.Errorf("%s: the token does not stand", c.Key)
					}
				}
				if last && len(list) == 0 {
					return
				}
				select {
				case <-added:
					last = len(list) == 0
				default:
				}
			}
		})
	}
	adding.Wait()
	close(added)
	claiming.Wait()
	for list := r.claimCalls(0); len(list) > 0; list = r.claimCalls(0) { // what was passed over while another claimed it
		for _, c := range list {
			finished[c.Key]++
			r.finish(c, outside.Outcome{State: outside.Done})
		}
	}
	equal(r, "different calls finished", len(finished), adders*rounds*2)
	for key, n := range finished {
		equal(r, "times that "+string(key)+" was finished", n, 1)
	}
}

// groupInCommitOrder: the second adds while the first has added and not committed. If it could commit, it would be claimed,
// and then there would be an older call of its group that nobody has made.
func groupInCommitOrder[TX any](r *rig[TX]) {
	one, two := call(1), call(2)
	one.Group, two.Group = "G", "G"
	first, second := make(chan struct{}), make(chan error, 1)
	var early []convergo.Key
	var once sync.Once
	err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		if _, err := r.Outside.Add(ctx, tx, one, r.base); err != nil {
			return err
		}
		once.Do(func() {
			go func() {
				close(first)
				second <- r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
					_, err := r.Outside.Add(ctx, tx, two, r.base)
					return err
				})
			}()
			<-first
			if r.RowLocks {
				if await(second, 300*time.Millisecond) {
					second <- nil
				}
				early = callKeys(r.claimCalls(0))
			}
		})
		return nil
	})
	r.must(err)
	r.must(<-second)
	if len(early) > 0 {
		r.Errorf("claimed before the first had committed: %v", early)
	}
	list := r.claimCalls(0)
	equal(r, "claimed", len(list), 1)
	if r.RowLocks {
		equal(r, "first", list[0].Key, one.Key)
	}
	r.finish(list[0], outside.Outcome{State: outside.Done})
	equal(r, "then the other", len(r.claimCalls(0)), 1)
}
