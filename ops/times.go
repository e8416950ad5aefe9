package ops

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// MostOddTimes is how many rows one look at a column reads.
const MostOddTimes = 1000

// aheadMost is how far ahead a time can be meant, in years.
const aheadMost = 10

// OddTimes are events of an outbox in one of whose columns stands a time that cannot be meant: before 2000, or more than ten years ahead.
// Nearly always a program in another language has written it in another unit than microseconds.
type OddTimes struct {
	Column  string // deliver_at or created_at
	Unit    string // that it looks like: seconds, milliseconds or nanoseconds; empty for none of these
	Count   int    // of such rows, as far as was looked: see OddTimes of the SQL stores
	More    bool   // the look ended at MostOddTimes rows: there may be more
	Waiting int    // of Count: delayed events whose time has not come
	First   TimeRow
	Key     convergo.Key // of First, its first 255 characters
}

// TimeRow is an event's row, as a look at one column reads it.
type TimeRow struct {
	ID    int64
	Value int64 // of the column
	Waits bool  // it is a delayed event whose time has not come
}

// EarliestMeant is the first microsecond of 2000.
func EarliestMeant() int64 { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() }

// MeantTimes are the bounds, in microseconds, between which a time can be meant at now. 0, which is none, is below.
func MeantTimes(now time.Time) (from, to int64) {
	return EarliestMeant(), now.AddDate(aheadMost, 0, 0).UnixMicro()
}

// GroupTimes are those of the rows whose times cannot be meant, by the unit that they look like. Their keys are still to be read.
func GroupTimes(column string, rows []TimeRow, more bool, now time.Time) []OddTimes {
	from, to := MeantTimes(now)
	groups := map[string]OddTimes{}
	for _, row := range rows {
		if row.Value == 0 || row.Value >= from && row.Value <= to {
			continue
		}
		unit := looksLike(row.Value, now)
		g := groups[unit]
		if g.Count == 0 || row.ID < g.First.ID {
			g.First = row
		}
		g.Column, g.Unit, g.More = column, unit, more
		g.Count++
		if row.Waits {
			g.Waiting++
		}
		groups[unit] = g
	}
	found := make([]OddTimes, 0, len(groups))
	for _, g := range groups {
		found = append(found, g)
	}
	slices.SortFunc(found, func(a, b OddTimes) int { return cmp.Compare(a.First.ID, b.First.ID) })
	return found
}

// looksLike is the unit, other than ours, in which the value is a time that can be meant at now.
func looksLike(value int64, now time.Time) string {
	from, to := MeantTimes(now)
	for _, unit := range []struct {
		name     string
		from, to int64
	}{
		{"seconds", from / 1e6, to / 1e6}, {"milliseconds", from / 1e3, to / 1e3}, {"nanoseconds", from * 1e3, nanoseconds(to)},
	} {
		if value >= unit.from && value <= unit.to {
			return unit.name
		}
	}
	return ""
}

// nanoseconds of microseconds; those of the year 2262 and later do not fit.
func nanoseconds(us int64) int64 {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return us * 1000
}
