package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
)

// A table that was vacuumed with one row in it is thought to have one row for each of its pages, until the next vacuum. What joins it
// with a choice of its rows may then make the choice anew for each row that there is.
func TestALimitHoldsWhateverTheStatisticsSay(t *testing.T) {
	const most, rows = 4, 30
	now := time.Now()
	for name, c := range map[string]struct {
		row   string
		claim func(s *postgres.Store) (int, error)
	}{
		"blocked aggregates that are hastened": {
			`INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error, blocked_at)
				SELECT sha256(convert_to($1::text, 'UTF8')), 7, 'order', $1::text, 1, 9e15::bigint, 'waiting for order.OrderPaid: gone', 1`,
			func(s *postgres.Store) (int, error) {
				return s.Hasten(t.Context(), lease(t, s, "a"), "waiting for order.OrderPaid: ", most, now)
			},
		},
		"calls that are due": {
			`INSERT INTO outside_call (kind, call_key, key_digest, next_at, created_at, updated_at, payload)
				SELECT 'refund', $1::text, sha256(convert_to($1::text, 'UTF8')), 1, 1, 1, '{}'::bytea`,
			func(s *postgres.Store) (int, error) {
				calls, _, err := s.Calls().Claim(t.Context(), []string{"refund"}, time.Minute, most, now)
				return len(calls), err
			},
		},
		"calls whose owner died": {
			`INSERT INTO outside_call (kind, call_key, key_digest, state, lease_until, next_at, created_at, updated_at, payload)
				SELECT 'refund', $1::text, sha256(convert_to($1::text, 'UTF8')), 1, 1, 1, 1, 1, '{}'::bytea`,
			func(s *postgres.Store) (int, error) {
				calls, _, err := s.Calls().Claim(t.Context(), []string{"refund"}, time.Minute, most, now)
				return len(calls), err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, s := openQuiet(t)
			add := func(n int) {
				must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
					_, err := tx.ExecContext(ctx, c.row, fmt.Sprint("row-", n))
					return err
				}))
			}
			add(0)
			must(t, server.Exec("postgres", "VACUUM ANALYZE"))
			for n := range rows {
				add(n + 1)
			}
			n, err := c.claim(s)
			must(t, err)
			same(t, "rows", n, most)
		})
	}
}

// However many wait in a lane, only as many of them are read as are hastened, with statistics of the table and without.
func TestHasteningAFewReadsAFewOfThoseThatWait(t *testing.T) {
	server, s := openQuiet(t)
	now := time.Now()
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error, blocked_at)
			SELECT sha256(convert_to(i::text, 'UTF8')), i % 64, 'order', i::text, 1, 9e15::bigint + i, 'waiting for order.OrderPaid: gone', 1
			  FROM generate_series(1, 100000) AS i`)
		return err
	}))
	lanes := make([]int16, convergo.Lanes)
	for i := range lanes {
		lanes[i] = int16(i)
	}
	for _, statistics := range []bool{false, true} {
		if statistics {
			must(t, server.Exec("postgres", "VACUUM ANALYZE"))
		}
		pages, err := s.HastenBuffers(t.Context(), lanes, "waiting for order.OrderPaid: ", 16, now)
		must(t, err)
		t.Logf("statistics %t: %d pages", statistics, pages)
		if pages > 600 || pages < 16 { // a lane's rows stand on 1,500 pages
			t.Errorf("statistics %t: 16 of 100,000 that are hastened touch %d pages, want 600 at most", statistics, pages)
		}
	}
}
