package storetest

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func relayLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"what is sent is gone, and more than fits is told", sentIsGone[TX]},
		{"a stale token settles nothing, not even the lanes whose lease stands", staleSettlesNothing[TX]},
		{"a failed event blocks its aggregate only; later ones go aside and come out in order, head first (B11)", failedBlocks[TX]},
		{"an event that goes aside while the head is sent is not stranded", asideNotStranded[TX]},
		{"a head that fails again waits again; its attempts are counted", attemptsCounted[TX]},
		{"a dead head holds its aggregate, even with nothing behind it", deadHeadHolds[TX]},
		{"a dead head lets its aggregate go on when asked to skip it", deadHeadSkipped[TX]},
		{"the many waiting events of one blocked aggregate do not lengthen a claim of the others", waitingNotRead[TX]},
		{"delayed events are not seen before their time and join in order", delayedJoin[TX]},
		{"an event in no list of a settlement stays as it is", untouchedStays[TX]},
		{"a settlement repeated after a lost answer changes nothing", repeatedSettlement[TX]},
		{"blocked aggregates that wait for the same are hastened, others and held ones are not", hastened[TX]},
		{"a long error is cut at a character's border and stops nothing", longError[TX]},
		{"claims are of the leased lanes only", onlyLeasedLanes[TX]},
	}
}

func settleSent(events []relay.Pending) relay.Settlement { return relay.Settlement{Sent: events} }

// events are versions 1 to n of an aggregate.
func events(a convergo.Aggregate, n int) (list []convergo.Event) {
	for i := range n {
		list = append(list, event(a, i+1))
	}
	return list
}

// of are the claimed events of one aggregate.
func of(c relay.Claim, a convergo.Aggregate) (list []relay.Pending) {
	for _, p := range c.Events {
		if p.Event.Aggregate == a {
			list = append(list, p)
		}
	}
	return list
}

func sentIsGone[TX any](r *rig[TX]) {
	a := orderIn(5, 0)
	r.insert(events(a, 5)...)
	leases := r.lease("a")
	c := r.claim(leases, 2, 0)
	equalLists(r, "first claim", versions(c.Events), 1, 2)
	equal(r, "more, first claim", c.More, true)
	equalLists(r, "the same again: a claim takes nothing away", versions(r.claim(leases, 2, 0).Events), 1, 2)
	r.settle(inLanes(leases, c.Events), 0, settleSent(c.Events))
	c = r.claim(leases, 3, 0)
	equalLists(r, "second claim", versions(c.Events), 3, 4, 5)
	equal(r, "more, second claim", c.More, false)
	equal(r, "next due", c.NextDue.IsZero(), true)
	r.settle(inLanes(leases, c.Events), 0, settleSent(c.Events))
	equal(r, "left", len(r.claim(leases, 10, 0).Events), 0)
	r.settle(nil, 0, relay.Settlement{}) // an empty one is no error
}

func staleSettlesNothing[TX any](r *rig[TX]) {
	good, bad := orderIn(1, 0), orderIn(2, 0)
	r.insert(event(good, 1), event(bad, 1))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	for i := range used {
		if used[i].Lane == bad.Lane() {
			used[i].Token--
		}
	}
	for what, s := range map[string]relay.Settlement{
		"sent":   {Sent: c.Events},
		"aside":  {Aside: c.Events},
		"failed": {Failed: []relay.Failure{r.fail(c.Events[0], 0), r.fail(c.Events[1], 0)}},
		"dead":   {Dead: []relay.Failure{r.fail(c.Events[0], 0), r.fail(c.Events[1], 0)}, HoldAggregate: true},
	} {
		s.Leases, s.Now = used, r.base
		if err := r.Relay.Settle(r.ctx, s); !errors.Is(err, relay.ErrLeaseLost) {
			r.Errorf("%s: %v, want ErrLeaseLost", what, err)
		}
		after := r.claim(leases, 10, 0)
		equalLists(r, "left after a refused "+what, keys(after.Events), keys(c.Events)...)
	}
}

func failedBlocks[TX any](r *rig[TX]) {
	a, b := orderIn(7, 0), orderIn(7, 1) // the same lane: the lane itself is never blocked
	r.insert(append(events(a, 3), event(b, 1))...)
	leases := r.lease("a")
	lane := []relay.Lease{leases[7]}
	for _, l := range leases {
		if l.Lane == 7 {
			lane[0] = l
		}
	}
	c := r.claim(lane, 10, 0)
	ofA := of(c, a)
	r.settle(lane, 0, relay.Settlement{ // m-1 failed, m-2 behind it was not sent, b went out; m-3 stays where it is
		Sent: of(c, b), Failed: []relay.Failure{r.fail(ofA[0], time.Minute)}, Aside: ofA[1:2],
	})
	c = r.claim(lane, 10, 0)
	equalLists(r, "while blocked", keys(c.Events), "held "+string(ofA[2].Event.Key))
	equal(r, "next due is the retry", c.NextDue.Equal(r.base.Add(time.Minute)), true)
	r.settle(lane, 0, relay.Settlement{Aside: c.Events})
	r.insert(event(b, 2), event(a, 4))
	c = r.claim(lane, 10, time.Minute-time.Microsecond)
	equalLists(r, "b is not kept waiting", keys(c.Events), string(event(b, 2).Key), "held "+string(event(a, 4).Key))
	r.settle(lane, 0, relay.Settlement{Aside: of(c, a), Sent: of(c, b)})

	c = r.claim(lane, 10, time.Minute)
	equalLists(r, "due: the head alone", versions(c.Events), 1)
	equal(r, "it comes from the queue", c.Events[0].Queued, true)
	equal(r, "it is not held", c.Events[0].Held, false)
	equal(r, "attempts", c.Events[0].Attempts, 1)
	r.settle(lane, time.Minute, settleSent(c.Events))
	r.insert(event(a, 5))
	c = r.claim(lane, 10, time.Minute)
	equalLists(r, "then the others, at once, and what is new is held",
		keys(c.Events), string(event(a, 2).Key), string(event(a, 3).Key), string(event(a, 4).Key), "held "+string(event(a, 5).Key))
	r.settle(lane, time.Minute, relay.Settlement{Sent: c.Events[:3], Aside: c.Events[3:]})
	c = r.claim(lane, 10, time.Minute)
	equalLists(r, "the last of the queue", versions(c.Events), 5)
	r.settle(lane, time.Minute, settleSent(c.Events))
	r.insert(event(a, 6))
	c = r.claim(lane, 10, time.Minute)
	equalLists(r, "free again", keys(c.Events), string(event(a, 6).Key))
	equal(r, "from the lane", c.Events[0].Queued, false)
}

func asideNotStranded[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(event(a, 1))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{r.fail(c.Events[0], 0)}})
	r.insert(event(a, 2), event(a, 3))
	c = r.claim(leases, 10, 0)
	equalLists(r, "retry and held", keys(c.Events), string(event(a, 1).Key), "held "+string(event(a, 2).Key), "held "+string(event(a, 3).Key))
	r.settle(used, 0, relay.Settlement{Sent: c.Events[:1], Aside: c.Events[1:2]})
	r.settle(used, 0, relay.Settlement{Aside: c.Events[2:]})
	c = r.claim(leases, 10, 0)
	equalLists(r, "at once", keys(c.Events), string(event(a, 2).Key), string(event(a, 3).Key))
	r.settle(used, 0, settleSent(c.Events))
	// Aside of an aggregate that is free by now: it must not be lost either.
	r.insert(event(a, 4))
	c = r.claim(leases, 10, 0)
	r.settle(used, 0, relay.Settlement{Aside: c.Events})
	equalLists(r, "aside of a free aggregate", keys(r.claim(leases, 10, 0).Events), string(event(a, 4).Key))
}

func attemptsCounted[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(events(a, 2)...)
	leases := r.lease("a")
	var used []relay.Lease
	for n := range 5 {
		at := time.Duration(n) * time.Minute
		c := r.claim(leases, 10, at)
		queue := of(c, a)
		if len(queue) == 0 || queue[0].Event.Version != 1 || queue[0].Attempts != n {
			r.Fatalf("attempt %d: claimed %v", n, queue)
		}
		used = inLanes(leases, c.Events)
		r.settle(used, at, relay.Settlement{
			Failed: []relay.Failure{r.fail(queue[0], at+time.Minute)}, Aside: queue[1:],
		})
		equal(r, "claimed before the retry is due", len(r.claim(leases, 10, at+time.Minute-time.Microsecond).Events), 0)
	}
	c := r.claim(leases, 10, 5*time.Minute)
	r.settle(used, 5*time.Minute, settleSent(c.Events))
	c = r.claim(leases, 10, 5*time.Minute)
	equalLists(r, "the next head", versions(c.Events), 2)
	equal(r, "attempts of the next head", c.Events[0].Attempts, 0)
}

func deadHeadHolds[TX any](r *rig[TX]) {
	a, b := orderIn(9, 0), orderIn(9, 1)
	r.insert(event(a, 1), event(b, 1))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{
		Dead: []relay.Failure{r.fail(of(c, a)[0], 0)}, HoldAggregate: true, Sent: of(c, b),
	})
	r.insert(event(a, 2), event(b, 2))
	c = r.claim(leases, 10, 0)
	equalLists(r, "held behind the dead one", keys(c.Events), "held "+string(event(a, 2).Key), string(event(b, 2).Key))
	r.settle(used, 0, relay.Settlement{Aside: of(c, a), Sent: of(c, b)})
	c = r.claim(leases, 10, 1000*time.Hour)
	equal(r, "claimed long after", len(c.Events), 0)
	equal(r, "next due", c.NextDue.IsZero(), true)
}

func deadHeadSkipped[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(events(a, 3)...)
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{Dead: []relay.Failure{r.fail(c.Events[0], 0)}}) // poison at the first attempt
	c = r.claim(leases, 10, 0)
	equalLists(r, "after a skipped poison", keys(c.Events), string(event(a, 2).Key), string(event(a, 3).Key))
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{r.fail(c.Events[0], 0)}, Aside: c.Events[1:]})
	c = r.claim(leases, 10, 0)
	equalLists(r, "the failed head", versions(c.Events), 2)
	r.settle(used, 0, relay.Settlement{Dead: []relay.Failure{r.fail(c.Events[0], 0)}})
	c = r.claim(leases, 10, 0)
	equalLists(r, "after a skipped head", versions(c.Events), 3)
	r.settle(used, 0, settleSent(c.Events))
	r.insert(event(a, 4))
	equalLists(r, "free again", keys(r.claim(leases, 10, 0).Events), string(event(a, 4).Key))
}

func waitingNotRead[TX any](r *rig[TX]) {
	blocked, other := orderIn(11, 0), orderIn(11, 1)
	total, chunk := many, 2_000
	r.insert(event(blocked, 1))
	leases := r.lease("a")
	c := r.claim(leases, 1, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{r.fail(c.Events[0], time.Hour)}})
	for n := 0; n < total; n += chunk {
		var list []convergo.Event
		for i := range chunk {
			list = append(list, event(blocked, n+i+2))
		}
		r.insert(list...)
		c = r.claim(used, chunk, 0)
		equal(r, "held", len(c.Events), chunk)
		r.settle(used, 0, relay.Settlement{Aside: c.Events})
	}
	r.insert(events(other, 3)...)
	c = r.claim(used, 3, 0) // room for three rows: one row of the many read as a candidate would push one of these out
	equalLists(r, "the other's events", versions(of(c, other)), 1, 2, 3)
	equal(r, "more", c.More, false)
	c = r.claim(used, 3, time.Hour)
	equalLists(r, "and of the blocked one its head only", versions(of(c, blocked)), 1)
	r.settle(used, time.Hour, settleSent(c.Events))
	c = r.claim(used, 5, time.Hour)
	equalLists(r, "then the next ones, as many as asked for", versions(c.Events), 2, 3, 4, 5, 6)
	equal(r, "more of the queue", c.More, true)
}

func delayedJoin[TX any](r *rig[TX]) {
	a := orderIn(13, 0)
	late, soon, same := event(a, 1), event(a, 2), event(a, 3)
	late.DeliverAt, soon.DeliverAt, same.DeliverAt = r.base.Add(2*time.Hour), r.base.Add(time.Hour), r.base.Add(time.Hour)
	r.insert(late, soon, same, event(a, 4))
	leases := r.lease("a")
	c := r.claim(leases, 10, time.Hour-time.Microsecond)
	equalLists(r, "before", versions(c.Events), 4)
	equal(r, "next due", c.NextDue.Equal(soon.DeliverAt), true)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, settleSent(c.Events))
	r.insert(event(a, 5))
	c = r.claim(leases, 10, time.Hour)
	equalLists(r, "two are due; they join behind what is there, in order of their times", versions(c.Events), 5, 2, 3)
	equal(r, "next due, then", c.NextDue.Equal(late.DeliverAt), true)
	// A delayed event of a blocked aggregate waits its turn.
	r.settle(used, time.Hour, relay.Settlement{
		Sent: c.Events[:1], Failed: []relay.Failure{r.fail(c.Events[1], 3*time.Hour)}, Aside: c.Events[2:],
	})
	c = r.claim(leases, 10, 2*time.Hour)
	equalLists(r, "due while its aggregate is blocked", keys(c.Events), "held "+string(late.Key))
	r.settle(used, 2*time.Hour, relay.Settlement{Aside: c.Events})
	c = r.claim(leases, 10, 3*time.Hour)
	equalLists(r, "the head", versions(c.Events), 2)
	r.settle(used, 3*time.Hour, settleSent(c.Events))
	equalLists(r, "the rest in order", versions(r.claim(leases, 10, 3*time.Hour).Events), 3, 1)
}

func untouchedStays[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(events(a, 3)...)
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, settleSent(c.Events[:1]))
	after := r.claim(leases, 10, 0)
	equalLists(r, "left", versions(after.Events), 2, 3)
	equal(r, "attempts", after.Events[0].Attempts, 0)
	equal(r, "position", after.Events[0].Seq, c.Events[1].Seq)
}

func repeatedSettlement[TX any](r *rig[TX]) {
	failed, dead, sent, aside := orderIn(20, 0), orderIn(20, 1), orderIn(20, 2), orderIn(20, 3)
	r.insert(event(failed, 1), event(dead, 1), event(sent, 1), event(aside, 1), event(failed, 2))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	s := relay.Settlement{
		Sent: of(c, sent), Aside: append(of(c, aside), of(c, failed)[1]), HoldAggregate: true,
		Failed: []relay.Failure{r.fail(of(c, failed)[0], time.Minute)}, Dead: []relay.Failure{r.fail(of(c, dead)[0], 0)},
	}
	r.settle(used, 0, s)
	want := r.claim(leases, 10, 0)
	later := r.claim(leases, 10, time.Minute)
	r.settle(used, 0, s)
	equalLists(r, "claimed now", keys(r.claim(leases, 10, 0).Events), keys(want.Events)...)
	again := r.claim(leases, 10, time.Minute)
	equalLists(r, "claimed at the retry", keys(again.Events), keys(later.Events)...)
	for i := range again.Events {
		equal(r, "attempts", again.Events[i].Attempts, later.Events[i].Attempts)
	}
	r.settle(used, time.Minute, settleSent(of(want, aside)))
	r.settle(used, time.Minute, s) // and still when the aggregate has gone on
	equal(r, "of the aggregate that has gone on", len(of(r.claim(leases, 10, time.Minute), aside)), 0)
	r.settle(used, time.Minute, relay.Settlement{Failed: []relay.Failure{r.fail(of(later, failed)[0], time.Hour)}})
	r.settle(used, time.Minute, s)
	equal(r, "claimed while the second failure waits", len(of(r.claim(leases, 10, time.Minute), failed)), 0)
	equal(r, "attempts of the one that failed again", of(r.claim(leases, 10, time.Hour), failed)[0].Attempts, 2)
}

func longError[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(event(a, 1))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	f := r.fail(c.Events[0], 0)
	f.Error = "x" + strings.Repeat("é", 5000) // cut by bytes alone it would not be UTF-8, which PostgreSQL refuses
	if !utf8.ValidString(f.Error) {
		r.Fatal("the law's own text is broken")
	}
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{f}})
	c = r.claim(leases, 10, 0)
	f.Pending = c.Events[0]
	f.Error = "\xff not UTF-8 \x00"
	r.settle(used, 0, relay.Settlement{Dead: []relay.Failure{f}})
}

func onlyLeasedLanes[TX any](r *rig[TX]) {
	for lane := range convergo.Lane(4) {
		a := orderIn(lane, 0)
		delayed := event(a, 2)
		delayed.DeliverAt = r.base.Add(time.Hour)
		r.insert(event(a, 1), delayed)
	}
	leases := r.lease("a")
	var some []relay.Lease
	for _, l := range leases {
		if l.Lane == 1 || l.Lane == 3 {
			some = append(some, l)
		}
	}
	c := r.claim(some, 10, time.Hour)
	equal(r, "claimed", len(c.Events), 4)
	for _, p := range c.Events {
		if lane := p.Event.Aggregate.Lane(); lane != 1 && lane != 3 {
			r.Errorf("an event of lane %d", lane)
		}
	}
	none := r.claim(nil, 10, time.Hour)
	equal(r, "claimed without a lease", len(none.Events), 0)
}
