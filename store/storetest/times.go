package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

// timesStore is a store that looks for times that cannot be meant.
type timesStore interface {
	sqlStore
	OddTimes(ctx context.Context, now time.Time) ([]ops.OddTimes, error)
}

// TellOddTimes has another program write times in other units, and events whose times are as they should be beside them. The first are
// found, with the unit and the first key, also when there are more than a look reads. What never comes is made due by hand, and dies.
func TellOddTimes(t *testing.T, store timesStore) {
	t.Helper()
	ctx, now := t.Context(), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	write := func(created, deliver int64) convergo.Key {
		t.Helper()
		n++
		e := event(orderIn(convergo.Lane(n%convergo.Lanes), n/convergo.Lanes), n)
		check(store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error { return writeTimes(ctx, tx, e, created, deliver) }))
		return e.Key
	}
	told := func() (lines []string) {
		t.Helper()
		found, err := store.OddTimes(ctx, now)
		check(err)
		for _, f := range found {
			lines = append(lines, fmt.Sprintf("%s %q %d more=%v waiting=%d %s %d", f.Column, f.Unit, f.Count, f.More, f.Waiting, f.Key, f.First.Value))
		}
		return lines
	}
	us := now.UnixMicro()
	write(us, 0)
	write(us, us+int64(time.Hour/time.Microsecond))
	write(us, now.AddDate(9, 11, 0).UnixMicro())
	write(0, 0)
	equalLists(t, "nothing is odd", told())

	seconds := write(us, now.Unix()+60)
	write(us, now.Unix()+120)
	milliseconds := write(us, now.UnixMilli())
	nanoseconds := write(us, now.UnixNano()+1)
	write(us, now.UnixNano())
	far := write(us, now.AddDate(11, 0, 0).UnixMicro())
	wait := write(us, 60_000_000) // how long, and not until when
	old := write(now.UnixMilli(), 0)
	want := []string{
		fmt.Sprintf(`deliver_at "seconds" 2 more=false waiting=2 %s %d`, seconds, now.Unix()+60),
		fmt.Sprintf(`deliver_at "milliseconds" 1 more=false waiting=1 %s %d`, milliseconds, now.UnixMilli()),
		fmt.Sprintf(`deliver_at "" 1 more=false waiting=1 %s %d`, wait, 60_000_000),
		fmt.Sprintf(`deliver_at "nanoseconds" 2 more=false waiting=2 %s %d`, nanoseconds, now.UnixNano()+1),
		fmt.Sprintf(`deliver_at "" 1 more=false waiting=1 %s %d`, far, now.AddDate(11, 0, 0).UnixMicro()),
		fmt.Sprintf(`created_at "milliseconds" 1 more=false waiting=0 %s %d`, old, now.UnixMilli()),
	}
	equalLists(t, "what is odd", told(), want...)

	makeDue(t, store, now)
	for i := range want[:4] {
		want[i] = strings.NewReplacer("waiting=1", "waiting=0", "waiting=2", "waiting=0").Replace(want[i])
	}
	equalLists(t, "what is odd and does not wait any more", told(), want...)
	check(store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for range ops.MostOddTimes {
			n++
			if err := writeTimes(ctx, tx, event(order(fmt.Sprint("more-", n)), n), us, now.Unix()+int64(n)); err != nil {
				return err
			}
		}
		return nil
	}))
	// The limit ends the look at early times, which come in their order; the oldest of what was written is beyond the newest.
	many := told()
	if len(many) != 4 || !strings.HasPrefix(many[0], fmt.Sprintf(`deliver_at "seconds" %d more=true`, ops.MostOddTimes-1)) {
		t.Errorf("of more than a look reads it tells %q", many)
	}
	tellFarTimes(t, store, now, func(tx convergo.Tx, deliver int64) error {
		n++
		return writeTimes(ctx, tx, event(order(fmt.Sprint("far-", n)), n), us, deliver)
	})
}

// tellFarTimes has more events wait for years, as may be meant, than a look reads: what never comes is found among them all the same.
func tellFarTimes(t *testing.T, store timesStore, now time.Time, write func(tx convergo.Tx, deliver int64) error) {
	t.Helper()
	err := store.Update(t.Context(), func(_ context.Context, tx convergo.Tx) error {
		for i := range ops.MostOddTimes {
			if err := write(tx, now.AddDate(11, 0, 0).UnixMicro()+int64(i)); err != nil {
				return err
			}
		}
		return write(tx, now.UnixNano()+2)
	})
	if err != nil {
		t.Fatal(err)
	}
	found, err := store.OddTimes(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	never := 0
	for _, f := range found {
		if f.Column == "deliver_at" && f.Unit == "nanoseconds" {
			never += f.Waiting
		}
	}
	equal(t, "events that never come, among more that wait for years than are read", never, 1)
}

// makeDue does with what would wait for ever as the documentation has it: it is made due, and dies for its time. The early ones are due
// already, and sent.
func makeDue(t *testing.T, store timesStore, now time.Time) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE outbox_delayed SET deliver_at = 1 WHERE deliver_at > 253402300799999999")
		return err
	}))
	leases, err := store.Lease(t.Context(), relay.LeaseRequest{Owner: "a", Term: time.Hour})
	check(err)
	c, err := store.Claim(t.Context(), leases, 100, now)
	check(err)
	dead := 0
	for _, p := range c.Events {
		if p.Malformed != nil && strings.Contains(p.Malformed.Error(), "deliver_at") && strings.Contains(p.Malformed.Error(), "nanoseconds") {
			dead++
		}
	}
	equal(t, "claimed: two made due, four early ones, and three at once", len(c.Events), 9)
	equal(t, "events that die for their deliver_at", dead, 2)
}

// writeTimes inserts an event as another program does, with times in whatever unit.
func writeTimes(ctx context.Context, tx convergo.Tx, e convergo.Event, created, deliver int64) error {
	key, aggregate := e.Key.Digest(), e.Aggregate.Digest()
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event (message_id, event_key, key_digest, topic, type, aggregate_type, aggregate_id,
 aggregate_digest, aggregate_version, lane, payload, deliver_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.MessageID, string(e.Key), key[:], e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, aggregate[:], e.Version,
		int64(e.Aggregate.Lane()), e.Payload, deliver, created)
	return err
}
