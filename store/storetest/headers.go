package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// BuryUnreadableHeaders claims rows in whose headers another program has written what cannot be sent as it stands there, or can. Each of
// the first kind is malformed, and the reason says of what kind it is; it holds back nobody else. more are such texts, with reasons, that
// not every database takes.
func BuryUnreadableHeaders(t *testing.T, store sqlStore, more map[string]string) {
	t.Helper()
	type row struct{ text, why, value string } // value is that of the header a
	rows := []row{
		{text: `{"a":"\ud800"}`, why: `\ud800 is half of a character`}, {text: `{"a":"x\udc00\ud800"}`, why: `\udc00 is half of a character`},
		{text: `{"\ud83d":"x"}`, why: `\ud83d is half of a character`}, {text: `{"a":null}`, why: "another kind: null"},
		{text: "null", why: "another kind: null"}, {text: `{"a":"1","a":"2"}`, why: "a name stands twice"},
		{text: `{"a":1}`, why: "another kind: number"}, {text: `["a"]`, why: "another kind: array"}, {text: `{"a":"b"`, why: "end of JSON"},
		{text: `{"a":"\ud83d\ude00"}`, value: "😀"}, {text: `{"a":"\\ud800"}`, value: `\ud800`}, {text: "{\n \"a\": \"n\uFFFD:\"\n}", value: "n\uFFFD:"},
		{text: "{}"},
	}
	for text, why := range more {
		rows = append(rows, row{text: text, why: why})
	}
	ctx, now := t.Context(), time.Now()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, row := range rows {
		check(store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			e := event(orderIn(5, i), i+1)
			_, err := store.Insert(ctx, tx, []convergo.Event{e})
			if err == nil {
				_, err = tx.ExecContext(ctx, "UPDATE outbox_event SET headers = ? WHERE aggregate_version = ?", row.text, e.Version)
			}
			return err
		}))
	}
	leases, err := store.Lease(ctx, relay.LeaseRequest{Owner: "a", Term: time.Hour})
	check(err)
	c, err := store.Claim(ctx, leases, 100, now)
	check(err)
	if len(c.Events) != len(rows) {
		t.Fatalf("%d events are claimed, want %d", len(c.Events), len(rows))
	}
	settlement := relay.Settlement{Leases: leases, Now: now, HoldAggregate: true}
	for i, p := range c.Events {
		if why := rows[i].why; why == "" {
			settlement.Sent = append(settlement.Sent, p)
			if p.Malformed != nil || p.Event.Headers["a"] != rows[i].value {
				t.Errorf("%s is read as %q, malformed: %v", rows[i].text, p.Event.Headers, p.Malformed)
			}
		} else if settlement.Dead = append(settlement.Dead, relay.Failure{Pending: p, Error: rows[i].text}); !errors.Is(p.Malformed, convergo.ErrInvalid) ||
			convergo.VerdictOf(p.Malformed) != convergo.Park || !strings.Contains(p.Malformed.Error(), why) {
			t.Errorf("%q is read as %q, malformed: %v, want %q", rows[i].text, p.Event.Headers, p.Malformed, why)
		}
	}
	check(store.Settle(ctx, settlement))
	dead, err := store.DeadEvents(ctx, 100, 0)
	check(err)
	if len(dead) != len(settlement.Dead) {
		t.Errorf("%d dead events are listed, want %d", len(dead), len(settlement.Dead))
	}
	for _, d := range dead { // a person sees what stands there
		text := rows[d.Event.Version-1].text
		if shown := d.Event.Headers[relay.UnreadableHeaders]; !strings.HasSuffix(shown, "\n"+strings.ToValidUTF8(text, "\uFFFD")) {
			t.Errorf("%q is shown as %q", text, d.Event.Headers)
		}
	}
}
