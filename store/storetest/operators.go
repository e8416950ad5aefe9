package storetest

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
)

func operatorLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a dead event keeps payload, headers, error, attempts and place", deadEventKept[TX]},
		{"a redriven event heads its aggregate's queue and goes at once", redrivenHeads[TX]},
		{"redriving a later dead event first is refused", laterEventRefused[TX]},
		{"after a decision on one dead event another still holds the aggregate", stillHeld[TX]},
		{"a discarded event is never sent and its aggregate goes on", discardedEvent[TX]},
		{"a person cannot act twice on one dead event, nor on one that is not dead", actOnce[TX]},
		{"a replay sends again what was sent, in the order of writing, and nothing else", replay[TX]},
		{"a dead letter keeps payload, headers, error, attempts and place", deadLetterKept[TX]},
		{"a redriven letter is applied again, before what came later", redrivenLetter[TX]},
		{"redriving a later dead letter first is refused", laterLetterRefused[TX]},
		{"a letter without a key is not redriven while one like it waits in the queue", keylessLettersApart[TX]},
		{"a discarded letter stays done with and its aggregate goes on", discardedLetter[TX]},
		{"redriving a letter whose key was applied with another payload applies nothing", mismatchRedriven[TX]},
		{"what a person does is on record for good, with who, why and when", trail[TX]},
		{"the backlog counts what is unfinished and since when", backlog[TX]},
	}
}

// killEvents sends nothing and makes all claimable events dead at base.
func (r *rig[TX]) killEvents(leases []relay.Lease, hold bool) {
	r.Helper()
	c := r.claim(leases, 100, 0)
	s := relay.Settlement{HoldAggregate: hold}
	for _, p := range c.Events {
		f := r.fail(p, 0)
		f.Error = "too large: é"
		s.Dead = append(s.Dead, f)
	}
	r.settle(inLanes(leases, c.Events), 0, s)
}

func (r *rig[TX]) deadEvents() []ops.DeadEvent {
	r.Helper()
	list, err := r.Operators.DeadEvents(r.ctx, 100, 0)
	r.must(err)
	return list
}

func (r *rig[TX]) wantError(what string, got, want error) {
	r.Helper()
	if !errors.Is(got, want) {
		r.Errorf("%s: %v, want %v", what, got, want)
	}
}

func deadEventKept[TX any](r *rig[TX]) {
	rich := event(order("1"), 7)
	rich.Payload, rich.MaxAttempts = []byte("\x00\xff{\"a\": 1}\n"), 3
	rich.Headers = map[string]string{"h": "é😀", "empty": ""}
	rich.CreatedAt = r.base.Add(-time.Hour)
	r.insert(rich, event(order("2"), 1), event(order("3"), 1))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	first := of(c, order("1"))[0]
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{r.fail(first, 0)}})
	r.killEvents(leases, true)
	list := r.deadEvents()
	if len(list) != 3 {
		r.Fatalf("%d dead events, want 3", len(list))
	}
	d := list[0]
	sameEvent(r, d.Event, rich)
	equal(r, "attempts", d.Attempts, 2)
	equal(r, "error", d.Error, "too large: é")
	equal(r, "place", d.Place, "relay.publish")
	equal(r, "died at", d.DiedAt.Equal(r.base), true)
	equal(r, "held", d.Held, true)
	page, err := r.Operators.DeadEvents(r.ctx, 1, d.ID)
	r.must(err)
	equal(r, "the next page's event", len(page) == 1 && page[0].ID == list[1].ID, true)
	long := "x" + strings.Repeat("é", 4000)
	r.insert(event(order("4"), 1))
	c = r.claim(leases, 10, 0)
	f := r.fail(c.Events[0], 0)
	f.Error = long
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{Dead: []relay.Failure{f}})
	list = r.deadEvents()
	kept := list[len(list)-1].Error
	if len(kept) > 2000 || len(kept) < 1990 || !strings.HasPrefix(long, kept) || !utf8.ValidString(kept) {
		r.Errorf("an error of %d bytes is kept as %d bytes, or not as it was", len(long), len(kept))
	}
}

func redrivenHeads[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(event(a, 1))
	leases := r.lease("a")
	r.killEvents(leases, true)
	r.insert(event(a, 2))
	c := r.claim(leases, 10, 0)
	used := inLanes(leases, c.Events)
	r.settle(used, 0, relay.Settlement{Aside: c.Events})
	r.insert(event(a, 3))
	r.must(r.Operators.RedriveEvent(r.ctx, r.deadEvents()[0].ID, "ann", "", r.base))
	c = r.claim(leases, 10, 0)
	equalLists(r, "claimed", keys(c.Events), string(event(a, 1).Key), string(event(a, 2).Key), "held "+string(event(a, 3).Key))
	equal(r, "attempts", c.Events[0].Attempts, 0)
	equal(r, "dead events", len(r.deadEvents()), 0)

	// One skipped, the next waits for its retry: the redriven one does not wait with it.
	r.settle(used, 0, relay.Settlement{Dead: []relay.Failure{r.fail(c.Events[0], 0)}})
	c = r.claim(leases, 10, 0)
	r.settle(used, 0, relay.Settlement{Failed: []relay.Failure{r.fail(c.Events[0], time.Hour)}, Aside: of(c, a)[1:]})
	r.must(r.Operators.RedriveEvent(r.ctx, r.deadEvents()[0].ID, "ann", "", r.base))
	c = r.claim(leases, 1, 0)
	equalLists(r, "claimed at once", versions(c.Events), 1)
	r.settle(used, 0, settleSent(c.Events))

	free := order("free") // skipped, and its aggregate is free meanwhile
	r.insert(event(free, 1))
	c = r.claim(leases, 10, 0)
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{Dead: []relay.Failure{r.fail(of(c, free)[0], 0)}})
	r.insert(event(free, 2))
	r.must(r.Operators.RedriveEvent(r.ctx, r.deadEvents()[0].ID, "ann", "", r.base))
	c = r.claim(leases, 10, 0)
	equalLists(r, "before what is newer", versions(of(c, free)), 1, 2)
	equal(r, "the newer one is held", of(c, free)[1].Held, true)
}

func laterEventRefused[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	r.insert(event(a, 1), event(a, 2), event(b, 1))
	leases := r.lease("a")
	r.killEvents(leases, false)
	list := r.deadEvents()
	equal(r, "dead events", len(list), 3)
	r.wantError("redriving the second", r.Operators.RedriveEvent(r.ctx, list[1].ID, "ann", "", r.base), ops.ErrEarlierDead)
	equal(r, "claimed after the refusal", len(r.claim(leases, 10, 0).Events), 0)
	r.must(r.Operators.RedriveEvent(r.ctx, list[2].ID, "ann", "", r.base)) // of another aggregate
	r.must(r.Operators.RedriveEvent(r.ctx, list[0].ID, "ann", "", r.base))
	r.must(r.Operators.RedriveEvent(r.ctx, list[1].ID, "ann", "", r.base))
	equalLists(r, "claimed", versions(of(r.claim(leases, 10, 0), a)), 1, 2)
}

func stillHeld[TX any](r *rig[TX]) {
	a := order("1")
	leases := r.lease("a")
	r.insert(event(a, 1))
	r.killEvents(leases, false)
	r.insert(event(a, 2))
	r.killEvents(leases, true)
	r.insert(event(a, 3))
	list := r.deadEvents()
	r.must(r.Operators.RedriveEvent(r.ctx, list[0].ID, "ann", "", r.base))
	equalLists(r, "claimed", keys(r.claim(leases, 10, 0).Events), "held "+string(event(a, 3).Key))
	r.must(r.Operators.RedriveEvent(r.ctx, list[1].ID, "ann", "", r.base))
	equalLists(r, "claimed then", versions(r.claim(leases, 10, 0).Events), 1, 2, 3)

	r.bury(consumer, event(a, 1), 1, false)
	r.bury(consumer, event(a, 2), 1, true)
	r.enqueue(consumer, event(a, 3))
	letters := r.letters(consumer)
	r.must(r.Operators.DiscardLetter(r.ctx, letters[0].ID, "ann", "", r.base))
	queues, _ := r.due(consumer, 0)
	equal(r, "due queues", len(queues), 0)
	r.must(r.Operators.RedriveLetter(r.ctx, letters[1].ID, "ann", "", r.base))
	queues, _ = r.due(consumer, 0)
	equalLists(r, "due then", queuedVersions(queues["1"]), 2, 3)
}

func discardedEvent[TX any](r *rig[TX]) {
	a := order("1")
	r.insert(event(a, 1))
	leases := r.lease("a")
	r.killEvents(leases, true)
	r.insert(event(a, 2))
	c := r.claim(leases, 10, 0)
	r.settle(inLanes(leases, c.Events), 0, relay.Settlement{Aside: c.Events})
	r.must(r.Operators.DiscardEvent(r.ctx, r.deadEvents()[0].ID, "ann", "customer told by phone", r.base))
	equal(r, "dead events", len(r.deadEvents()), 0)
	c = r.claim(leases, 10, 0)
	equalLists(r, "claimed", versions(c.Events), 2)
	r.settle(inLanes(leases, c.Events), 0, settleSent(c.Events))

	last := order("2") // nothing behind it: the aggregate is free
	r.insert(event(last, 1))
	r.killEvents(leases, true)
	r.must(r.Operators.DiscardEvent(r.ctx, r.deadEvents()[0].ID, "ann", "", r.base))
	r.insert(event(last, 2))
	c = r.claim(leases, 10, 0)
	equalLists(r, "claimed of the free one", keys(c.Events), string(event(last, 2).Key))
	// The key of a discarded event stays used.
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{event(a, 1)})
		equalLists(r, "fresh", fresh, false)
		return err
	})
}

func actOnce[TX any](r *rig[TX]) {
	r.insert(event(order("1"), 1), event(order("2"), 1))
	leases := r.lease("a")
	r.wantError("redriving the unknown", r.Operators.RedriveEvent(r.ctx, 1, "ann", "", r.base), ops.ErrNotFound)
	r.killEvents(leases, true)
	list := r.deadEvents()
	r.must(r.Operators.RedriveEvent(r.ctx, list[0].ID, "ann", "", r.base))
	r.wantError("redriving twice", r.Operators.RedriveEvent(r.ctx, list[0].ID, "ann", "", r.base), ops.ErrNotFound)
	r.wantError("discarding the redriven", r.Operators.DiscardEvent(r.ctx, list[0].ID, "ann", "", r.base), ops.ErrNotFound)
	r.must(r.Operators.DiscardEvent(r.ctx, list[1].ID, "ann", "", r.base))
	r.wantError("redriving the discarded", r.Operators.RedriveEvent(r.ctx, list[1].ID, "ann", "", r.base), ops.ErrNotFound)
	equal(r, "claimed", len(r.claim(leases, 10, 0).Events), 1)
}

func replay[TX any](r *rig[TX]) {
	a := order("1")
	written := func(a convergo.Aggregate, n int, ago time.Duration) convergo.Event {
		e := event(a, n)
		e.CreatedAt = r.base.Add(-ago)
		return e
	}
	reminder := written(order("reminder"), 1, 3*time.Hour) // written long ago, sent lately: a broker may have lost it lately
	reminder.DeliverAt = r.base.Add(-30 * time.Minute)
	r.insert(written(a, 1, 3*time.Hour), reminder, written(a, 2, time.Hour), written(a, 3, time.Hour), written(order("dead"), 1, 0),
		written(order("failed"), 1, 0), written(order("discarded"), 1, 0))
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	s := settleSent(append(of(c, a), of(c, order("reminder"))...))
	s.Dead = []relay.Failure{r.fail(of(c, order("dead"))[0], 0), r.fail(of(c, order("discarded"))[0], 0)}
	s.Failed = []relay.Failure{r.fail(of(c, order("failed"))[0], time.Hour)}
	r.settle(inLanes(leases, c.Events), 0, s)
	for _, d := range r.deadEvents() {
		if d.Event.Aggregate == order("discarded") {
			r.must(r.Operators.DiscardEvent(r.ctx, d.ID, "ann", "", r.base))
		}
	}
	delayed := written(order("delayed"), 1, 0)
	delayed.DeliverAt = r.base.Add(time.Hour)
	r.insert(delayed, written(a, 4, 0))
	n, err := r.Operators.Replay(r.ctx, r.base.Add(-time.Hour), r.base)
	r.must(err)
	equal(r, "replayed", n, 3)
	c = r.claim(leases, 10, 0)
	equalLists(r, "claimed: what was pending, then the replayed ones", versions(of(c, a)), 4, 2, 3)
	equal(r, "and the reminder", len(of(c, order("reminder"))), 1)
	r.settle(inLanes(leases, c.Events), 0, settleSent(c.Events))
	n, err = r.Operators.Replay(r.ctx, time.Time{}, r.base)
	r.must(err)
	equal(r, "replayed from the beginning", n, 5)
	equalLists(r, "claimed in order of writing", versions(of(r.claim(leases, 10, 0), a)), 1, 2, 3, 4)
}

func (r *rig[TX]) letters(name string) []ops.DeadLetter {
	r.Helper()
	list, err := r.Operators.DeadLetters(r.ctx, name, 100, "")
	r.must(err)
	return list
}

func deadLetterKept[TX any](r *rig[TX]) {
	rich := event(order("1"), 7)
	rich.Payload = []byte("\x00\xff{\"a\": 1}\n")
	rich.Headers = map[string]string{"h": "é😀", "empty": ""}
	rich.CreatedAt = r.base.Add(-time.Hour)
	r.failMessage(consumer, rich, 2, 0)
	r.bury(consumer, rich, 3, true)
	r.bury("points", rich, 1, false)
	for _, payload := range []string{"\x00\xff broken", "{\"other\": true}"} { // no key, no type: what could be read is kept
		r.bury("ledger", convergo.Event{Payload: []byte(payload)}, 1, false)
	}
	list := r.letters(consumer)
	if len(list) != 1 {
		r.Fatalf("%d letters of the consumer, want 1", len(list))
	}
	d := list[0]
	sameEvent(r, d.Event, rich)
	equal(r, "consumer", d.Consumer, consumer)
	equal(r, "attempts", d.Attempts, 3)
	equal(r, "error", d.Error, "bad payload")
	equal(r, "place", d.Place, "handler")
	equal(r, "died at", d.DiedAt.Equal(r.base), true)
	equal(r, "held", d.Held, true)
	equal(r, "state", d.State, ops.Open)
	equal(r, "closed at", d.ClosedAt.IsZero(), true)
	equal(r, "held at the other consumer", r.letters("points")[0].Held, false)
	all := r.letters("")
	equal(r, "letters of all consumers", len(all), 4)
	page, err := r.Operators.DeadLetters(r.ctx, "", 2, all[0].ID)
	r.must(err)
	equal(r, "the next page", len(page) == 2 && page[0].ID == all[1].ID && page[1].ID == all[2].ID, true)
	broken := r.letters("ledger")
	if len(broken) != 2 {
		r.Fatalf("%d letters without a key, want 2: one was taken for the other", len(broken))
	}
	equal(r, "payload of a broken one", string(broken[0].Event.Payload), "\x00\xff broken")
	r.must(r.Operators.DiscardLetter(r.ctx, broken[0].ID, "ann", "noise", r.base))
}

func redrivenLetter[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.enqueue(consumer, event(a, 2))
	r.bury(consumer, event(a, 1), 2, true)
	// A broker delivers the dead one again; its aggregate is blocked, so the copy queues behind its own letter. Refusing the
	// redrive because of it would leave no way: the copy waits for the letter, and after a discard it is a duplicate.
	r.enqueue(consumer, event(a, 1), event(a, 3))
	r.must(r.Operators.RedriveLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "", r.base))
	equal(r, "open letters", len(r.letters(consumer)), 0)
	queues, _ := r.due(consumer, 0)
	equalLists(r, "due: it comes first, and once", queuedVersions(queues["1"]), 1, 2, 3)
	equal(r, "attempts", queues["1"][0].Attempts, 0)
	for n := range 3 {
		r.dequeue(consumer, event(a, n+1), 0) // each is fresh: the mark of the dead one is gone
	}
	equal(r, "blocked in the end", r.blocked(consumer, a), false)

	free := order("2") // skipped, and never queued
	r.bury(consumer, event(free, 1), 1, false)
	letter := r.letters(consumer)[0].ID
	r.must(r.Operators.RedriveLetter(r.ctx, letter, "ann", "", r.base))
	queues, _ = r.due(consumer, 0)
	equalLists(r, "due, of a free aggregate", queuedVersions(queues["2"]), 1)
	r.wantError("redriving twice", r.Operators.RedriveLetter(r.ctx, letter, "ann", "", r.base), ops.ErrNotFound)
	r.wantError("discarding the redriven", r.Operators.DiscardLetter(r.ctx, letter, "ann", "", r.base), ops.ErrNotFound)
	r.wantError("redriving the unknown", r.Operators.RedriveLetter(r.ctx, "unknown", "ann", "", r.base), ops.ErrNotFound)
	r.bury(consumer, event(free, 1), 1, false) // it fails again: a letter of its own
	equal(r, "open letters after another death", len(r.letters(consumer)), 1)

	behind := order("3") // the next one waits for its retry: the redriven one does not wait with it
	r.bury(consumer, event(behind, 1), 1, false)
	r.failMessage(consumer, event(behind, 2), 1, time.Hour)
	r.must(r.Operators.RedriveLetter(r.ctx, r.letters(consumer)[1].ID, "ann", "", r.base))
	queues, _ = r.due(consumer, 0)
	if list := queues["3"]; len(list) == 0 || list[0].Event.Version != 1 {
		r.Errorf("due with a failed one behind it: %v", queuedVersions(list))
	}
}

// keylessLettersApart: without a key nothing tells two messages apart that are alike, and a queue keeps one of them.
func keylessLettersApart[TX any](r *rig[TX]) {
	alike := convergo.Event{Topic: "order", Type: "OrderChanged", Aggregate: order("1"), Payload: []byte("{ broken")}
	r.bury(consumer, alike, 1, false)
	r.bury(consumer, alike, 1, false)
	list := r.letters(consumer)
	equal(r, "letters", len(list), 2)
	r.must(r.Operators.RedriveLetter(r.ctx, list[0].ID, "ann", "", r.base))
	r.wantError("redriving the other one", r.Operators.RedriveLetter(r.ctx, list[1].ID, "ann", "", r.base), ops.ErrQueued)
	equal(r, "open letters", len(r.letters(consumer)), 1)
	queues, _ := r.due(consumer, 0)
	equal(r, "messages in the queue", len(queues["1"]), 1)
	r.update(func(ctx context.Context, tx TX) error { return r.Parking.Dequeue(ctx, tx, consumer, alike, r.base) })
	r.must(r.Operators.RedriveLetter(r.ctx, list[1].ID, "ann", "", r.base))
	queues, _ = r.due(consumer, 0)
	equal(r, "messages in the queue when the first one was through", len(queues["1"]), 1)
	equal(r, "open letters in the end", len(r.letters(consumer)), 0)
}

func laterLetterRefused[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	for n := range 3 {
		r.bury(consumer, event(a, n+1), 1, false)
	}
	r.bury(consumer, event(b, 1), 1, false)
	r.bury("points", event(a, 2), 1, false)
	list := r.letters(consumer)
	equal(r, "letters", len(list), 4)
	r.wantError("redriving the second", r.Operators.RedriveLetter(r.ctx, list[1].ID, "ann", "", r.base), ops.ErrEarlierDead)
	r.wantError("redriving the third", r.Operators.RedriveLetter(r.ctx, list[2].ID, "ann", "", r.base), ops.ErrEarlierDead)
	equal(r, "blocked after the refusal", r.blocked(consumer, a), false)
	r.must(r.Operators.RedriveLetter(r.ctx, list[3].ID, "ann", "", r.base))
	r.must(r.Operators.RedriveLetter(r.ctx, r.letters("points")[0].ID, "ann", "", r.base))
	r.must(r.Operators.RedriveLetter(r.ctx, list[0].ID, "ann", "", r.base))
	r.must(r.Operators.DiscardLetter(r.ctx, list[1].ID, "ann", "", r.base))
	r.must(r.Operators.RedriveLetter(r.ctx, list[2].ID, "ann", "", r.base))
	queues, _ := r.due(consumer, 0)
	equalLists(r, "due", queuedVersions(queues["1"]), 1, 3)
}

func discardedLetter[TX any](r *rig[TX]) {
	a := order("1")
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.enqueue(consumer, event(a, 2))
	r.bury(consumer, event(a, 1), 2, true)
	r.must(r.Operators.DiscardLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "told by phone", r.base))
	queues, _ := r.due(consumer, 0)
	equalLists(r, "due", queuedVersions(queues["1"]), 2)
	equal(r, "mark of the discarded", r.mark(consumer, event(a, 1), false), inbox.Duplicate)
	equal(r, "open letters", len(r.letters(consumer)), 0)
	alone := order("2")
	r.bury(consumer, event(alone, 1), 1, true)
	r.must(r.Operators.DiscardLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "", r.base))
	equal(r, "blocked with nothing behind it", r.blocked(consumer, alone), false)
}

func mismatchRedriven[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	equal(r, "the first payload", r.mark(consumer, e, false), inbox.Fresh)
	other := e
	other.Payload = []byte("other")
	equal(r, "the other payload", r.mark(consumer, other, false), inbox.Mismatch)
	r.bury(consumer, other, 1, false)
	equal(r, "the first payload is still done with", r.mark(consumer, e, false), inbox.Duplicate)
	r.must(r.Operators.RedriveLetter(r.ctx, r.letters(consumer)[0].ID, "ann", "", r.base))
	if m := r.mark(consumer, other, false); m == inbox.Fresh {
		r.Error("the other payload is fresh after a redrive: an effect for one key, twice")
	}
	equal(r, "the first payload, after the redrive", r.mark(consumer, e, false) == inbox.Fresh, false)
}

func backlog[TX any](r *rig[TX]) {
	look := func(at time.Duration) ops.Backlog {
		b, err := r.Operators.Backlog(r.ctx, r.base.Add(at))
		r.must(err)
		return b
	}
	equal(r, "unfinished, at first", look(0).Unfinished(), 0)
	written := r.base.Add(-time.Minute)
	put := func(id string, n int, due time.Duration) {
		e := event(order(id), n)
		e.CreatedAt = written.Add(time.Duration(n) * time.Second)
		if due > 0 {
			e.DeliverAt = r.base.Add(due)
		}
		r.insert(e)
	}
	put("sent", 1, 0)
	put("dead", 1, 0)
	put("failed", 1, 0)
	put("failed", 2, 0)
	leases := r.lease("a")
	c := r.claim(leases, 10, 0)
	s := settleSent(of(c, order("sent")))
	failed := of(c, order("failed"))
	s.Failed, s.Aside = []relay.Failure{r.fail(failed[0], time.Hour)}, failed[1:]
	s.Dead, s.HoldAggregate = []relay.Failure{r.fail(of(c, order("dead"))[0], 0)}, true
	r.settle(inLanes(leases, c.Events), 0, s)
	put("pending", 2, 0)
	put("pending", 3, 0)
	put("delayed", 1, time.Hour)
	put("delayed", 2, 2*time.Hour)
	r.failMessage(consumer, event(order("1"), 1), 1, 0)
	r.enqueue(consumer, event(order("1"), 2))
	r.bury(consumer, event(order("2"), 1), 1, true)
	r.add(call(1), call(2), call(3), call(4))
	calls := r.claimCalls(0)
	r.finish(calls[0], outside.Outcome{State: outside.Done})
	r.finish(calls[1], outside.Outcome{State: outside.Failed, Error: "refused"})

	queue := func(n int64, since time.Time) ops.Queue { return ops.Queue{Count: n, Since: since} }
	want := ops.Backlog{
		Pending: queue(2, written.Add(2*time.Second)), Delayed: queue(2, written.Add(time.Second)),
		Waiting: queue(2, written.Add(time.Second)), Dead: queue(1, r.base), InboxWait: queue(2, r.base), InboxDead: queue(1, r.base),
		CallsOpen: queue(2, r.base), CallsFailed: queue(1, r.base),
	}
	equal(r, "backlog", look(0), want)
	later := look(90 * time.Minute)
	want.DelayedDue, want.Delayed = queue(1, r.base.Add(time.Hour)), queue(1, written.Add(2*time.Second))
	equal(r, "backlog when one delayed event is due", later, want)
	equal(r, "unfinished", later.Unfinished(), 11)
}
