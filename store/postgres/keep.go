package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

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
	err := s.reader(ctx, func(c session) error {
		return c.each(ctx, "CountBacklog", []any{convergo.Micros(now)}, func(rows pgx.Rows) error {
			var i, count, since int64
			if err := rows.Scan(&i, &count, &since); err != nil {
				return err
			}
			*queues[i-1] = ops.Queue{Count: count, Since: convergo.FromMicros(since)}
			return nil
		})
	})
	if err != nil {
		return ops.Backlog{}, fmt.Errorf("postgres store %s: backlog: %w", s.opts.Name, err)
	}
	return b, nil
}

// PurgeSent implements ops.Keeper. What may go is found without locks; the write is by primary key and short.
func (s *Store) PurgeSent(ctx context.Context, before time.Time, most int) (n int, err error) {
	sent, err := s.sentBefore(ctx, convergo.Micros(before), most)
	if err == nil && len(sent) > 0 {
		err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
			ids, err := listIDs(ctx, tx.session, "LockEvents", sent)
			if err != nil {
				return err
			}
			removed, err := s.exec(ctx, tx, "PurgeEvents", ids)
			if err != nil {
				return err
			}
			n = int(removed)
			_, err = s.exec(ctx, tx, "PurgeDiscarded", ids)
			return err
		})
	}
	if err != nil {
		return 0, fmt.Errorf("postgres store %s: purge sent events: %w", s.opts.Name, err)
	}
	return n, nil
}

func listIDs(ctx context.Context, c session, statement string, args ...any) (ids []int64, err error) {
	ids = []int64{}
	err = c.each(ctx, statement, args, func(rows pgx.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// sentBefore lists up to most events that were written before the time and are finished. Ids grow with time, nearly: it reads
// windows from the lowest id on and stops after one that holds nothing old. Unfinished old rows are passed over, so they
// cannot keep others from leaving.
func (s *Store) sentBefore(ctx context.Context, before int64, most int) (sent []int64, err error) {
	window := int64(max(most, 1000))
	err = s.snapshot(ctx, s.begin.claim, func(c session) error {
		above := int64(0)
		for old := true; old && len(sent) < most; {
			var candidates []int64
			err := c.each(ctx, "EventsAbove", []any{above, window}, func(rows pgx.Rows) error {
				var at int64
				if err := rows.Scan(&above, &at); err != nil {
					return err
				}
				if at < before {
					candidates = append(candidates, above)
				}
				return nil
			})
			if old = len(candidates) > 0; err != nil || !old {
				return err
			}
			finished, err := listIDs(ctx, c, "SentAmong", candidates)
			if err != nil {
				return err
			}
			sent = append(sent, finished[:min(len(finished), most-len(sent))]...)
		}
		return nil
	})
	return sent, err
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
		return 0, fmt.Errorf("postgres store %s: %w", s.opts.Name, err)
	}
	return n, nil
}
