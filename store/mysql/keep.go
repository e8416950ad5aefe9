package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
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
	us := convergo.Micros(now)
	_, err := list(ctx, s.db, func(rows *sql.Rows) (none struct{}, err error) {
		var i, count, since int64
		if err = rows.Scan(&i, &count, &since); err == nil {
			*queues[i] = ops.Queue{Count: count, Since: convergo.FromMicros(since)}
		}
		return none, err
	}, s.sql.Get("CountBacklog"), us, us, us)
	if err != nil {
		return ops.Backlog{}, s.fail("backlog", err)
	}
	return b, nil
}

// aged is a row that may be old enough to leave.
type aged struct{ id, at int64 }

func scanAged(rows *sql.Rows) (a aged, err error) { return a, rows.Scan(&a.id, &a.at) }

// PurgeSent implements ops.Keeper. Old rows are found without locks; those that are finished are locked, by primary key, and rows
// that another purge has locked are passed over, so that cleaners do not wait for each other, nor writers for them.
func (s *Store) PurgeSent(ctx context.Context, before time.Time, most int) (n int, err error) {
	window, above := min(max(most, 100), listMost), int64(0)
	for n < most {
		var old []int64
		if old, above, err = s.eventsBefore(ctx, convergo.Micros(before), above, window); err != nil || len(old) == 0 {
			break
		}
		var purged int
		if purged, err = s.purgeEvents(ctx, old, most-n); err != nil {
			break
		}
		n += purged
	}
	if err != nil {
		return n, s.fail("purge sent events", err)
	}
	return n, nil
}

// eventsBefore is a window of events with an id above the given one, those that were written before the time, and its last id. Ids
// grow with time, nearly: after a window that holds nothing old there is none. Unfinished old rows are passed over by the caller,
// so they cannot keep others from leaving.
func (s *Store) eventsBefore(ctx context.Context, before, above int64, window int) (old []int64, last int64, err error) {
	rows, err := list(ctx, s.db, scanAged, s.sql.Get("EventsAbove"), above, window)
	if err != nil {
		return nil, 0, fmt.Errorf("EventsAbove: %w", err)
	}
	for _, row := range rows {
		last = row.id
		if row.at < before {
			old = append(old, row.id)
		}
	}
	return old, last, nil
}

// purgeEvents removes those of the events that are finished, up to most. What has a row that says it is unfinished is not locked, and
// a replay locks the event's row before it makes it pending: asked again under the lock, nothing can be missed. Asked for every way
// of being unfinished: between the first look and the lock a replayed event may have failed already, and wait or be dead.
func (s *Store) purgeEvents(ctx context.Context, ids []int64, most int) (n int, err error) {
	finished, err := list(ctx, s.db, scanID, s.with("SentAmong", ":ids", numbers(ids)), most)
	if err != nil {
		return 0, fmt.Errorf("SentAmong: %w", err)
	}
	if len(finished) == 0 {
		return 0, nil
	}
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		n = 0
		sent, err := list(ctx, tx, scanID, s.sql.Get("LockSent"), array(finished))
		if err != nil {
			return fmt.Errorf("LockSent: %w", err)
		}
		if len(sent) == 0 {
			return nil
		}
		ids := array(sent)
		again, err := list(ctx, tx, scanID, s.sql.Get("UnfinishedAmong"), ids, ids, ids, ids)
		if err != nil {
			return fmt.Errorf("UnfinishedAmong: %w", err)
		}
		sent = slices.DeleteFunc(sent, func(id int64) bool { return slices.Contains(again, id) })
		if len(sent) == 0 {
			return nil
		}
		for _, statement := range []string{"PurgeEvents", "PurgeDiscarded"} {
			if _, err = s.exec(ctx, tx, statement, array(sent)); err != nil {
				return err
			}
		}
		n = len(sent)
		return nil
	})
	return n, err
}

// PurgeMarks implements ops.Keeper.
func (s *Store) PurgeMarks(ctx context.Context, before time.Time, most int) (int, error) {
	return s.purgeOld(ctx, "OldMarks", "PurgeMarks", convergo.Micros(before), most)
}

// PurgeRequests implements ops.Keeper.
func (s *Store) PurgeRequests(ctx context.Context, before time.Time, most int) (int, error) {
	return s.purgeOld(ctx, "OldRequests", "PurgeRequests", convergo.Micros(before), most)
}

// purgeOld looks at the rows with the lowest ids, which are the oldest, nearly, and removes the old ones among them.
func (s *Store) purgeOld(ctx context.Context, find, purge string, before int64, most int) (int, error) {
	rows, err := list(ctx, s.db, scanAged, s.sql.Get(find), max(most, 1000))
	if err != nil {
		return 0, s.fail(find, err)
	}
	var ids []int64
	for _, row := range rows {
		if row.at < before && len(ids) < most {
			ids = append(ids, row.id)
		}
	}
	return s.purge(ctx, purge, ids)
}

// purge removes rows by primary key.
func (s *Store) purge(ctx context.Context, statement string, ids []int64) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	slices.Sort(ids)
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		removed, err := s.exec(ctx, tx, statement, array(ids))
		n = int(removed)
		return err
	})
	if err != nil {
		return 0, s.fail(statement, err)
	}
	return n, nil
}

// PurgeCalls implements ops.Keeper.
func (s *Store) PurgeCalls(ctx context.Context, before time.Time, most int) (n int, err error) {
	for _, state := range []outside.State{outside.Done, outside.Failed} {
		if n >= most {
			break
		}
		var purged int
		if purged, err = s.purgeCalls(ctx, state, convergo.Micros(before), most-n); err != nil {
			return n, err
		}
		n += purged
	}
	return n, nil
}

func (s *Store) purgeCalls(ctx context.Context, state outside.State, before int64, most int) (int, error) {
	groups := map[string]bool{}
	ids, err := list(ctx, s.db, func(rows *sql.Rows) (id int64, err error) {
		var group string
		err = rows.Scan(&id, &group)
		groups[group] = group != ""
		return id, err
	}, s.sql.Get("OldCalls"), int64(state), before, most)
	if err != nil {
		return 0, s.fail("OldCalls", err)
	}
	n, err := s.purge(ctx, "PurgeCalls", ids)
	if err != nil {
		return 0, err
	}
	for group, named := range groups {
		if !named {
			continue
		}
		err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
			_, err := s.exec(ctx, tx, "PurgeGroup", group, group)
			return err
		})
		if err != nil {
			return n, s.fail("purge calls", err)
		}
	}
	return n, nil
}
