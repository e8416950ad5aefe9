package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func leaseLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"one relay alone holds every lane", aloneHoldsAll[TX]},
		{"a renewed lease keeps its token", renewalKeepsToken[TX]},
		{"a stale token is not renewed", staleNotRenewed[TX]},
		{"a lease re-acquired by the same owner has a new token", reacquiredIsNew[TX]},
		{"lanes are shared fairly and given up when a relay joins", sharedFairly[TX]},
		{"lanes that an owner got with an answer that was lost are its own again at once", lostAnswer[TX]},
		{"asked to renew only, a store takes no lane and gives none up", renewOnly[TX]},
		{"lanes with events in flight are not given up, the others are", busyKept[TX]},
		{"release is immediate and conditional on the token", releaseConditional[TX]},
		{"a claim tells whether any lane has no owner", unownedTold[TX]},
		{"expired leases are taken over and their owner settles nothing (B13)", expiredTakenOver[TX]},
		{"twenty claimants: an event is in one live lease only (B03)", twentyClaimants[TX]},
	}
}

func (r *rig[TX]) release(owner string, leases ...relay.Lease) {
	r.Helper()
	r.must(r.Relay.Release(r.ctx, owner, leases))
}

// byLane also checks that no lane is there twice.
func (r *rig[TX]) byLane(leases []relay.Lease) map[convergo.Lane]int64 {
	r.Helper()
	tokens := map[convergo.Lane]int64{}
	for _, l := range leases {
		if _, twice := tokens[l.Lane]; twice || l.Lane >= convergo.Lanes {
			r.Errorf("lane %d is leased twice, or is no lane", l.Lane)
		}
		tokens[l.Lane] = l.Token
	}
	return tokens
}

func aloneHoldsAll[TX any](r *rig[TX]) {
	equal(r, "lanes", len(r.byLane(r.lease("a"))), convergo.Lanes)
}

func renewalKeepsToken[TX any](r *rig[TX]) {
	first := r.lease("a")
	second := r.byLane(r.lease("a", first...))
	equal(r, "lanes", len(second), convergo.Lanes)
	for _, l := range first {
		equal(r, fmt.Sprintf("token of lane %d", l.Lane), second[l.Lane], l.Token)
	}
}

func staleNotRenewed[TX any](r *rig[TX]) {
	first := r.lease("a")
	stale := []relay.Lease{first[0], first[1]}
	stale[0].Token--
	stale[1].Token += 100 // one that was never given
	got := r.byLane(r.lease("a", stale...))
	for _, l := range stale {
		if token, ok := got[l.Lane]; ok && token == l.Token {
			r.Errorf("lane %d was renewed with token %d, which is not its own", l.Lane, token)
		}
	}
	if got := r.lease("b", first...); len(got) > 0 {
		r.Errorf("another relay renewed %d leases that are not its own", len(got))
	}
}

func reacquiredIsNew[TX any](r *rig[TX]) {
	r.insert(event(orderIn(3, 0), 1))
	first := r.lease("a")
	r.release("a", first...)
	second := r.byLane(r.lease("a"))
	r.must(r.ExpireLeases(r.ctx))
	third := r.byLane(r.lease("a"))
	equal(r, "lanes", len(third), convergo.Lanes)
	for _, l := range first {
		if second[l.Lane] <= l.Token || third[l.Lane] <= second[l.Lane] {
			r.Errorf("lane %d: tokens %d, %d, %d do not grow", l.Lane, l.Token, second[l.Lane], third[l.Lane])
		}
	}
	// The lease of before settles nothing, although the same relay holds the lane.
	c := r.claim(first, 10, 0)
	err := r.Relay.Settle(r.ctx, relay.Settlement{Leases: inLanes(first, c.Events), Sent: c.Events, Now: r.base})
	if !errors.Is(err, relay.ErrLeaseLost) {
		r.Errorf("Settle with an old token: %v, want ErrLeaseLost", err)
	}
}

func sharedFairly[TX any](r *rig[TX]) {
	held := map[string][]relay.Lease{"a": r.lease("a")}
	owners := []string{"a", "b"}
	for range 3 { // all learn of each other within a few rounds
		for _, o := range owners {
			held[o] = r.lease(o, held[o]...)
		}
	}
	equal(r, "lanes of a, of two", len(held["a"]), convergo.Lanes/2)
	equal(r, "lanes of b, of two", len(held["b"]), convergo.Lanes/2)
	owners = append(owners, "c")
	for range 4 {
		for _, o := range owners {
			held[o] = r.lease(o, held[o]...)
		}
	}
	all := map[convergo.Lane]string{}
	for _, o := range owners {
		if n := len(held[o]); n > 22 || n < 20 { // ⌈64/3⌉, and two may have taken it
			r.Errorf("%s of three holds %d lanes", o, n)
		}
		for lane := range r.byLane(held[o]) {
			if other, twice := all[lane]; twice {
				r.Errorf("lane %d is held by %s and %s", lane, other, o)
			}
			all[lane] = o
		}
	}
	equal(r, "lanes held in all", len(all), convergo.Lanes)
	r.release("b", held["b"]...)
	r.release("c", held["c"]...)
	equal(r, "lanes of a when it is alone again", len(r.lease("a", held["a"]...)), convergo.Lanes)
}

// The owner does not name what it does not know of. Nobody else may have those lanes; without this law they would lie idle
// until the lease ends.
func lostAnswer[TX any](r *rig[TX]) {
	tokens := func(leases []relay.Lease) map[convergo.Lane]int64 {
		by := map[convergo.Lane]int64{}
		for _, l := range leases {
			by[l.Lane] = l.Token
		}
		return by
	}
	lost := tokens(r.lease("a"))
	again := r.lease("a")
	equal(r, "lanes", len(again), convergo.Lanes)
	for _, l := range again {
		if l.Token <= lost[l.Lane] {
			r.Errorf("lane %d has token %d again", l.Lane, l.Token)
		}
	}
	known := tokens(r.lease("a", again[:10]...))
	equal(r, "lanes", len(known), convergo.Lanes)
	for _, l := range again[:10] {
		equal(r, "token of one that was named", known[l.Lane], l.Token)
	}
	equal(r, "lanes of another", len(r.lease("b")), 0)
}

func renewOnly[TX any](r *rig[TX]) {
	ask := func(owner string, held []relay.Lease) []relay.Lease {
		got, err := r.Relay.Lease(r.ctx, relay.LeaseRequest{Owner: owner, Held: held, RenewOnly: true, Term: longTerm})
		r.must(err)
		return got
	}
	equal(r, "lanes taken", len(ask("a", nil)), 0)
	held := r.lease("a")
	r.lease("b")
	equal(r, "lanes kept although b has joined", len(ask("a", held)), convergo.Lanes)
	equal(r, "lanes kept of those asked for", len(ask("a", held[:5])), 5)
}

func busyKept[TX any](r *rig[TX]) {
	ask := func(owner string, busy int, held []relay.Lease) []relay.Lease {
		got, err := r.Relay.Lease(r.ctx, relay.LeaseRequest{Owner: owner, Held: held, Busy: busy, Term: longTerm})
		r.must(err)
		return got
	}
	a := r.lease("a")
	a[0], a[63] = a[63], a[0] // the order of Held is the caller's
	equal(r, "lanes of b before a gives some up", len(ask("b", 0, nil)), 0)
	kept := ask("a", convergo.Lanes, a)
	equalLists(r, "all in flight", kept, a...)
	kept = ask("a", 40, a)
	equalLists(r, "more than the share in flight", kept, a[:40]...)
	b := ask("b", 0, nil)
	equal(r, "lanes of b", len(b), convergo.Lanes-40)
	kept = ask("a", 20, kept)
	equalLists(r, "less than the share in flight", kept, a[:convergo.Lanes/2]...)
	b = ask("b", len(b), b)
	equal(r, "lanes of b then", len(b), convergo.Lanes/2)
	equal(r, "lanes in all", len(r.byLane(slices.Concat(kept, b))), convergo.Lanes)
	stale := slices.Concat(b[:2], kept) // they were taken over while the relay thought that it had events in flight there
	equalLists(r, "the first two in flight are not its own", ask("a", 4, stale), kept...)
}

func releaseConditional[TX any](r *rig[TX]) {
	first := r.lease("a")
	r.release("a", first...)
	second := r.lease("b")
	equal(r, "lanes of b at once", len(second), convergo.Lanes)
	r.release("a", first...) // a late release, from a shutdown that was slow
	r.insert(event(order("1"), 1))
	c := r.claim(second, 10, 0)
	r.settle(inLanes(second, c.Events), 0, settleSent(c.Events))
	forged := second[0]
	forged.Token++
	r.release("b", forged)
	equal(r, "lanes of b that stand", len(r.lease("b", second...)), convergo.Lanes)
	r.release("nobody")
}

// Whoever has some lanes looks at them all the time. So those of another are taken over soon after it has stopped or died.
func unownedTold[TX any](r *rig[TX]) {
	told := func(leases []relay.Lease) bool {
		c, err := r.Relay.Claim(r.ctx, leases, 10, r.base)
		r.must(err)
		return c.Unowned
	}
	a := r.lease("a")
	equal(r, "one has all", told(a), false)
	r.lease("b")
	a = r.lease("a", a...)
	equal(r, "half were given up for another, who has not come yet", told(a), true)
	b := r.lease("b")
	equal(r, "to one of two who have all", told(a), false)
	equal(r, "to the other one", told(b[:1]), false)
	r.release("b", b[0])
	equal(r, "one lane was given back", told(a[:1]), true)
	a = r.lease("a", a...)
	equal(r, "lanes of a", len(a), convergo.Lanes/2+1)
	equal(r, "it was taken", told(a), false)
	r.insert(event(order("1"), 1))
	delayed := event(order("2"), 1)
	delayed.DeliverAt = r.base.Add(-time.Minute)
	r.insert(delayed)
	r.release("b", b[1])
	equal(r, "one lane was given back while there is work", told(a), true)
	a = r.lease("a", a...)
	equal(r, "it was taken while there is work", told(a), false)
	r.must(r.ExpireLeases(r.ctx))
	equal(r, "all have ended", told(a), true)
}

func expiredTakenOver[TX any](r *rig[TX]) {
	r.insert(event(order("1"), 1), event(order("1"), 2))
	killed := r.lease("a")
	c := r.claim(killed, 10, 0)
	equal(r, "lanes of b while a lives", len(r.lease("b")), 0)
	r.must(r.ExpireLeases(r.ctx))
	err := r.Relay.Settle(r.ctx, relay.Settlement{Leases: inLanes(killed, c.Events), Sent: c.Events, Now: r.base})
	if !errors.Is(err, relay.ErrLeaseLost) {
		r.Errorf("Settle after the expiry: %v, want ErrLeaseLost", err)
	}
	taken := r.lease("b")
	equal(r, "lanes of b", len(taken), convergo.Lanes)
	r.claim(taken, 10, 0)
	err = r.Relay.Settle(r.ctx, relay.Settlement{Leases: inLanes(killed, c.Events), Sent: c.Events, Now: r.base})
	if !errors.Is(err, relay.ErrLeaseLost) {
		r.Errorf("Settle after the take-over: %v, want ErrLeaseLost", err)
	}
	again := r.claim(taken, 10, 0)
	equalLists(r, "claimed by b", versions(again.Events), 1, 2)
	r.settle(inLanes(taken, again.Events), 0, settleSent(again.Events))
	equal(r, "left", len(r.claim(taken, 10, 0).Events), 0)
}

// twentyClaimants start in the same moment, join, renew, claim and settle; each event may be settled once in all, although
// all of them look at the same rows all the time.
func twentyClaimants[TX any](r *rig[TX]) {
	const claimants, events = 20, 200
	var list []convergo.Event
	for n := range events {
		list = append(list, event(order(fmt.Sprint(n%40)), n/40+1))
	}
	r.insert(list...)
	var mu sync.Mutex
	sent := map[convergo.Key]int{}
	last := map[convergo.Aggregate]int64{}
	var group sync.WaitGroup
	for i := range claimants {
		group.Go(func() {
			owner := fmt.Sprintf("relay-%d", i)
			var held []relay.Lease
			for r.ctx.Err() == nil {
				var err error
				if held, err = r.Relay.Lease(r.ctx, relay.LeaseRequest{Owner: owner, Held: held, Term: longTerm}); err != nil {
					r.Error(err)
					return
				}
				c, err := r.Relay.Claim(r.ctx, held, 2, r.base)
				if err != nil {
					r.Error(err)
					return
				}
				if len(c.Events) > 0 {
					err = r.Relay.Settle(r.ctx, relay.Settlement{Leases: inLanes(held, c.Events), Sent: c.Events, Now: r.base})
				}
				mu.Lock()
				if err != nil {
					r.Errorf("%s: %v", owner, err)
				}
				for _, p := range c.Events {
					sent[p.Event.Key]++
					if v := p.Event.Version; v != last[p.Event.Aggregate]+1 {
						r.Errorf("%s: version %d after %d", p.Event.Aggregate, v, last[p.Event.Aggregate])
					}
					last[p.Event.Aggregate] = p.Event.Version
				}
				finished := len(sent) == events
				mu.Unlock()
				if finished || err != nil {
					_ = r.Relay.Release(r.ctx, owner, held)
					return
				}
			}
		})
	}
	group.Wait()
	equal(r, "different events settled", len(sent), events)
	for k, n := range sent {
		if n != 1 {
			r.Errorf("event %s was settled %d times", k, n)
		}
	}
	equal(r, "left", len(r.claim(r.lease("last"), 10, time.Hour).Events), 0)
}

// inLanes are those of the leases that the events need.
func inLanes(leases []relay.Lease, events []relay.Pending) (list []relay.Lease) {
	for _, l := range leases {
		for _, p := range events {
			if p.Event.Aggregate.Lane() == l.Lane {
				list = append(list, l)
				break
			}
		}
	}
	return list
}
