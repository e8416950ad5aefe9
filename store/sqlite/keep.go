package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outside"
)

// Backlog implements ops.Keeper.
func (s *Store) Backlog(ctx context.Context, now time.Time) (ops.Backlog, error) {
	var b ops.Backlog
	queues := []*ops.Queue{
		&b.Pending, &b.DelayedDue, &b.Delayed, &b.Waiting, &b.Dead, &b.InboxWait, &b.InboxDead, &b.CallsOpen, &b.CallsFailed,
	}
	err := s.reader(ctx, func(c *cachingConn) error {
		i := 0
		return c.each(ctx, s.sql.Get("CountBacklog"), func(v []driver.Value) error {
			*queues[i] = ops.Queue{Count: integer(v[0]), Since: convergo.FromMicros(integer(v[1]))}
			i++
			return nil
		}, convergo.Micros(now))
	})
	if err != nil {
		return ops.Backlog{}, fmt.Errorf("sqlite store %s: backlog: %w", s.opts.Name, err)
	}
	return b, nil
}

// PurgeSent implements ops.Keeper. What may go is found on a reading connection; the write is by primary key and short.
func (s *Store) PurgeSent(ctx context.Context, before time.Time, most int) (n int, err error) {
	sent, last, err := s.sentBefore(ctx, convergo.Micros(before), most)
	if err == nil && len(sent) > 0 {
		err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
			removed, err := s.exec(ctx, tx, "PurgeEvents", string(sent), last)
			if err != nil {
				return err
			}
			n = int(removed)
			_, err = s.exec(ctx, tx, "PurgeDiscarded", string(sent))
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("sqlite store %s: purge sent events: %w", s.opts.Name, err)
	}
	return n, nil
}

// sentBefore lists up to most events, as JSON, that were written before the time and are finished, and the last seq that
// was given when it looked. Ids grow with time, nearly: it reads windows from the lowest id on and stops after one that
// holds nothing old. Unfinished old rows are passed over, so they cannot keep others from leaving.
func (s *Store) sentBefore(ctx context.Context, before int64, most int) (sent []byte, last int64, err error) {
	window := max(most, 1000)
	err = s.snapshot(ctx, func(c *cachingConn) error {
		err := c.each(ctx, s.sql.Get("LastSeq"), func(v []driver.Value) error { last = integer(v[0]); return nil })
		above, found := int64(0), 0
		for old := true; err == nil && old && found < most; {
			var candidates []byte
			err = c.each(ctx, s.sql.Get("EventsAbove"), func(v []driver.Value) error {
				above = integer(v[0])
				if integer(v[1]) < before {
					candidates = appendID(candidates, above)
				}
				return nil
			}, above, int64(window))
			if old = candidates != nil; err != nil || !old {
				break
			}
			err = c.each(ctx, s.sql.Get("SentAmong"), func(v []driver.Value) error {
				if found < most {
					sent = appendID(sent, integer(v[0]))
					found++
				}
				return nil
			}, string(candidates))
		}
		return err
	})
	return sent, last, err
}

// PurgeMarks implements ops.Keeper.
func (s *Store) PurgeMarks(ctx context.Context, before time.Time, most int) (int, error) {
	return s.purge(ctx, "PurgeMarks", convergo.Micros(before), int64(most))
}

// PurgeRequests implements ops.Keeper.
func (s *Store) PurgeRequests(ctx context.Context, before time.Time, most int) (int, error) {
	return s.purge(ctx, "PurgeRequests", convergo.Micros(before), int64(most))
}

// PurgeCalls implements ops.Keeper.
func (s *Store) PurgeCalls(ctx context.Context, before time.Time, most int) (int, error) {
	n, err := s.purge(ctx, "PurgeCalls", convergo.Micros(before), int64(most), int64(outside.Done))
	if err != nil || n >= most {
		return n, err
	}
	refused, err := s.purge(ctx, "PurgeCalls", convergo.Micros(before), int64(most-n), int64(outside.Failed))
	return n + refused, err
}

func (s *Store) purge(ctx context.Context, statement string, args ...any) (n int, err error) {
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		removed, err := s.exec(ctx, tx, statement, args...)
		n = int(removed)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sqlite store %s: %w", s.opts.Name, err)
	}
	return n, nil
}
