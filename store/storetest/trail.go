package storetest

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

func trail[TX any](r *rig[TX]) {
	r.insert(event(order("1"), 1), event(order("2"), 1))
	leases := r.lease("a")
	r.killEvents(leases, true)
	dead := r.deadEvents()
	r.bury(consumer, event(order("3"), 1), 1, true)
	r.bury(consumer, event(order("4"), 1), 1, true)
	letters := r.letters(consumer)
	at := func(n int) time.Time { return r.base.Add(time.Duration(n)*time.Minute + time.Microsecond) }

	r.must(r.Operators.RedriveEvent(r.ctx, dead[0].ID, "ann", "the broker is back", at(1)))
	r.must(r.Operators.DiscardEvent(r.ctx, dead[1].ID, "bob", "a test order: é", at(2)))
	r.must(r.Operators.RedriveLetter(r.ctx, letters[0].ID, "cid", "", at(3)))
	r.must(r.Operators.DiscardLetter(r.ctx, letters[1].ID, "dora", "told by phone", at(4)))
	since := "2026-11-29T08:00:00Z"
	r.must(r.Operators.Record(r.ctx, ops.Act{Target: ops.TargetSent, ID: since, Move: ops.MoveReplay, By: "eve", Reason: "a lost disk", At: at(5)}))
	r.wantError("redriving twice", r.Operators.RedriveEvent(r.ctx, dead[0].ID, "mallory", "", at(6)), ops.ErrNotFound)
	r.wantError("discarding twice", r.Operators.DiscardLetter(r.ctx, letters[1].ID, "mallory", "", at(6)), ops.ErrNotFound)
	number := func(n int) string { return strconv.FormatInt(dead[n].ID, 10) }
	key := func(n int) convergo.Key { return event(order(strconv.Itoa(n)), 1).Key }
	want := []ops.Act{
		{Target: ops.TargetEvent, ID: number(0), Move: ops.MoveRedrive, Key: key(1), By: "ann", Reason: "the broker is back", At: at(1)},
		{Target: ops.TargetEvent, ID: number(1), Move: ops.MoveDiscard, Key: key(2), By: "bob", Reason: "a test order: é", At: at(2)},
		{Target: ops.TargetLetter, ID: letters[0].ID, Move: ops.MoveRedrive, Key: key(3), By: "cid", At: at(3)},
		{Target: ops.TargetLetter, ID: letters[1].ID, Move: ops.MoveDiscard, Key: key(4), By: "dora", Reason: "told by phone", At: at(4)},
		{Target: ops.TargetSent, ID: since, Move: ops.MoveReplay, By: "eve", Reason: "a lost disk", At: at(5)},
	}
	r.wantActs("all", want)

	// What it was done to leaves, the record does not.
	n, err := r.Operators.PurgeSent(r.ctx, at(1_000_000), 100)
	r.must(err)
	equal(r, "purged", n, 1) // the discarded one
	r.wantActs("after the events left", want)

	long := strings.Repeat("é", 400)
	r.must(r.Operators.Record(r.ctx, ops.Act{Target: ops.TargetSent, ID: since, Move: ops.MoveReplay, By: long, Reason: "\xff\x00" + long, At: at(7)}))
	acts, err := r.Operators.Acts(r.ctx, 100, 0)
	r.must(err)
	for _, text := range []string{acts[5].By, acts[5].Reason} {
		if len(text) > ops.MaxText || len(text) < ops.MaxText-4 || !utf8.ValidString(text) || !strings.HasPrefix(long, text) {
			r.Errorf("a text of %d bytes is kept as %q", len(long), text)
		}
	}
}

func (r *rig[TX]) wantActs(what string, want []ops.Act) {
	r.Helper()
	var got []ops.Act
	for after := int64(0); ; after = got[len(got)-1].Seq {
		page, err := r.Operators.Acts(r.ctx, 2, after)
		r.must(err)
		got = append(got, page...)
		if len(page) == 0 {
			break
		}
	}
	if len(got) != len(want) {
		r.Fatalf("%s: %d acts on record, want %d: %+v", what, len(got), len(want), got)
	}
	for i, a := range got {
		if i > 0 && a.Seq <= got[i-1].Seq {
			r.Errorf("%s: act %d has number %d after %d", what, i, a.Seq, got[i-1].Seq)
		}
		a.Seq = 0
		if at := a.At; !at.Equal(convergo.FromMicros(convergo.Micros(want[i].At))) {
			r.Errorf("%s: act %d was at %v, want %v", what, i, at, want[i].At)
		}
		a.At = want[i].At
		equal(r, what, a, want[i])
	}
}
