package check

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// margin is how much later than a row what refers to it may have happened: an event is applied, a call is made, some time after
// the event was written. Above the place where retention has cut, references may still lead below it.
const margin = 24 * time.Hour

// retained is the time (in microseconds) before which rows may refer to events, marks, calls and requests that retention has
// deleted; 0 when it can have deleted nothing.
//
// What is missing from the beginning of a table is no evidence by itself: somebody may have deleted it, and on a server an id may
// never have been used, because its transaction was rolled back. What retention can have deleted was older than keep, so
// there must be things of that age: state changes and effects, which nothing ever deletes. On a platform without them, and
// for everything younger than keep on any other, a missing row is damage.
func retained(ctx context.Context, tx *sql.Tx, now time.Time, keep time.Duration) (horizon int64, err error) {
	cut := now.Add(-keep)
	var first sql.NullInt64
	err = tx.QueryRowContext(ctx, "SELECT MIN(at) FROM (SELECT MIN(at) AS at FROM change UNION ALL SELECT MIN(at) FROM effect)").Scan(&first)
	if err != nil {
		return 0, fmt.Errorf("the platform's age: %w", err)
	}
	if !first.Valid || first.Int64 >= cut.UnixMicro() {
		return 0, nil
	}
	for _, name := range Services() {
		for table, of := range map[string]struct{ oldest, age string }{
			"outbox_event": {"id", "created_at"}, "inbox_mark": {"id", "marked_at"}, "idempotency_record": {"id", "created_at"},
			// Open calls stay whatever their age.
			"outside_call": {"CASE WHEN state >= 2 THEN id END", "CASE WHEN state >= 2 THEN updated_at END"},
		} {
			h, err := kept(ctx, tx, name, table, of.oldest, of.age, cut)
			if err != nil {
				return 0, err
			}
			horizon = max(horizon, h)
		}
	}
	// Retention keeps rows for days: what is missing from the last hour is damage.
	return min(horizon, now.Add(-time.Hour).UnixMicro()), nil
}

// kept is the time since which the table is whole, with a margin, when retention has cut it no later than at cut; 0 when nothing
// was deleted from its beginning.
func kept(ctx context.Context, tx *sql.Tx, schema, table, oldest, age string, cut time.Time) (int64, error) {
	var id, first sql.NullInt64
	err := tx.QueryRowContext(ctx, "SELECT MIN("+oldest+"), MIN("+age+`) FROM "`+schema+`".`+table).Scan(&id, &first)
	if err != nil {
		return 0, fmt.Errorf("%s.%s: %w", schema, table, err)
	}
	latest := cut.Add(margin).UnixMicro()
	if id.Valid {
		if id.Int64 <= 1 {
			return 0, nil
		}
		return min(first.Int64+margin.Microseconds(), latest), nil
	}
	// Nothing is there: everything was deleted, or nothing ever was there. SQLite remembers the last id that it gave.
	var given int64
	err = tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(seq), 0) FROM "`+schema+`".sqlite_sequence WHERE name = ?`, table).Scan(&given)
	if err != nil || given == 0 {
		return 0, err
	}
	return latest, nil
}
