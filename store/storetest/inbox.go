package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

func inboxLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a mark is fresh once per consumer and key (B19)", markOnce[TX]},
		{"a mark rolls back with its transaction and with its savepoint (B22)", markRollsBack[TX]},
		{"of many who mark at once, one is fresh and its effect is there once", oneMarks[TX]},
		{"the same key with another payload is a mismatch", mismatch[TX]},
		{"keys that a collation calls equal are marked apart (B47)", marksAreBytes[TX]},
		{"a version not above the last marked one of its aggregate is stale, when asked", stale[TX]},
		{"a failed message heads its queue", failedHeads[TX]},
		{"redelivered messages are queued once", queuedOnce[TX]},
		{"a key used again for another payload or aggregate waits apart, and neither is lost", sameKeyWaitsApart[TX]},
		{"a head that has failed comes alone, then the others in order", headAlone[TX]},
		{"after a trial one that is only suspected is due at once, one that has failed is not", suspectsFollow[TX]},
		{"queues of other aggregates and consumers do not wait", queuesApart[TX]},
		{"what waits comes out byte for byte", queuedBytes[TX]},
		{"a buried message is done with; with hold its aggregate waits for a person", buryHolds[TX]},
		{"a buried message lets its aggregate go on when asked to", burySkips[TX]},
		{"parking rolls back with its transaction", parkingRollsBack[TX]},
	}
}

// consumer is the name under which most laws consume.
const consumer = "stock"

func (r *rig[TX]) mark(name string, e convergo.Event, refuseStale bool) (m inbox.Marked) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) (err error) {
		m, err = r.Inbox.Mark(ctx, tx, name, e, refuseStale, r.base)
		return err
	})
	return m
}

func markOnce[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	equal(r, "first", r.mark("stock", e, false), inbox.Fresh)
	equal(r, "again", r.mark("stock", e, false), inbox.Duplicate)
	equal(r, "another consumer", r.mark("points", e, false), inbox.Fresh)
	equal(r, "another consumer again", r.mark("points", e, false), inbox.Duplicate)
	copied := e
	copied.MessageID = "another copy" // B27: what makes it the same is its key
	equal(r, "another copy", r.mark("stock", copied, false), inbox.Duplicate)
	equal(r, "another event", r.mark("stock", event(order("1"), 2), false), inbox.Fresh)
	action := e // of inbox.Once: longer than an event's key may be, and with a character that none has
	action.Key = convergo.Key("once\x1f" + strings.Repeat("a", 255) + "\x1f" + strings.Repeat("k", 255))
	equal(r, "an action", r.mark("stock", action, false), inbox.Fresh)
	equal(r, "the action again", r.mark("stock", action, false), inbox.Duplicate)
	r.update(func(ctx context.Context, tx TX) error { // two copies in one batch, one commit
		third := event(order("1"), 3)
		first, err := r.Inbox.Mark(ctx, tx, "stock", third, false, r.base)
		second, again := r.Inbox.Mark(ctx, tx, "stock", third, false, r.base)
		equal(r, "first of the batch", first, inbox.Fresh)
		equal(r, "second of the batch", second, inbox.Duplicate)
		return errors.Join(err, again, r.Add(ctx, tx, "n", 1))
	})
	equal(r, "an effect after a duplicate", r.value("n"), 1)
}

func markRollsBack[TX any](r *rig[TX]) {
	a, b := event(order("1"), 1), event(order("2"), 1)
	work := func(ctx context.Context, tx TX, e convergo.Event, fail error) error {
		m, err := r.Inbox.Mark(ctx, tx, consumer, e, true, r.base)
		equal(r, "mark", m, inbox.Fresh)
		return errors.Join(err, r.Add(ctx, tx, "n", 1), fail)
	}
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error { return work(ctx, tx, a, errWanted) })
	r.update(func(ctx context.Context, tx TX) error { // one failing message does not take its batch along
		_ = r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error { return work(ctx, tx, a, errWanted) })
		return r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error { return work(ctx, tx, b, nil) })
	})
	equal(r, "effects", r.value("n"), 1)
	r.update(func(ctx context.Context, tx TX) error { return work(ctx, tx, a, nil) })
	equal(r, "effects in the end", r.value("n"), 2)
}

func oneMarks[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	var group sync.WaitGroup
	var fresh atomic.Int64
	for range 16 {
		group.Go(func() {
			var m inbox.Marked
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) (err error) {
				if m, err = r.Inbox.Mark(ctx, tx, consumer, e, true, r.base); err != nil || m != inbox.Fresh {
					return err
				}
				return r.Add(ctx, tx, "n", 1)
			})
			if err != nil {
				r.Error(err)
			} else if m == inbox.Fresh {
				fresh.Add(1)
			}
		})
	}
	group.Wait()
	equal(r, "fresh marks", fresh.Load(), 1)
	equal(r, "effects", r.value("n"), 1)
}

func mismatch[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	r.mark(consumer, e, false)
	other := e
	other.Payload = []byte(`{"n": 1}`)
	equal(r, "one blank more", r.mark(consumer, other, false), inbox.Mismatch)
	equal(r, "another consumer knows nothing of it", r.mark("points", other, false), inbox.Fresh)
	equal(r, "the first payload again", r.mark(consumer, e, false), inbox.Duplicate)
	empty := event(order("1"), 2)
	empty.Payload = nil
	equal(r, "no payload", r.mark(consumer, empty, false), inbox.Fresh)
	empty.Payload = []byte{}
	equal(r, "an empty payload is no other", r.mark(consumer, empty, false), inbox.Duplicate)
}

func marksAreBytes[TX any](r *rig[TX]) {
	for n, k := range []convergo.Key{"Pay-7f", "pay-7F", "café-1", "cafe-1", "😀", "😡", "１", "1", "ß", "ss"} {
		e := event(convergo.Aggregate{Type: "pay", ID: string(k)}, n+1)
		e.Key = k
		equal(r, fmt.Sprintf("mark of %q", k), r.mark(consumer, e, true), inbox.Fresh)
	}
	e := event(order("1"), 1)
	equal(r, "consumer in lower case", r.mark("stock", e, false), inbox.Fresh)
	equal(r, "consumer in upper case", r.mark("STOCK", e, false), inbox.Fresh)
}

func stale[TX any](r *rig[TX]) {
	a := order("1")
	equal(r, "version 5", r.mark(consumer, event(a, 5), true), inbox.Fresh)
	equal(r, "version 3, later", r.mark(consumer, event(a, 3), true), inbox.Stale)
	equal(r, "version 3, again", r.mark(consumer, event(a, 3), true) != inbox.Fresh, true)
	same := event(a, 5)
	same.Key = "another key of version 5"
	equal(r, "version 5 under another key", r.mark(consumer, same, true), inbox.Stale)
	equal(r, "version 5, a duplicate", r.mark(consumer, event(a, 5), true), inbox.Duplicate)
	equal(r, "version 6", r.mark(consumer, event(a, 6), true), inbox.Fresh)
	equal(r, "version 4, when not asked to refuse", r.mark(consumer, event(a, 4), false), inbox.Fresh)
	same.Key = "a third of version 5"
	equal(r, "version 6 is still the last", r.mark(consumer, same, true), inbox.Stale)
	equal(r, "another aggregate", r.mark(consumer, event(order("2"), 1), true), inbox.Fresh)
	equal(r, "another consumer", r.mark("points", event(a, 3), true), inbox.Fresh)
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		_, err := r.Inbox.Mark(ctx, tx, consumer, event(a, 9), true, r.base)
		return errors.Join(err, errWanted)
	})
	equal(r, "version 7 after a rolled-back 9", r.mark(consumer, event(a, 7), true), inbox.Fresh)
	none := event(order("3"), 0)
	equal(r, "an event without a version", r.mark(consumer, none, true), inbox.Fresh)
	none.Key = "another without a version"
	equal(r, "and another", r.mark(consumer, none, true), inbox.Fresh)
}

// failMessage records a failed attempt, due again at base+next.
func (r *rig[TX]) failMessage(name string, e convergo.Event, attempts int, next time.Duration) {
	r.Helper()
	f := inbox.Failure{Event: e, Attempts: attempts, Error: "no stock row", Place: "handler", Next: r.base.Add(next)}
	r.update(func(ctx context.Context, tx TX) error { return r.Parking.Fail(ctx, tx, name, f, r.base) })
}

func (r *rig[TX]) enqueue(name string, list ...convergo.Event) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		for _, e := range list {
			if err := r.Parking.Enqueue(ctx, tx, name, e, r.base); err != nil {
				return err
			}
		}
		return nil
	})
}

// dequeue applies a message at base+at: marked and out of its queue in one transaction.
func (r *rig[TX]) dequeue(name string, e convergo.Event, at time.Duration) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		m, err := r.Inbox.Mark(ctx, tx, name, e, false, r.base.Add(at))
		equal(r, "mark of a queued message", m, inbox.Fresh)
		return errors.Join(err, r.Parking.Dequeue(ctx, tx, name, e, r.base.Add(at)))
	})
}

func (r *rig[TX]) bury(name string, e convergo.Event, attempts int, hold bool) {
	r.Helper()
	f := inbox.Failure{Event: e, Attempts: attempts, Error: "bad payload", Place: "handler"}
	r.update(func(ctx context.Context, tx TX) error {
		buried, err := r.Parking.Bury(ctx, tx, name, f, hold, r.base)
		equal(r, "buried", buried, true)
		return err
	})
}

func (r *rig[TX]) blocked(name string, a convergo.Aggregate) (blocked bool) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		answer, err := r.Parking.Blocked(ctx, tx, name, []convergo.Aggregate{order("nobody"), a})
		blocked = answer[a]
		if answer[order("nobody")] {
			r.Error("an aggregate that nobody knows is blocked")
		}
		return err
	})
	return blocked
}

// due is what is in each due queue at base+at, by the aggregate's id.
func (r *rig[TX]) due(name string, at time.Duration) (map[string][]inbox.Queued, time.Time) {
	r.Helper()
	aggregates, next, err := r.Parking.Due(r.ctx, name, 100, r.base.Add(at))
	r.must(err)
	found := map[string][]inbox.Queued{}
	for _, a := range aggregates {
		messages := r.queue(name, a, 100, at)
		if _, twice := found[a.ID]; twice || len(messages) == 0 {
			r.Errorf("queue of %s comes twice or empty", a)
		}
		for _, m := range messages {
			if m.Event.Aggregate != a {
				r.Errorf("event %s is in the queue of %s", m.Event.Key, a)
			}
		}
		found[a.ID] = messages
	}
	return found, next
}

// queue is what a transaction that takes the aggregate's queue at base+at finds in it.
func (r *rig[TX]) queue(name string, a convergo.Aggregate, most int, at time.Duration) (messages []inbox.Queued) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) (err error) {
		messages, err = r.Parking.Queue(ctx, tx, name, a, most, r.base.Add(at))
		return err
	})
	return messages
}

func queuedVersions(list []inbox.Queued) (versions []int64) {
	for _, m := range list {
		versions = append(versions, m.Event.Version)
	}
	return versions
}

func failedHeads[TX any](r *rig[TX]) {
	a := order("1")
	equal(r, "blocked at first", r.blocked(consumer, a), false)
	r.failMessage(consumer, event(a, 1), 1, time.Minute)
	equal(r, "blocked", r.blocked(consumer, a), true)
	r.enqueue(consumer, event(a, 2), event(a, 3))
	queues, next := r.due(consumer, time.Minute-time.Microsecond)
	equal(r, "queues before the retry", len(queues), 0)
	equal(r, "next due", next.Equal(r.base.Add(time.Minute)), true)
	queues, _ = r.due(consumer, time.Minute)
	equalLists(r, "due", queuedVersions(queues["1"]), 1)
	equal(r, "attempts", queues["1"][0].Attempts, 1)
	equal(r, "error", queues["1"][0].LastError, "no stock row")
	r.failMessage(consumer, event(a, 1), 2, time.Hour)
	queues, next = r.due(consumer, 2*time.Minute)
	equal(r, "queues after a second failure", len(queues), 0)
	equal(r, "next due then", next.Equal(r.base.Add(time.Hour)), true)
	queues, _ = r.due(consumer, time.Hour)
	equal(r, "attempts then", queues["1"][0].Attempts, 2)
	r.failMessage(consumer, event(a, 9), 1, 0) // not queued, and tried all the same: it heads the queue now
	queues, _ = r.due(consumer, 0)
	equalLists(r, "due after one that was not queued failed", queuedVersions(queues["1"]), 9)
}

func queuedOnce[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.enqueue(consumer, event(a, 1), event(a, 2), event(a, 2))
	r.enqueue(consumer, event(a, 2))
	r.dequeue(consumer, event(a, 1), 0)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "queue", queuedVersions(queues["1"]), 2)
	r.dequeue(consumer, event(a, 2), 0)
	equal(r, "blocked in the end", r.blocked(consumer, a), false)
}

// A producer's fault: which of them is a mismatch is found out when they are marked. Until then each has its own place.
func sameKeyWaitsApart[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	first, payload, aggregate := event(a, 1), event(a, 2), event(b, 3)
	payload.Key, aggregate.Key = first.Key, first.Key
	r.failMessage(consumer, first, 1, 0)
	r.enqueue(consumer, payload)
	r.failMessage(consumer, aggregate, 3, 0)
	r.failMessage(consumer, first, 2, 0)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "queue of the first", queuedVersions(queues["1"]), 1)
	equal(r, "its attempts", queues["1"][0].Attempts, 2)
	equalLists(r, "queue of the other aggregate", queuedVersions(queues["2"]), 3)
	equal(r, "its attempts", queues["2"][0].Attempts, 3)
	r.bury(consumer, first, 3, true)
	r.must(r.Operators.RedriveLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "", r.base))
	r.dequeue(consumer, first, 0)
	queues, _ = r.due(consumer, 0)
	equalLists(r, "then the other payload", queuedVersions(queues["1"]), 2)
	equalLists(r, "queue of the other aggregate", queuedVersions(queues["2"]), 3)
}

func headAlone[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, time.Minute)
	r.enqueue(consumer, event(a, 2), event(a, 3), event(a, 4))
	r.dequeue(consumer, event(a, 1), time.Minute)
	queues, _ := r.due(consumer, time.Minute)
	equalLists(r, "the others, at once", queuedVersions(queues["1"]), 2, 3, 4)
	equalLists(r, "two asked for", queuedVersions(r.queue(consumer, a, 2, time.Minute)), 2, 3)
	r.dequeue(consumer, event(a, 2), time.Minute)
	r.failMessage(consumer, event(a, 3), 1, 2*time.Minute)
	queues, _ = r.due(consumer, 2*time.Minute)
	equalLists(r, "the new head failed", queuedVersions(queues["1"]), 3)
	r.dequeue(consumer, event(a, 3), 2*time.Minute)
	r.enqueue(consumer, event(a, 5))
	queues, _ = r.due(consumer, 2*time.Minute)
	equalLists(r, "the rest", queuedVersions(queues["1"]), 4, 5)
	r.dequeue(consumer, event(a, 4), 2*time.Minute)
	r.dequeue(consumer, event(a, 5), 2*time.Minute)
	equal(r, "blocked in the end", r.blocked(consumer, a), false)
	queues, next := r.due(consumer, 1000*time.Hour)
	equal(r, "queues in the end", len(queues), 0)
	equal(r, "nothing is due ever", next.IsZero(), true)
}

// suspectsFollow: what may kill its process waits with an error and without attempts, until an attempt at it is recorded.
func suspectsFollow[TX any](r *rig[TX]) {
	a := order("1")
	for n := 1; n <= 3; n++ {
		if n > 1 {
			r.enqueue(consumer, event(a, n))
		}
		r.failMessage(consumer, event(a, n), 0, 0)
	}
	onTrial := func(e convergo.Event) {
		r.Helper()
		r.failMessage(consumer, e, 2, 30*time.Second)
	}
	onTrial(event(a, 1))
	r.enqueue(consumer, event(a, 4), event(a, 1))
	queues, next := r.due(consumer, 30*time.Second-time.Microsecond)
	equal(r, "queues during a trial", len(queues), 0)
	equal(r, "next due", next.Equal(r.base.Add(30*time.Second)), true)
	r.dequeue(consumer, event(a, 1), time.Second)
	queues, _ = r.due(consumer, time.Second)
	equalLists(r, "after a trial that went well", queuedVersions(queues["1"]), 2, 3, 4)
	for i, text := range []string{"no stock row", "no stock row", ""} {
		equal(r, "attempts", queues["1"][i].Attempts, 0)
		equal(r, "error", queues["1"][i].LastError, text)
	}
	onTrial(event(a, 2))
	r.bury(consumer, event(a, 2), 4, false)
	queues, _ = r.due(consumer, 0)
	equalLists(r, "after the killer was buried", queuedVersions(queues["1"]), 3, 4)
	r.failMessage(consumer, event(a, 3), 1, time.Minute)
	queues, _ = r.due(consumer, time.Minute-time.Microsecond)
	equal(r, "queues before the back-off of one that failed ends", len(queues), 0)
	onTrial(event(a, 9)) // ahead of it
	r.dequeue(consumer, event(a, 9), time.Second)
	queues, _ = r.due(consumer, time.Second)
	equal(r, "queues when one ahead of it was applied", len(queues), 0)
	queues, _ = r.due(consumer, time.Minute)
	equalLists(r, "the one that failed", queuedVersions(queues["1"]), 3)
}

func queuesApart[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	r.failMessage(consumer, event(a, 1), 1, time.Hour)
	r.failMessage(consumer, event(b, 1), 1, time.Minute)
	r.failMessage("points", event(a, 1), 3, 0)
	equal(r, "blocked for a third consumer", r.blocked("ledger", a), false)
	queues, next := r.due(consumer, time.Minute)
	equal(r, "queues of one consumer", len(queues), 1)
	equalLists(r, "the due one", queuedVersions(queues["2"]), 1)
	equal(r, "next due", next.Equal(r.base.Add(time.Hour)), true)
	queues, next = r.due("points", 0)
	equalLists(r, "the other consumer's", queuedVersions(queues["1"]), 1)
	equal(r, "its attempts", queues["1"][0].Attempts, 3)
	equal(r, "its next due", next.IsZero(), true)
	limited, _, err := r.Parking.Due(r.ctx, consumer, 1, r.base.Add(time.Hour))
	r.must(err)
	equal(r, "queues when one is asked for", len(limited), 1)
	r.dequeue("points", event(a, 1), 0)
	equal(r, "blocked at the other consumer still", r.blocked(consumer, a), true)
	equal(r, "blocked where it was applied", r.blocked("points", a), false)
}

func queuedBytes[TX any](r *rig[TX]) {
	a := order("😀 1")
	failed, queued := event(a, 1), event(a, 2)
	for _, e := range []*convergo.Event{&failed, &queued} {
		e.Payload = append([]byte{0, 0xff, '<', '&', '\n'}, e.Payload...)
		e.Headers = map[string]string{"h": "é😀\"", "empty": ""}
		e.CreatedAt = r.base.Add(-time.Hour)
	}
	failed.Payload[0], failed.MaxAttempts, queued.MaxAttempts = 1, 0, 0 // a broker does not carry the maximum
	r.failMessage(consumer, failed, 1, 0)
	r.enqueue(consumer, queued)
	queues, _ := r.due(consumer, 0)
	sameEvent(r, queues[a.ID][0].Event, failed)
	r.dequeue(consumer, failed, 0)
	queues, _ = r.due(consumer, 0)
	sameEvent(r, queues[a.ID][0].Event, queued)
	queues[a.ID][0].Event.Payload[0] ^= 0xff
	queues, _ = r.due(consumer, 0)
	sameEvent(r, queues[a.ID][0].Event, queued)
}

func buryHolds[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.enqueue(consumer, event(a, 2))
	r.bury(consumer, event(a, 1), 2, true)
	equal(r, "mark of the buried", r.mark(consumer, event(a, 1), false), inbox.Duplicate)
	equal(r, "blocked", r.blocked(consumer, a), true)
	queues, next := r.due(consumer, 1000*time.Hour)
	equal(r, "queues long after", len(queues), 0)
	equal(r, "next due", next.IsZero(), true)
	r.enqueue(consumer, event(a, 3))
	queues, _ = r.due(consumer, 1000*time.Hour)
	equal(r, "queues after another message", len(queues), 0)

	alone := order("2") // poison at its first delivery, nothing behind it
	r.bury(consumer, event(alone, 1), 1, true)
	equal(r, "blocked with an empty queue", r.blocked(consumer, alone), true)
	r.enqueue(consumer, event(alone, 2))
	queues, _ = r.due(consumer, 1000*time.Hour)
	equal(r, "queues of the one with nothing behind it", len(queues), 0)
	r.dequeue(consumer, event(alone, 2), 0) // applied by another instance that had claimed it before
	equal(r, "blocked when the queue is empty again", r.blocked(consumer, alone), true)
}

func burySkips[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, time.Hour)
	r.enqueue(consumer, event(a, 2))
	r.bury(consumer, event(a, 1), 2, false)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "the next, at once", queuedVersions(queues["1"]), 2)
	r.bury(consumer, event(a, 2), 1, false)
	equal(r, "blocked with nothing left", r.blocked(consumer, a), false)
	r.bury(consumer, event(a, 3), 1, false) // never queued
	equal(r, "blocked by one that was never queued", r.blocked(consumer, a), false)
	equal(r, "mark of it", r.mark(consumer, event(a, 3), false), inbox.Duplicate)
	for range 2 { // messages so broken that they have no key: each is kept, none is taken for another
		r.bury(consumer, convergo.Event{Payload: []byte("\x00\xff")}, 1, false)
	}
}

func parkingRollsBack[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.update(func(ctx context.Context, tx TX) error {
		_ = r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
			f := inbox.Failure{Event: event(b, 1), Attempts: 1, Error: "x", Place: "handler", Next: r.base}
			_, err := r.Parking.Bury(ctx, tx, consumer, f, true, r.base)
			return errors.Join(
				r.Parking.Dequeue(ctx, tx, consumer, event(a, 1), r.base), r.Parking.Enqueue(ctx, tx, consumer, event(a, 2), r.base),
				err, errWanted)
		})
		return nil
	})
	equal(r, "blocked, what was undone", r.blocked(consumer, b), false)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "queue as before", queuedVersions(queues["1"]), 1)
	equal(r, "mark of the one not buried", r.mark(consumer, event(b, 1), false), inbox.Fresh)
}
