package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// OddTimes looks for events whose times cannot be meant. It reads up to ops.MostOddTimes rows at either end of the delivery times, and the
// created_at of as many of the newest events, each by an index, and changes nothing.
func (s *Store) OddTimes(ctx context.Context, now time.Time) ([]ops.OddTimes, error) {
	var found []ops.OddTimes
	from, to := ops.MeantTimes(now)
	for _, look := range []struct {
		column, statement string
		bound             int64
		scan              func(rows *sql.Rows) (ops.TimeRow, error)
	}{
		{"deliver_at", "TimesBefore", from, scanTime}, {"deliver_at", "TimesAfter", to, scanTime},
		{"created_at", "EventsBelow", math.MaxInt64, func(rows *sql.Rows) (row ops.TimeRow, err error) { return row, rows.Scan(&row.ID, &row.Value) }},
	} {
		rows, err := list(ctx, s.db, look.scan, s.sql.Get(look.statement), look.bound, ops.MostOddTimes)
		if err != nil {
			return nil, s.fail("times of events", fmt.Errorf("%s: %w", look.statement, err))
		}
		found = append(found, ops.GroupTimes(look.column, rows, look.column == "deliver_at" && len(rows) == ops.MostOddTimes, now)...)
	}
	for i := range found {
		keys, err := list(ctx, s.db, func(rows *sql.Rows) (key string, err error) { return key, rows.Scan(&key) }, s.sql.Get("StartOfKey"), found[i].First.ID)
		if err != nil {
			return nil, s.fail("times of events", fmt.Errorf("StartOfKey: %w", err))
		}
		for _, key := range keys {
			found[i].Key = convergo.Key(key)
		}
	}
	return found, nil
}

func scanTime(rows *sql.Rows) (row ops.TimeRow, err error) {
	return row, rows.Scan(&row.ID, &row.Value, &row.Waits)
}
