package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/ops"
)

// OddTimes looks for events whose times cannot be meant. It reads up to ops.MostOddTimes rows at either end of the delivery times, and the
// created_at of as many of the newest events, each by an index, and changes nothing.
func (s *Store) OddTimes(ctx context.Context, now time.Time) (found []ops.OddTimes, err error) {
	from, to := ops.MeantTimes(now)
	err = s.snapshot(ctx, s.begin.claim, func(c session) error {
		if _, err := c.exec(ctx, "ByIndexOnly"); err != nil {
			return err
		}
		for _, look := range []struct {
			statement string
			bound     int64
		}{{"TimesBefore", from}, {"TimesAfter", to}} {
			rows, err := c.times(ctx, look.statement, look.bound)
			if err != nil {
				return err
			}
			found = append(found, ops.GroupTimes("deliver_at", rows, len(rows) == ops.MostOddTimes, now)...)
		}
		newest, err := c.times(ctx, "EventsBelow", math.MaxInt64)
		if err != nil {
			return err
		}
		found = slices.Concat(found, ops.GroupTimes("created_at", newest, false, now))
		for i := range found {
			if _, err := c.one(ctx, "StartOfKey", []any{found[i].First.ID}, (*string)(&found[i].Key)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: times of events: %w", s.opts.Name, err)
	}
	return found, nil
}

// times reads rows of an id, a time, and perhaps whether the event waits for it.
func (c session) times(ctx context.Context, statement string, bound int64) (list []ops.TimeRow, err error) {
	err = c.each(ctx, statement, []any{bound, int64(ops.MostOddTimes)}, func(rows pgx.Rows) error {
		var row ops.TimeRow
		dest := []any{&row.ID, &row.Value, &row.Waits}
		err := rows.Scan(dest[:len(rows.FieldDescriptions())]...)
		list = append(list, row)
		return err
	})
	return list, err
}
