package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func outboxLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"the same key twice is stopped and the transaction stays usable (B21)", duplicateKey[TX]},
		{"the same key under new message ids is one event and one effect (B32)", newsRepeated[TX]},
		{"of many who insert one key at once, one is fresh", oneIsFresh[TX]},
		{"id order is kept and a late commit is found (B01)", lateCommit[TX]},
		{"a number that a rollback took does not stall what comes after (B01)", holeDoesNotStall[TX]},
		{"payload, headers and key come out byte for byte (B39, B51)", byteForByte[TX]},
		{"keys that a collation calls equal are different events (B47, B48)", keysAreBytes[TX]},
		{"the longest keys and payloads are kept whole (B49)", longestKept[TX]},
		{"times come out as the same instant, in UTC, whatever zone they went in with (B53, B55)", timesAreInstants[TX]},
		{"an event whose time is in another unit is claimed as malformed, and holds back nobody else", otherUnit[TX]},
		{"changing an event after the insert, or after a claim, changes nothing", noSharedBytes[TX]},
	}
}

func duplicateKey[TX any](r *rig[TX]) {
	a := order("1")
	first, second, third := event(a, 1), event(a, 2), event(a, 3)
	again := first
	again.Payload, again.MessageID = []byte("other"), "other"
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{first, again, second})
		equalLists(r, "fresh, in one call", fresh, true, false, true)
		return err
	})
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{again, third})
		equalLists(r, "fresh, in a later transaction", fresh, false, true)
		return errors.Join(err, r.Add(ctx, tx, "n", 1)) // PostgreSQL would have aborted the transaction by now
	})
	equal(r, "an effect after the duplicate", r.value("n"), 1)
	c := r.claim(r.lease("a"), 10, 0)
	equalLists(r, "claimed", versions(c.Events), 1, 2, 3)
	equal(r, "the first one's payload", string(c.Events[0].Event.Payload), string(first.Payload))
	equal(r, "the first one's message id", c.Events[0].Event.MessageID, first.MessageID)
}

func oneIsFresh[TX any](r *rig[TX]) {
	var group sync.WaitGroup
	var won atomic.Int64
	for i := range 16 {
		group.Go(func() {
			e := event(order("1"), 1)
			e.MessageID = fmt.Sprintf("from-%d", i)
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{e})
				if err == nil && fresh[0] {
					won.Add(1)
				}
				return err
			})
			if err != nil {
				r.Error(err)
			}
		})
	}
	group.Wait()
	equal(r, "fresh ones", won.Load(), 1)
	equal(r, "claimed", len(r.claim(r.lease("a"), 10, 0).Events), 1)
}

// lateCommit: A inserts and stays open, B comes later; a relay looks in between. Where B can commit first, a relay that
// remembers the last id it saw would never find A.
func lateCommit[TX any](r *rig[TX]) {
	inserted, commit := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	put := func(id string, then func()) {
		if err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
			_, err := r.Outbox.Insert(ctx, tx, []convergo.Event{event(order(id), 1)})
			then()
			return err
		}); err != nil {
			r.Error(err)
		}
	}
	leases := r.lease("a")
	group.Go(func() { put("A", func() { close(inserted); <-commit }) })
	<-inserted
	group.Go(func() { put("B", func() {}) })
	// A single writer may make this claim wait for A; it may not make it see A.
	short, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	early, err := r.Relay.Claim(short, leases, 10, r.base)
	cancel()
	if err == nil {
		for _, p := range early.Events {
			if p.Event.Aggregate.ID == "A" {
				r.Error("A was seen before its commit")
			}
		}
	}
	close(commit)
	group.Wait()
	r.settle(leases, 0, settleSent(early.Events)) // not before: a single writer would wait for A
	found := len(early.Events) + len(r.claim(leases, 10, 0).Events)
	equal(r, "events found in all", found, 2)

	var list []convergo.Event
	for n := range 100 {
		list = append(list, event(order("C"), n+1))
	}
	r.insert(list[:50]...)
	for _, e := range list[50:] {
		r.insert(e)
	}
	last := int64(0)
	for _, p := range r.claim(leases, 1000, 0).Events {
		if p.Event.Aggregate.ID != "C" {
			continue
		}
		if p.Event.Version != last+1 {
			r.Fatalf("version %d comes after %d", p.Event.Version, last)
		}
		last++
	}
	equal(r, "versions found", last, 100)
}

func holeDoesNotStall[TX any](r *rig[TX]) {
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		_, err := r.Outbox.Insert(ctx, tx, []convergo.Event{event(order("1"), 1)})
		return errors.Join(err, errWanted)
	})
	r.insert(event(order("1"), 2))
	equalLists(r, "claimed", versions(r.claim(r.lease("a"), 10, 0).Events), 2)
}

func byteForByte[TX any](r *rig[TX]) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := [][]byte{
		[]byte(`{"order":"O-77","note":"Tom & Jerry <gift>","z":1,"a":2}`), // B39: a re-encoder would change it
		[]byte(`{"id":9007199254740993,"big":616581622363398142,"id":1}`),  // B51: beyond 2^53, and a key twice
		[]byte("{ \"spaced\" : 1.10 }\r\n"), all, []byte("\xff\xfe not UTF-8"), {0}, {}, nil,
	}
	var events []convergo.Event
	for n, p := range payloads {
		e := event(order("😀 é １ ‘quote’ \" \\ % _"), n+1)
		e.Payload, e.MaxAttempts = p, n
		e.Headers = map[string]string{"traceparent": "00-ab-cd-01", "Empty": "", "note": "ключ 😀 <&> \"\\", "Case": "A", "case": "a"}
		events = append(events, e)
	}
	events[0].Headers, events[0].Version = nil, math.MaxInt64
	r.insert(events...)
	c := r.claim(r.lease("a"), 100, 0)
	equal(r, "claimed", len(c.Events), len(events))
	for i, p := range c.Events {
		sameEvent(r, p.Event, events[i])
	}
}

// sameEvent compares all that the producer said.
func sameEvent[TX any](r *rig[TX], got, want convergo.Event) {
	r.Helper()
	if !bytes.Equal(got.Payload, want.Payload) {
		r.Errorf("event %s: payload %q, want %q", want.Key, got.Payload, want.Payload)
	}
	if len(got.Headers) != len(want.Headers) {
		r.Errorf("event %s: headers %v, want %v", want.Key, got.Headers, want.Headers)
	}
	for name, value := range want.Headers {
		if text, ok := got.Headers[name]; !ok || text != value {
			r.Errorf("event %s: header %s %q, want %q", want.Key, name, text, value)
		}
	}
	equal(r, "created at", got.CreatedAt.Equal(want.CreatedAt.Truncate(time.Microsecond)), true)
	equal(r, "deliver at", got.DeliverAt.Equal(want.DeliverAt.Truncate(time.Microsecond)), true)
	type plain struct {
		id        string
		key       convergo.Key
		kind      string
		topic     string
		aggregate convergo.Aggregate
		version   int64
		attempts  int
	}
	of := func(e convergo.Event) plain {
		return plain{e.MessageID, e.Key, e.Type, e.Topic, e.Aggregate, e.Version, e.MaxAttempts}
	}
	equal(r, "the other fields", of(got), of(want))
}

func keysAreBytes[TX any](r *rig[TX]) {
	names := []convergo.Key{"Pay-7f", "pay-7F", "café-1", "cafe-1", "cafe\u0301-1", "😀", "😡", "１", "1", "a  b", "a b",
		"ß", "ss", "%", "_", "Ⅷ", "İ", "i", "I"}
	var events []convergo.Event
	for n, k := range names {
		e := event(convergo.Aggregate{Type: "pay", ID: string(k)}, n+1)
		e.Key = k
		events = append(events, e)
	}
	r.insert(events...)
	leases := r.lease("a")
	c := r.claim(leases, 100, 0)
	equal(r, "claimed", len(c.Events), len(names))
	// Aggregates are bytes too: one that fails does not block those that look like it.
	r.settle(leases, 0, relay.Settlement{Failed: []relay.Failure{r.fail(c.Events[0], time.Hour)}})
	equal(r, "claimed with one aggregate blocked", len(r.claim(leases, 100, 0).Events), len(names)-1)
	for _, k := range []convergo.Key{"evt-1 ", " evt-1", "evt-1\u00a0", "evt\t1", ""} {
		if err := k.Validate(); err == nil {
			r.Errorf("key %q is legal", k)
		}
	}
}

func longestKept[TX any](r *rig[TX]) {
	long := strings.Repeat("é", (convergo.MaxKeyBytes-1)/2)
	name := strings.Repeat("n", convergo.MaxNameBytes)
	var events []convergo.Event
	for n, last := range []string{"1", "2"} { // cut to fit, the two would be one
		e := event(convergo.Aggregate{Type: name, ID: long + last}, n+1)
		e.Key, e.MessageID, e.Type, e.Topic = convergo.Key(long+last), long+last, name, name
		e.Payload = bytes.Repeat([]byte{byte(n), 0xff}, convergo.MaxPayloadBytes/2)
		e.Headers = map[string]string{name: strings.Repeat("v", convergo.MaxHeaderBytes-convergo.MaxNameBytes)}
		r.must(e.Validate())
		events = append(events, e)
	}
	r.insert(events...)
	c := r.claim(r.lease("a"), 10, 0)
	if len(c.Events) != 2 {
		r.Fatalf("%d claimed, want 2", len(c.Events))
	}
	for _, p := range c.Events {
		sameEvent(r, p.Event, events[p.Event.Version-1])
	}
	if convergo.Key(long+"12").Validate() == nil {
		r.Errorf("a key of %d bytes is legal", len(long)+2)
	}
}

func timesAreInstants[TX any](r *rig[TX]) {
	zone := time.FixedZone("Asia/Shanghai", 8*60*60)
	due := r.base.Add(time.Hour)
	early := event(orderIn(0, 0), 1)
	early.CreatedAt = time.Date(2026, 7, 1, 0, 0, 5, 123_456_789, zone)
	early.DeliverAt = due.In(zone)
	late := event(orderIn(0, 1), 1)
	late.DeliverAt = due.Add(time.Minute).In(time.FixedZone("", -5*60*60))
	r.insert(late, early)
	leases := r.lease("a")
	equal(r, "claimed a microsecond early", len(r.claim(leases, 10, time.Hour-time.Microsecond).Events), 0)
	c := r.claim(leases, 10, time.Hour)
	if len(c.Events) != 1 {
		r.Fatalf("%d claimed when the first is due, want 1", len(c.Events))
	}
	sameEvent(r, c.Events[0].Event, early)
	equal(r, "zone of the creation", c.Events[0].Event.CreatedAt.Location(), time.UTC)
	equal(r, "next due", c.NextDue.Equal(late.DeliverAt), true)
	equal(r, "zone of the next due", c.NextDue.Location(), time.UTC)
}

func noSharedBytes[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	e.Headers = map[string]string{"h": "before"}
	want := string(e.Payload)
	r.insert(e)
	change := func(e convergo.Event) {
		e.Headers["h"] = "after"
		for i := range e.Payload {
			e.Payload[i] = 'x'
		}
	}
	change(e)
	leases := r.lease("a")
	change(r.claim(leases, 10, 0).Events[0].Event)
	got := r.claim(leases, 10, 0).Events[0].Event
	equal(r, "payload", string(got.Payload), want)
	equal(r, "header", got.Headers["h"], "before")
}

// otherUnit: another program wrote nanoseconds, or something that is no time at all.
func otherUnit[TX any](r *rig[TX]) {
	want := map[convergo.Key]int64{}
	for i, us := range []int64{1_764_000_000_000_000_000, math.MaxInt64, math.MinInt64} {
		e := event(orderIn(3, i), 1)
		e.CreatedAt = convergo.FromMicros(us)
		want[e.Key] = us
		r.insertEach(e)
	}
	r.insertEach(event(orderIn(3, 3), 1))
	c := r.claim(r.lease("a"), 10, 0)
	equal(r, "claimed", len(c.Events), 4)
	for _, p := range c.Events {
		us, bad := want[p.Event.Key]
		if !bad {
			equal(r, "the good one's error", p.Malformed, nil)
			continue
		}
		if !errors.Is(p.Malformed, convergo.ErrInvalid) || !strings.Contains(p.Malformed.Error(), fmt.Sprintf("created_at %d is the year", us)) {
			r.Errorf("created_at %d: %v", us, p.Malformed)
		}
	}
}
