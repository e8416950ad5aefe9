package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
)

func retentionLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a purge removes what was sent or discarded and is old, in chunks, and nothing else", purgeSent[TX]},
		{"an event that is not sent stays, however old it is", unsentStays[TX]},
		{"a purge beside replays, failures and redrives loses nothing", purgeBeside[TX]},
		{"ids and positions are never used again (B59)", idsNotReused[TX]},
		{"a purge of marks removes old ones only, and none of an open dead letter", purgeMarks[TX]},
		{"a purge of requests and of calls removes finished old ones only", purgeFinished[TX]},
	}
}

// purgeSent: of every state an event can be in there is one that is old; only the sent and the discarded one may go.
func purgeSent[TX any](r *rig[TX]) {
	day := 24 * time.Hour
	old := func(id string, n int) convergo.Event {
		e := event(order(id), n)
		e.CreatedAt = r.base.Add(-10 * day)
		return e
	}
	for n := range 5 {
		r.insert(old("sent", n+1))
	}
	young := event(order("sent"), 6)
	young.CreatedAt = r.base.Add(-day)
	r.insert(young, old("dead", 1), old("discarded", 1), old("failed", 1), old("failed", 2))
	leases := r.lease("a")
	c := r.claim(leases, 100, 0)
	s := settleSent(of(c, order("sent")))
	s.Dead = []relay.Failure{r.fail(of(c, order("dead"))[0], 0), r.fail(of(c, order("discarded"))[0], 0)}
	s.Failed, s.Aside = []relay.Failure{r.fail(of(c, order("failed"))[0], time.Hour)}, of(c, order("failed"))[1:]
	used := inLanes(leases, c.Events)
	r.settle(used, 0, s)
	r.must(r.Operators.DiscardEvent(r.ctx, r.deadEvents()[1].ID, "ann", "", r.base))
	delayed := old("delayed", 1)
	delayed.DeliverAt = r.base.Add(time.Hour)
	r.insert(old("pending", 1), delayed)

	purge := func(most int) int {
		n, err := r.Operators.PurgeSent(r.ctx, r.base.Add(-5*day), most)
		r.must(err)
		return n
	}
	equal(r, "first chunk", purge(4), 4)
	equal(r, "second chunk", purge(4), 2)
	equal(r, "third chunk", purge(4), 0)
	dead := r.deadEvents()
	equal(r, "dead events", len(dead), 1)
	r.must(r.Operators.RedriveEvent(r.ctx, dead[0].ID, "ann", "", r.base))
	c = r.claim(leases, 100, time.Hour)
	equal(r, "claimed: redriven, failed, pending, delayed", len(c.Events), 4)
	n, err := r.Operators.Replay(r.ctx, time.Time{}, r.base)
	r.must(err)
	equal(r, "left to replay: the young one", n, 1)
}

// unsentStays: events of every state that is not sent, all older than the horizon; each goes out in the end.
func unsentStays[TX any](r *rig[TX]) {
	leases := r.lease("a")
	var want []string
	write := func(id string, n int, deliver time.Duration) {
		e := event(order(id), n)
		e.CreatedAt = r.base.Add(-1000 * time.Hour)
		if deliver != 0 {
			e.DeliverAt = r.base.Add(deliver)
		}
		r.insert(e)
		want = append(want, string(e.Key))
	}
	for n := range 3 {
		write("failed", n+1, 0)
		write("held", n+1, 0)
	}
	write("skipped", 1, 0)
	write("redriven", 1, 0)
	c := r.claim(leases, 100, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{
		Failed: []relay.Failure{r.fail(of(c, order("failed"))[0], time.Minute)},
		Aside:  slices.Concat(of(c, order("failed"))[1:], of(c, order("held"))[1:]),
		Dead:   []relay.Failure{r.fail(of(c, order("held"))[0], 0), r.fail(of(c, order("redriven"))[0], 0)}, HoldAggregate: true,
	})
	r.settle(used, 0, relay.Settlement{Dead: []relay.Failure{r.fail(of(c, order("skipped"))[0], 0)}})
	for _, d := range r.deadEvents() {
		if d.Event.Aggregate == order("redriven") {
			r.must(r.Operators.RedriveEvent(r.ctx, d.ID, "ann", "", r.base))
		}
	}
	write("failed", 4, 0) // in the lane of a blocked aggregate
	write("pending", 1, 0)
	write("delayed", 1, time.Hour)
	write("due", 1, -time.Hour)

	n, err := r.Operators.PurgeSent(r.ctx, r.base.Add(1000*time.Hour), 100)
	r.must(err)
	equal(r, "purged", n, 0)
	for _, d := range r.deadEvents() {
		r.must(r.Operators.RedriveEvent(r.ctx, d.ID, "ann", "", r.base))
	}
	slices.Sort(want)
	equalLists(r, "sent", slices.Sorted(slices.Values(r.drain(leases, 2*time.Hour))), want...)
	n, err = r.Operators.PurgeSent(r.ctx, r.base.Add(1000*time.Hour), 100)
	r.must(err)
	equal(r, "purged when all was sent", n, len(want))
}

// drain sends everything that can be claimed at base+after, and returns the keys.
func (r *rig[TX]) drain(leases []relay.Lease, after time.Duration) (sent []string) {
	r.Helper()
	for {
		c := r.claim(leases, 100, after)
		if len(c.Events) == 0 {
			return sent
		}
		var s relay.Settlement
		for _, p := range c.Events {
			if p.Held {
				s.Aside = append(s.Aside, p)
				continue
			}
			s.Sent = append(s.Sent, p)
			sent = append(sent, string(p.Event.Key))
		}
		r.settle(inLanes(leases, c.Events), after, s)
	}
}

// purgeBeside: what a replay makes pending again fails, waits, dies and is redriven while purges run. The horizon is above all of
// it, so that only its state protects an event. In every other round the purges begin before the replay, and may leave it nothing.
func purgeBeside[TX any](r *rig[TX]) {
	leases := r.lease("a")
	for round := range 4 {
		var list []convergo.Event
		for n := range 60 {
			list = append(list, event(order(fmt.Sprint(round, "-", n%12)), n/12+1))
		}
		r.insert(list...)
		r.drain(leases, 0)
		stop := make(chan struct{})
		var purges sync.WaitGroup
		purge := func() {
			for {
				if _, err := r.Operators.PurgeSent(r.ctx, r.base.Add(time.Hour), 7); err != nil {
					r.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}
		before := round%2 == 1
		if before {
			purges.Go(purge)
		}
		_, err := r.Operators.Replay(r.ctx, time.Time{}, r.base)
		r.must(err)
		if !before {
			purges.Go(purge)
		}
		replayed := map[string]int{}
		c := r.claim(leases, 1000, 0)
		s, blocked := relay.Settlement{}, map[convergo.Aggregate]bool{}
		for _, p := range c.Events {
			replayed[string(p.Event.Key)]++
			if blocked[p.Event.Aggregate] {
				s.Aside = append(s.Aside, p)
				continue
			}
			blocked[p.Event.Aggregate] = true
			s.Failed = append(s.Failed, r.fail(p, 0))
		}
		r.settle(inLanes(leases, c.Events), 0, s)
		r.killEvents(leases, true)
		for _, d := range r.deadEvents() {
			r.must(r.Operators.RedriveEvent(r.ctx, d.ID, "ann", "", r.base))
		}
		sent := map[string]int{}
		for _, key := range r.drain(leases, 0) {
			sent[key]++
		}
		close(stop)
		purges.Wait()
		if !maps.Equal(sent, replayed) || !before && len(replayed) < len(list) {
			r.Errorf("round %d: %d events were pending again, %d of them were sent", round, len(replayed), len(sent))
		}
	}
}

func idsNotReused[TX any](r *rig[TX]) {
	leases := r.lease("a")
	a := order("1")
	lastID, lastSeq := int64(0), int64(0)
	for n := range 4 {
		e := event(a, n+1)
		e.CreatedAt = r.base.Add(-time.Hour)
		r.insert(e)
		c := r.claim(leases, 10, 0)
		if seq := c.Events[0].Seq; seq <= lastSeq {
			r.Errorf("position %d after %d", seq, lastSeq)
		}
		lastSeq = c.Events[0].Seq
		r.killEvents(leases, false)
		id := r.deadEvents()[0].ID
		if id <= lastID {
			r.Errorf("id %d after %d, which was purged", id, lastID)
		}
		lastID = id
		r.must(r.Operators.DiscardEvent(r.ctx, id, "ann", "", r.base))
		purged, err := r.Operators.PurgeSent(r.ctx, r.base, 100)
		r.must(err)
		equal(r, "purged", purged, 1)
		if n == 1 && r.Reopen != nil {
			r.Backend = withOperators(r.T, r.Reopen(r.T))
		}
	}
}

func purgeMarks[TX any](r *rig[TX]) {
	for n := 4; n >= 0; n-- { // the oldest first, as in life: a store may rely on it
		r.update(func(ctx context.Context, tx TX) error {
			at := r.base.Add(-time.Duration(n) * time.Hour)
			_, err := r.Inbox.Mark(ctx, tx, consumer, event(order(fmt.Sprint(n)), 1), true, at)
			return err
		})
	}
	purge := func(most int) int {
		n, err := r.Operators.PurgeMarks(r.ctx, r.base.Add(-90*time.Minute), most)
		r.must(err)
		return n
	}
	equal(r, "first chunk", purge(2), 2)
	equal(r, "second chunk", purge(2), 1)
	equal(r, "third chunk", purge(2), 0)
	equal(r, "a young mark", r.mark(consumer, event(order("1"), 1), true), inbox.Duplicate)
	equal(r, "an old mark is gone", r.mark(consumer, event(order("4"), 1), false), inbox.Fresh)
	// What waits is not a mark's matter: it stays.
	r.failMessage(consumer, event(order("q"), 1), 1, 0)
	r.bury(consumer, event(order("d"), 1), 1, true)
	_, err := r.Operators.PurgeMarks(r.ctx, r.base.Add(time.Hour), 1000)
	r.must(err)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "queue", queuedVersions(queues["q"]), 1)
	equal(r, "open letters", len(r.letters(consumer)), 1)
	// Nor the mark of an open letter: a copy that comes meanwhile would be applied, and the redriven letter once more.
	for n := range 5 {
		r.bury(consumer, event(order(fmt.Sprint("skipped", n)), 1), 1, false)
	}
	r.mark(consumer, event(order("last"), 1), false)
	n, err := r.Operators.PurgeMarks(r.ctx, r.base.Add(time.Hour), 3)
	r.must(err)
	equal(r, "purged beside open letters", n, 1)
	equal(r, "the mark behind them is gone", r.mark(consumer, event(order("last"), 1), false), inbox.Fresh)
	equal(r, "a copy of an open letter", r.mark(consumer, event(order("skipped0"), 1), false), inbox.Duplicate)
	r.must(r.Operators.DiscardLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "test", r.base))
	_, err = r.Operators.PurgeMarks(r.ctx, r.base.Add(time.Hour), 1000)
	r.must(err)
	equal(r, "the mark of a closed letter leaves", r.mark(consumer, event(order("d"), 1), false), inbox.Fresh)
}

func purgeFinished[TX any](r *rig[TX]) {
	old, young := r.request("s", "old"), r.request("s", "young")
	old.At = r.base.Add(-2 * time.Hour)
	r.record(old)
	r.record(young)
	n, err := r.Operators.PurgeRequests(r.ctx, r.base.Add(-time.Hour), 10)
	r.must(err)
	equal(r, "purged requests", n, 1)
	equal(r, "the young one is there", r.find("s", "young") != nil, true)
	equal(r, "the old one's key is free", r.record(old), true)

	r.add(call(1), call(2), call(3), call(4))
	list := r.claimCalls(0)
	r.finish(list[0], outside.Outcome{State: outside.Done})
	r.finish(list[1], outside.Outcome{State: outside.Failed})
	r.finish(list[2], outside.Outcome{State: outside.Waiting, Next: r.base})
	purge := func(before time.Duration) int {
		n, err := r.Operators.PurgeCalls(r.ctx, r.base.Add(before), 10)
		r.must(err)
		return n
	}
	equal(r, "purged calls, none is old", purge(0), 0)
	equal(r, "purged calls: done and refused", purge(time.Hour), 2)
	r.must(r.ExpireLeases(r.ctx))
	equal(r, "calls left", len(r.claimCalls(time.Hour)), 2)
}
