package storetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

// LargeKeys are the keys of such rows: each is the first event of its aggregate, which is "order" and the key.
func LargeKeys(rows int) (keys []convergo.Key) {
	for i := range rows {
		keys = append(keys, convergo.Key("large-"+string(rune('a'+i/26))+string(rune('a'+i%26))))
	}
	return keys
}

// BuryLargeRows runs a relay over a store in which another program has written a row for each of LargeKeys(rows), with a payload of
// size bytes, and behind each of them an event that is as it should be. All rows have to die and the others to be sent, and no more memory may be taken, over
// all, than a few of the rows have bytes: a relay that reads them is ended by the system, at every start.
func BuryLargeRows(t *testing.T, store relay.Store, operators ops.Outbox, rows, size int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := &publisher{}
	r := relay.New(store, sent, relay.Config{OnDead: relay.SkipEvent})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	deadline := time.After(2 * time.Minute)
	for r.Stats().Dead < int64(rows) || sent.count() < rows {
		select {
		case <-deadline:
			t.Fatalf("%d of %d rows are dead, %d of the events behind them sent: %+v", r.Stats().Dead, rows, sent.count(), r.Stats())
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > uint64(3*size) {
		t.Errorf("%d bytes of memory were taken for %d rows that nobody needs to read", taken, rows)
	} else {
		t.Logf("%d bytes of memory were taken in all", taken)
	}
	dead, err := operators.DeadEvents(context.WithoutCancel(ctx), 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(dead) != rows {
		t.Errorf("%d dead events are listed, want %d", len(dead), rows)
	}
	for _, d := range dead {
		if d.PayloadBytes != int64(size) || len(d.Event.Payload) > 0 || d.Place != "relay.read" ||
			!strings.Contains(d.Error, "put a payload that fits into this row") || !strings.Contains(d.Error, fmt.Sprint(size)) || !strings.Contains(d.Error, "524288") {
			t.Errorf("%s is listed with %d of %d bytes, dead at %s: %s", d.Event.Key, len(d.Event.Payload), d.PayloadBytes, d.Place, d.Error)
		}
	}
}

// BuryLongText runs a relay over a store with one row, of which one text is far too long.
func BuryLongText(t *testing.T, store relay.Store, operators ops.Outbox, column string, size int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := relay.New(store, &publisher{}, relay.Config{})
	done := make(chan error, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() { done <- r.Run(ctx) }()
	for deadline := time.After(time.Minute); r.Stats().Dead == 0; {
		select {
		case <-deadline:
			t.Fatalf("the row is not dead: %+v", r.Stats())
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	dead, err := operators.DeadEvents(context.WithoutCancel(ctx), 10, 0)
	runtime.ReadMemStats(&after)
	if err != nil || len(dead) != 1 {
		t.Fatalf("%d dead events are listed: %v", len(dead), err)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > uint64(size)/2 {
		t.Errorf("%d bytes of memory were taken for a text of %d that nobody needs to read", taken, size)
	}
	if text := dead[0].Error; !strings.Contains(text, column) || !strings.Contains(text, fmt.Sprint(size)) || !dead[0].Held {
		t.Errorf("held: %v, the error is %q", dead[0].Held, text)
	} else if mendable := strings.Contains(text, "put headers that fit into this row"); mendable != (column == "headers") ||
		!mendable && !strings.Contains(text, "may not be changed") || !strings.Contains(text, "under another key") {
		t.Errorf("%s: the error does not say what can be done: %q", column, text)
	}
}

// sqlStore is a store whose tables another program may write to.
type sqlStore interface {
	relay.Store
	ops.Outbox
	Insert(ctx context.Context, tx convergo.Tx, events []convergo.Event) ([]bool, error)
	Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
}

// MendLargeRows does with dead events whose payload and headers are too large what their errors say: it puts what fits into their
// rows and redrives them. They are sent as they then are, and what comes behind them follows in order.
func MendLargeRows(t *testing.T, store sqlStore) {
	t.Helper()
	ctx, now, a := t.Context(), time.Now(), orderIn(11, 0)
	list := slices.Concat(tooLarge(a)[:2], []convergo.Event{event(a, 3)})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range list {
		check(store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			_, err := store.Insert(ctx, tx, []convergo.Event{e})
			return err
		}))
	}
	leases, err := store.Lease(ctx, relay.LeaseRequest{Owner: "a", Term: time.Hour})
	check(err)
	claim := func(want int) []relay.Pending {
		t.Helper()
		c, err := store.Claim(ctx, leases, 10, now)
		check(err)
		if len(c.Events) != want {
			t.Fatalf("%d events are claimed, want %d", len(c.Events), want)
		}
		return c.Events
	}
	events := claim(3)
	check(store.Settle(ctx, relay.Settlement{
		Leases: leases, Now: now, HoldAggregate: true, Aside: events[2:],
		Dead: []relay.Failure{{Pending: events[0], Error: events[0].Malformed.Error()}, {Pending: events[1], Error: events[1].Malformed.Error()}},
	}))
	check(store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE outbox_event SET payload = ?, headers = ? WHERE aggregate_version < 3", []byte("mended"), `{"a":"b"}`)
		return err
	}))
	dead, err := store.DeadEvents(ctx, 10, 0)
	check(err)
	for _, d := range dead {
		check(store.RedriveEvent(ctx, d.ID, "ann", "it fits now", now))
	}
	events = claim(3)
	for i, p := range events {
		if p.Malformed != nil || p.Event.Version != int64(i+1) || p.Event.Key != list[i].Key || i < 2 &&
			(string(p.Event.Payload) != "mended" || p.Event.Headers["a"] != "b") {
			t.Errorf("event %d is %+v, malformed: %v", i+1, p.Event, p.Malformed)
		}
	}
	check(store.Settle(ctx, relay.Settlement{Leases: leases, Now: now, Sent: events}))
	claim(0)
}
