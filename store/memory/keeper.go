package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outside"
)

// tally counts rows and keeps the earliest of their times.
type tally struct {
	count int64
	since int64
}

func (t *tally) add(at int64) {
	if t.count == 0 || at < t.since {
		t.since = at
	}
	t.count++
}

func (t *tally) queue() ops.Queue {
	return ops.Queue{Count: t.count, Since: convergo.FromMicros(t.since)}
}

// Backlog implements ops.Keeper.
func (s *Store) Backlog(ctx context.Context, now time.Time) (ops.Backlog, error) {
	if err := ctx.Err(); err != nil {
		return ops.Backlog{}, fmt.Errorf("memory store: backlog: %w", err)
	}
	st := s.committed.Load()
	written := func(id int64) int64 {
		e, _ := st.events.get(id)
		return convergo.Micros(e.event.CreatedAt)
	}
	var pending, due, delayed, waiting, dead, inWait, inDead, open, failed tally
	for _, id := range st.pending.all() {
		pending.add(written(id))
	}
	for k := range st.delayed.all() {
		if k.at <= convergo.Micros(now) {
			due.add(k.at)
		} else {
			delayed.add(written(k.id))
		}
	}
	for _, w := range st.waiting.all() {
		waiting.add(written(w.id))
	}
	for _, d := range st.dead.all() {
		dead.add(d.at)
	}
	for _, w := range st.inQueue.all() {
		inWait.add(w.at)
	}
	for _, d := range st.inDead.all() {
		if d.state == ops.Open {
			inDead.add(d.at)
		}
	}
	for _, c := range st.calls.all() {
		switch c.state {
		case outside.Failed:
			failed.add(c.updated)
		case outside.Waiting, outside.Started:
			open.add(c.created)
		}
	}
	return ops.Backlog{
		Pending: pending.queue(), DelayedDue: due.queue(), Delayed: delayed.queue(), Waiting: waiting.queue(), Dead: dead.queue(),
		InboxWait: inWait.queue(), InboxDead: inDead.queue(), CallsOpen: open.queue(), CallsFailed: failed.queue(),
	}, nil
}

// purge removes up to most rows of a table that old says may go.
func purge[K, V any](t *table[K, V], most int, old func(K, V) bool, forget func(V)) (n int) {
	for k, v := range t.all() {
		if n >= most {
			break
		}
		if old(k, v) {
			*t = t.del(k)
			forget(v)
			n++
		}
	}
	return n
}

// PurgeSent implements ops.Keeper.
func (s *Store) PurgeSent(ctx context.Context, before time.Time, most int) (n int, err error) {
	err = s.change(ctx, "purge sent events", func(tx *Tx) error {
		unsent := tx.now.unsent()
		n = purge(&tx.now.events, most, func(id int64, e eventRow) bool {
			return !unsent[id] && convergo.Micros(e.event.CreatedAt) < convergo.Micros(before)
		}, func(e eventRow) {
			tx.now.eventKeys = tx.now.eventKeys.del(e.event.Key.Digest())
			tx.now.discarded = tx.now.discarded.del(e.id)
		})
		return nil
	})
	return n, err
}

// PurgeMarks implements ops.Keeper. The mark of an open dead letter stays: without it a redelivery would be applied.
func (s *Store) PurgeMarks(ctx context.Context, before time.Time, most int) (n int, err error) {
	err = s.change(ctx, "purge marks", func(tx *Tx) error {
		open := map[consumerKey]bool{}
		for _, d := range tx.now.inDead.all() {
			if d.state == ops.Open {
				open[consumerKey{d.consumer, d.event.Key.Digest()}] = true
			}
		}
		n = purge(&tx.now.marks, most, func(k consumerKey, m markRow) bool {
			return m.at < convergo.Micros(before) && !open[k]
		}, func(markRow) {})
		return nil
	})
	return n, err
}

// PurgeRequests implements ops.Keeper.
func (s *Store) PurgeRequests(ctx context.Context, before time.Time, most int) (n int, err error) {
	err = s.change(ctx, "purge requests", func(tx *Tx) error {
		n = purge(&tx.now.requests, most, func(_ requestKey, r idempotency.Record) bool {
			return r.At.Before(before)
		}, func(idempotency.Record) {})
		return nil
	})
	return n, err
}

// PurgeCalls implements ops.Keeper.
func (s *Store) PurgeCalls(ctx context.Context, before time.Time, most int) (n int, err error) {
	err = s.change(ctx, "purge calls", func(tx *Tx) error {
		n = purge(&tx.now.calls, most, func(id int64, c callRow) bool {
			return !tx.now.open.has(id) && c.updated < convergo.Micros(before)
		}, func(c callRow) { tx.now.callKeys = tx.now.callKeys.del(c.call.Key.Digest()) })
		return nil
	})
	return n, err
}
