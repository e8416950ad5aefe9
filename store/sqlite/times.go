package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"math"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// OddTimes looks for events whose times cannot be meant. It reads up to ops.MostOddTimes rows at either end of the delivery times, and the
// created_at of as many of the newest events, each by an index, and changes nothing.
func (s *Store) OddTimes(ctx context.Context, now time.Time) (found []ops.OddTimes, err error) {
	from, to := ops.MeantTimes(now)
	err = s.snapshot(ctx, func(c *cachingConn) error {
		for _, look := range []struct {
			column, statement string
			bound             int64
		}{{"deliver_at", "TimesBefore", from}, {"deliver_at", "TimesAfter", to}, {"created_at", "EventsBelow", math.MaxInt64}} {
			var rows []ops.TimeRow
			err := c.each(ctx, s.sql.Get(look.statement), func(v []driver.Value) error {
				rows = append(rows, ops.TimeRow{ID: integer(v[0]), Value: integer(v[1]), Waits: len(v) > 2 && integer(v[2]) != 0})
				return nil
			}, look.bound, int64(ops.MostOddTimes))
			if err != nil {
				return fmt.Errorf("%s: %w", look.statement, err)
			}
			found = append(found, ops.GroupTimes(look.column, rows, look.column == "deliver_at" && len(rows) == ops.MostOddTimes, now)...)
		}
		for i := range found {
			err := c.each(ctx, s.sql.Get("StartOfKey"), func(v []driver.Value) error {
				key, _ := v[0].(string)
				found[i].Key = convergo.Key(key)
				return nil
			}, found[i].First.ID)
			if err != nil {
				return fmt.Errorf("StartOfKey: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: times of events: %w", s.opts.Name, err)
	}
	return found, nil
}
