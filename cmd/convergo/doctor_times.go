package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/convergo/convergo/ops"
)

// lookMost bounds the look at the times of events. It reads a few thousand rows by an index; a server that is too busy for that is left alone.
const lookMost = 5 * time.Second

// times warns of events whose times cannot be meant: a program in another language has written them in another unit, most likely.
func (e *examination) times(ctx context.Context, subject string, store *opened) {
	ctx, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	found, err := store.OddTimes(ctx, e.now())
	if err != nil {
		e.note(levelWarning, subject, "whether the times of its events can be meant was not seen: %v", err)
		return
	}
	for _, f := range found {
		e.note(levelWarning, subject, "%s", oddTimes(f))
	}
}

// oddTimes says how many, the first, the unit that it looks like, what comes of it, and what to do.
func oddTimes(f ops.OddTimes) string {
	var b strings.Builder
	count := "1 event"
	switch {
	case f.More:
		count = fmt.Sprintf("%d events or more", f.Count)
	case f.Count > 1:
		count = fmt.Sprintf("%d events", f.Count)
	}
	if f.Column == "created_at" {
		count += fmt.Sprintf(" of the newest %d", ops.MostOddTimes)
	}
	fmt.Fprintf(&b, "the %s of %s cannot be meant, the first is that of %q (id %d): %d", f.Column, count, f.Key, f.First.ID, f.First.Value)
	if f.Unit != "" {
		fmt.Fprintf(&b, " looks like %s", f.Unit)
	} else {
		b.WriteString(" is before 2000 or more than ten years ahead")
	}
	b.WriteString(", and microseconds since 1970 are wanted: mend the program that writes it; ")
	b.WriteString(comesOf(f))
	return b.String()
}

// beyond9999 is the last microsecond that a time may have. An event that is delayed until later dies for it when it is due.
const beyond9999 = 253402300799999999

func comesOf(f ops.OddTimes) string {
	early := f.First.Value < ops.EarliestMeant()
	switch {
	case f.Column == "created_at" && f.Unit == "nanoseconds":
		return "such an event is dead and waits for a person"
	case f.Column == "created_at" && early:
		return "such an event is purged soon after it was sent, so it cannot be replayed, and while it waits it is taken for one that waits very long"
	case f.Column == "created_at":
		return "such an event is not purged before that time"
	case early:
		return "such an event does not wait, it is sent at once"
	case f.Waiting == 0:
		return "none of them waits any more"
	case f.First.Value > beyond9999:
		return fmt.Sprintf("%d of them wait and would for ever: UPDATE outbox_delayed SET deliver_at = 1 WHERE deliver_at > %d makes them dead events; discard "+
			"those, and write them again under new keys", f.Waiting, beyond9999)
	}
	return fmt.Sprintf("%d of them wait; if that is not meant, UPDATE outbox_delayed SET deliver_at = 1 WHERE event_id = %d sends one now", f.Waiting, f.First.ID)
}
