package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

// desk is a store with everything an operator's test needs; it speaks for one relay that holds all lanes.
type desk struct {
	*testing.T
	*sqlite.Store
	ctx    context.Context
	base   time.Time
	leases []relay.Lease
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{T: t, Store: open(t, sqlite.Options{Relaxed: true}), ctx: t.Context(), base: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	leases, err := d.Lease(d.ctx, relay.LeaseRequest{Owner: "r", Term: time.Hour})
	must(t, err)
	d.leases = leases
	return d
}

func aggregate(id string) convergo.Aggregate { return convergo.Aggregate{Type: "order", ID: id} }

// event n of an aggregate, written at base + n minutes.
func (d *desk) event(id string, n int) convergo.Event {
	return convergo.Event{
		MessageID: fmt.Sprintf("m-%s-%d", id, n), Key: convergo.KeyFor("OrderPaid", id, int64(n)), Type: "OrderPaid", Topic: "order",
		Aggregate: aggregate(id), Version: int64(n), Payload: []byte(`{"a":1}`), CreatedAt: d.base.Add(time.Duration(n) * time.Minute),
	}
}

func (d *desk) insert(events ...convergo.Event) {
	d.Helper()
	must(d.T, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := d.Insert(ctx, tx, events)
		return err
	}))
}

func (d *desk) claim() []relay.Pending {
	d.Helper()
	c, err := d.Claim(d.ctx, d.leases, 100, d.base)
	must(d.T, err)
	return c.Events
}

func (d *desk) settle(s relay.Settlement) {
	d.Helper()
	s.Leases, s.Now = d.leases, d.base
	must(d.T, d.Settle(d.ctx, s))
}

func (d *desk) kill(p relay.Pending, hold bool) {
	d.Helper()
	d.settle(relay.Settlement{Dead: []relay.Failure{{Pending: p, Error: "too large", Place: "relay.publish"}}, HoldAggregate: hold})
}

func (d *desk) dead() []ops.DeadEvent {
	d.Helper()
	list, err := d.DeadEvents(d.ctx, 10, 0)
	must(d.T, err)
	return list
}

func versions(events []relay.Pending) string {
	text := ""
	for _, p := range events {
		if p.Held {
			text += "held "
		}
		text += fmt.Sprint(p.Event.Version, " ")
	}
	return text
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestARedrivenEventIsSentBeforeWhatWaitedBehindIt(t *testing.T) {
	d := newDesk(t)
	d.insert(d.event("1", 1), d.event("1", 2))
	c := d.claim()
	d.settle(relay.Settlement{Dead: []relay.Failure{{Pending: c[0], Error: "too large", Place: "relay.publish"}}, Aside: c[1:], HoldAggregate: true})
	same(t, "claimed while held", versions(d.claim()), "")
	dead := d.dead()
	same(t, "dead events", len(dead), 1)
	same(t, "its version", dead[0].Event.Version, 1)
	same(t, "its error", dead[0].Error+" "+dead[0].Place, "too large relay.publish")
	same(t, "its attempts", dead[0].Attempts, 1)
	same(t, "held", dead[0].Held, true)

	woken := 0
	d.OnEvents(func() { woken++ })
	must(t, d.RedriveEvent(d.ctx, dead[0].ID, "ann", "", d.base))
	same(t, "wake-ups", woken, 1)
	c = d.claim()
	same(t, "claimed after the redrive", versions(c), "1 2 ")
	same(t, "attempts", c[0].Attempts, 0)
	d.settle(relay.Settlement{Sent: c})
	d.insert(d.event("1", 3))
	same(t, "free again", versions(d.claim()), "3 ")
	same(t, "dead events in the end", len(d.dead()), 0)
	if err := d.RedriveEvent(d.ctx, dead[0].ID, "ann", "", d.base); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("a second redrive: %v", err)
	}
}

func TestOfTwoDeadEventsOfAnAggregateTheEarlierGoesFirst(t *testing.T) {
	d := newDesk(t)
	d.insert(d.event("1", 1), d.event("1", 2), d.event("2", 7))
	for _, version := range []int64{1, 2} {
		for _, p := range d.claim() {
			if p.Event.Version == version {
				d.kill(p, false)
			}
		}
	}
	dead := d.dead()
	same(t, "dead events", len(dead), 2)
	if err := d.RedriveEvent(d.ctx, dead[1].ID, "ann", "", d.base); !errors.Is(err, ops.ErrEarlierDead) {
		t.Errorf("redriving the later one first: %v", err)
	}
	must(t, d.RedriveEvent(d.ctx, dead[0].ID, "ann", "", d.base))
	must(t, d.RedriveEvent(d.ctx, dead[1].ID, "ann", "", d.base))
	text := ""
	for _, p := range d.claim() {
		if p.Event.Aggregate.ID == "1" {
			text += fmt.Sprint(p.Event.Version, " ")
		}
	}
	same(t, "claimed", text, "1 2 ")
}

func TestADiscardedEventIsNeverSentAndItsQueueGoesOn(t *testing.T) {
	d := newDesk(t)
	d.insert(d.event("1", 1), d.event("1", 2))
	c := d.claim()
	d.settle(relay.Settlement{Dead: []relay.Failure{{Pending: c[0]}}, Aside: c[1:], HoldAggregate: true})
	must(t, d.DiscardEvent(d.ctx, d.dead()[0].ID, "ann", "wrong amount", d.base))
	same(t, "claimed", versions(d.claim()), "2 ")
	d.settle(relay.Settlement{Sent: d.claim()})
	n, err := d.Replay(d.ctx, d.base.Add(-time.Hour), d.base)
	must(t, err)
	same(t, "replayed", n, 1) // not the discarded one
	var by string
	must(t, d.View(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT discarded_by || ': ' || reason FROM outbox_discarded").Scan(&by)
	}))
	same(t, "on record", by, "ann: wrong amount")
}

func TestReplaySendsAgainWhatWasSentSinceThenAndNothingElse(t *testing.T) {
	d := newDesk(t)
	d.insert(d.event("1", 1), d.event("2", 2), d.event("3", 3), d.event("4", 4))
	d.settle(relay.Settlement{Sent: d.claim()})
	delayed := d.event("5", 5)
	delayed.DeliverAt = d.base.Add(time.Hour)
	d.insert(delayed, d.event("6", 6), d.event("7", 7))
	for _, p := range d.claim() {
		if p.Event.Version == 7 {
			d.kill(p, true)
		}
	}
	n, err := d.Replay(d.ctx, d.base.Add(3*time.Minute), d.base)
	must(t, err)
	same(t, "replayed", n, 2)
	seen := map[int64]int{}
	for _, p := range d.claim() {
		seen[p.Event.Version]++
	}
	same(t, "pending", fmt.Sprint(seen), "map[3:1 4:1 6:1]")
	n, err = d.Replay(d.ctx, d.base, d.base)
	must(t, err)
	same(t, "replayed again: what is pending is not made pending twice", n, 2) // 1 and 2
	n, err = d.Replay(d.ctx, d.base.Add(time.Hour), d.base)
	must(t, err)
	same(t, "replayed since later", n, 0)
}

func (d *desk) park(f inbox.Failure, hold bool) {
	d.Helper()
	must(d.T, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := d.Bury(ctx, tx, "stock", f, hold, d.base)
		return err
	}))
}

func (d *desk) letters() []ops.DeadLetter {
	d.Helper()
	list, err := d.DeadLetters(d.ctx, "stock", 10, "")
	must(d.T, err)
	return list
}

// queue is the versions that are due, of one aggregate.
func (d *desk) queue() (text string) {
	d.Helper()
	due, _, err := d.Due(d.ctx, "stock", 10, d.base)
	must(d.T, err)
	for _, a := range due {
		must(d.T, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
			messages, err := d.Queue(ctx, tx, "stock", a, 10, d.base)
			for _, m := range messages {
				text += fmt.Sprint(m.Event.Version, " ")
			}
			return err
		}))
	}
	return text
}

func (d *desk) marked(e convergo.Event) (m inbox.Marked) {
	d.Helper()
	must(d.T, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		m, err = d.Mark(ctx, tx, "stock", e, false, d.base)
		return err
	}))
	return m
}

func TestARedrivenLetterIsAppliedBeforeWhatWaitedBehindIt(t *testing.T) {
	d := newDesk(t)
	first := d.event("1", 1)
	d.park(inbox.Failure{Event: first, Attempts: 16, Error: "no stock row", Place: "handler"}, true)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return errors.Join(d.Enqueue(ctx, tx, "stock", d.event("1", 2), d.base), d.Enqueue(ctx, tx, "stock", d.event("1", 3), d.base))
	}))
	same(t, "due while held", d.queue(), "")
	l := d.letters()
	same(t, "letters", len(l), 1)
	same(t, "letter", fmt.Sprint(l[0].Consumer, l[0].Attempts, l[0].Error, l[0].Place, l[0].State, l[0].Held, l[0].Event.Key), "stock16no stock rowhandlerOPENtrueOrderPaid:1:v1")
	must(t, d.RedriveLetter(d.ctx, l[0].ID, "ann", "", d.base))
	same(t, "due after the redrive", d.queue(), "1 2 3 ")
	same(t, "its mark is gone", d.marked(first), inbox.Fresh)
	same(t, "open letters", len(d.letters()), 0)
	if err := d.RedriveLetter(d.ctx, l[0].ID, "ann", "", d.base); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("a second redrive: %v", err)
	}
	if err := d.DiscardLetter(d.ctx, "nobody", "ann", "", d.base); !errors.Is(err, ops.ErrNotFound) {
		t.Errorf("an unknown id: %v", err)
	}
}

func TestOfTwoDeadLettersOfAnAggregateTheEarlierGoesFirst(t *testing.T) {
	d := newDesk(t)
	d.park(inbox.Failure{Event: d.event("1", 1)}, false)
	d.park(inbox.Failure{Event: d.event("1", 2)}, false)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return d.Fail(ctx, tx, "stock", inbox.Failure{Event: d.event("1", 3), Attempts: 1, Next: d.base}, d.base)
	}))
	l := d.letters()
	if err := d.RedriveLetter(d.ctx, l[1].ID, "ann", "", d.base); !errors.Is(err, ops.ErrEarlierDead) {
		t.Errorf("redriving the later one first: %v", err)
	}
	must(t, d.RedriveLetter(d.ctx, l[0].ID, "ann", "", d.base))
	must(t, d.RedriveLetter(d.ctx, l[1].ID, "ann", "", d.base))
	same(t, "due", d.queue(), "1 2 3 ")
	after, err := d.DeadLetters(d.ctx, "", 10, l[0].ID)
	must(t, err)
	same(t, "open letters", len(after), 0)
}

func TestADiscardedLetterStaysDoneAndItsQueueGoesOn(t *testing.T) {
	d := newDesk(t)
	d.park(inbox.Failure{Event: d.event("1", 1)}, true)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return d.Enqueue(ctx, tx, "stock", d.event("1", 2), d.base)
	}))
	must(t, d.DiscardLetter(d.ctx, d.letters()[0].ID, "ann", "test order", d.base))
	same(t, "due", d.queue(), "2 ")
	same(t, "its mark stays", d.marked(d.event("1", 1)), inbox.Duplicate)
}

func TestTheBacklogCountsEveryUnfinishedRow(t *testing.T) {
	d := newDesk(t)
	b, err := d.Backlog(d.ctx, d.base)
	must(t, err)
	same(t, "of an empty store", b, ops.Backlog{})
	due, later := d.event("5", 5), d.event("6", 6)
	due.DeliverAt, later.DeliverAt = d.base.Add(-time.Second), d.base.Add(time.Hour)
	d.insert(d.event("1", 1), d.event("2", 2), d.event("3", 3), d.event("4", 4), later)
	c := d.claim()
	settled := relay.Settlement{HoldAggregate: true}
	for _, p := range c {
		switch p.Event.Version {
		case 2:
			settled.Failed = []relay.Failure{{Pending: p, Next: d.base.Add(time.Hour)}}
		case 3:
			settled.Dead = []relay.Failure{{Pending: p}}
		case 4:
			settled.Sent = []relay.Pending{p}
		}
	}
	d.settle(settled)
	d.insert(due)
	d.park(inbox.Failure{Event: d.event("1", 1)}, true)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err1 := d.Calls().Add(ctx, tx, outside.Call{Kind: "k", Key: "1"}, d.base)
		_, err2 := d.Calls().Add(ctx, tx, outside.Call{Kind: "k", Key: "2", NotBefore: d.base.Add(time.Hour)}, d.base)
		return errors.Join(err1, err2, d.Enqueue(ctx, tx, "stock", d.event("1", 2), d.base))
	}))
	calls, _, err := d.Calls().Claim(d.ctx, []string{"k"}, time.Minute, 1, d.base)
	must(t, err)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := d.Calls().Finish(ctx, tx, calls[0], outside.Outcome{State: outside.Failed}, d.base)
		return err
	}))
	b, err = d.Backlog(d.ctx, d.base)
	must(t, err)
	minute := func(n int) time.Time { return d.base.Add(time.Duration(n) * time.Minute) }
	same(t, "backlog", b, ops.Backlog{
		Pending: ops.Queue{Count: 1, Since: minute(1)}, DelayedDue: ops.Queue{Count: 1, Since: due.DeliverAt}, Delayed: ops.Queue{Count: 1, Since: minute(6)},
		Waiting: ops.Queue{Count: 1, Since: minute(2)}, Dead: ops.Queue{Count: 1, Since: d.base},
		InboxWait: ops.Queue{Count: 1, Since: d.base}, InboxDead: ops.Queue{Count: 1, Since: d.base},
		CallsOpen: ops.Queue{Count: 1, Since: d.base}, CallsFailed: ops.Queue{Count: 1, Since: d.base},
	})
}

func TestPurgesRemoveWhatIsOldAndFinishedAndNothingElse(t *testing.T) {
	d := newDesk(t)
	for n := range 6 {
		d.insert(d.event(fmt.Sprint(n), n))
	}
	delayed := d.event("9", 1)
	delayed.DeliverAt = d.base.Add(time.Hour)
	d.insert(delayed)
	settled := relay.Settlement{HoldAggregate: true}
	for _, p := range d.claim() {
		switch v := p.Event.Version; v {
		case 0:
			settled.Dead = []relay.Failure{{Pending: p}}
		case 1:
			settled.Failed = []relay.Failure{{Pending: p, Next: d.base.Add(time.Hour)}}
		case 2: // stays pending
		default:
			settled.Sent = append(settled.Sent, p)
		}
	}
	d.settle(settled)
	left := func() (n int) {
		must(t, d.View(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_event").Scan(&n)
		}))
		return n
	}
	for _, want := range []int{1, 1, 0} { // 3 and 4; 5 is too young
		n, err := d.PurgeSent(d.ctx, d.base.Add(5*time.Minute), 1)
		must(t, err)
		same(t, "purged", n, want)
	}
	same(t, "left", left(), 5)
	n, err := d.PurgeSent(d.ctx, d.base.Add(time.Hour), 100)
	must(t, err)
	same(t, "purged, with the young one", n, 1)
	same(t, "left then", left(), 4)

	old, young := d.event("a", 1), d.event("b", 1)
	d.marked(old)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := d.Mark(ctx, tx, "stock", young, false, d.base.Add(time.Hour))
		return err
	}))
	n, err = d.PurgeMarks(d.ctx, d.base.Add(time.Minute), 10)
	must(t, err)
	same(t, "marks purged", n, 1)
	same(t, "the old one", d.marked(old), inbox.Fresh)
	same(t, "the young one", d.marked(young), inbox.Duplicate)

	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		for _, key := range []string{"1", "2", "3"} {
			if _, err := d.Calls().Add(ctx, tx, outside.Call{Kind: "k", Key: convergo.Key(key)}, d.base); err != nil {
				return err
			}
		}
		return nil
	}))
	calls, _, err := d.Calls().Claim(d.ctx, []string{"k"}, time.Minute, 2, d.base)
	must(t, err)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err1 := d.Calls().Finish(ctx, tx, calls[0], outside.Outcome{State: outside.Failed}, d.base)
		_, err2 := d.Calls().Finish(ctx, tx, calls[1], outside.Outcome{State: outside.Done}, d.base)
		return errors.Join(err1, err2)
	}))
	n, err = d.PurgeCalls(d.ctx, d.base.Add(time.Hour), 10)
	must(t, err)
	same(t, "calls purged", n, 2)
	b, err := d.Backlog(d.ctx, d.base)
	must(t, err)
	same(t, "open calls", b.CallsOpen.Count, 1)
}
