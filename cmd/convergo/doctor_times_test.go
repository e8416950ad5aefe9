package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

func TestTheDoctorTellsOfTimesThatAnotherProgramWroteInAnotherUnit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shop.db")
	store, write := outboxIn(t, file)
	now := time.Now()
	write("good", "seconds", "milli", "nano1", "nano2", "old", "far")
	for id, set := range map[string]struct {
		column string
		value  int64
	}{
		"seconds": {"deliver_at", now.Unix()}, "milli": {"deliver_at", now.UnixMilli()}, "nano1": {"deliver_at", now.UnixNano()}, "nano2": {"deliver_at", now.UnixNano()},
		"old": {"created_at", now.UnixMilli()}, "far": {"deliver_at", now.AddDate(20, 0, 0).UnixMicro()},
	} {
		err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE outbox_event SET "+set.column+" = ? WHERE aggregate_id = ?", set.value, id)
			if err == nil && set.value > now.UnixMicro() {
				_, err = tx.ExecContext(ctx, "INSERT INTO outbox_delayed (event_id, lane, deliver_at) SELECT id, lane, deliver_at FROM outbox_event WHERE aggregate_id = ?", id)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	found := findings(t, 1, "--relay", "--database", "sqlite:"+file, "--broker", "nats://127.0.0.1:1") // the broker is not there
	for _, words := range [][]string{
		{"the deliver_at of 1 event cannot be meant, the first is that of \"OrderPaid:seconds:v1\" (id 2)", "looks like seconds, and microseconds since 1970", "it is sent at once"},
		{"the deliver_at of 1 event cannot", "OrderPaid:milli:v1", "looks like milliseconds", "it is sent at once"},
		{"the deliver_at of 2 events cannot", "OrderPaid:nano1:v1", "looks like nanoseconds", "2 of them wait and would for ever: UPDATE outbox_delayed SET deliver_at = 1 WHERE"},
		{"the deliver_at of 1 event cannot", "OrderPaid:far:v1", "more than ten years ahead", "WHERE event_id = 7 sends one now"},
		{"the created_at of 1 event of the newest 1000", "OrderPaid:old:v1", "looks like milliseconds", "cannot be replayed"},
	} {
		saysAll(t, found, outboxSubject, words...)
	}
	odd := 0
	for _, f := range found[outboxSubject] {
		if strings.Contains(f.Detail, "cannot be meant") {
			odd++
		}
	}
	if odd != 5 {
		t.Errorf("%d warnings, want 5: %v", odd, found[outboxSubject])
	}
}

// saysAll tells whether one warning of the subject says all the words.
func saysAll(t *testing.T, found map[string][]finding, subject string, words ...string) {
	t.Helper()
	for _, f := range found[subject] {
		all := f.Level == levelWarning
		for _, w := range words {
			all = all && strings.Contains(f.Detail, w)
		}
		if all {
			return
		}
	}
	t.Errorf("%s: no warning that says %q in %v", subject, words, found[subject])
}

func TestWhatComesOfATimeInAnotherUnitIsSaidForEachKind(t *testing.T) {
	far := time.Now().AddDate(20, 0, 0).UnixMicro()
	for words, f := range map[string]ops.OddTimes{
		"1000 events or more":           {Column: "deliver_at", Count: 1000, More: true, Waiting: 3, First: ops.TimeRow{Value: far}},
		"none of them waits any more":   {Column: "deliver_at", Count: 2, First: ops.TimeRow{Value: far}},
		"waits for a person":            {Column: "created_at", Count: 2, Unit: "nanoseconds", First: ops.TimeRow{Value: time.Now().UnixNano()}},
		"not purged before that time":   {Column: "created_at", Count: 2, First: ops.TimeRow{Value: far}},
		"is before 2000 or more than":   {Column: "created_at", Count: 2, First: ops.TimeRow{Value: 5}},
		"2 events of the newest 1000 c": {Column: "created_at", Count: 2, First: ops.TimeRow{Value: 5}},
	} {
		if text := oddTimes(f); !strings.Contains(text, words) {
			t.Errorf("%+v: %s, want %q", f, text, words)
		}
	}
}
