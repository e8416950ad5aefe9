package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Rewrite is how '?' placeholders are rewritten.
func Rewrite(query string) string { return rewrite(query) }

// FirstNew is the lowest transaction that one snapshot does not see and a later one may.
func FirstNew(earlier, later string) (int64, error) {
	a, err := parseSnapshot(earlier)
	if err != nil {
		return 0, err
	}
	b, err := parseSnapshot(later)
	if err != nil {
		return 0, err
	}
	return a.firstNew(b), nil
}

// Pooled tells whether a pooler was found between us and the server.
func (s *Store) Pooled() bool { return s.pooled }

// ForgetFloors has the next claim start at the beginning of each lane.
func (s *Store) ForgetFloors() { s.floors.forget() }

// ClaimBuffers is how many pages the statements of a claim would touch now.
func (s *Store) ClaimBuffers(ctx context.Context, leases []relay.Lease, perLane int) (pages int, err error) {
	c := claiming{store: s, ctx: ctx, leases: leases}
	for _, l := range leases {
		c.lanes = append(c.lanes, int16(l.Lane))
	}
	err = s.snapshot(ctx, s.begin.claim, func(session session) error {
		c.session, c.floors = session, s.floors.delayed(c.lanes)
		if _, _, err := c.due(0); err != nil {
			return err
		}
		next, err := c.explain("NextDue", c.lanes, int64(0), c.floors)
		if err != nil {
			return err
		}
		lanes, starts, _ := s.floors.look(leases, c.seen, c.seq, c.started)
		rows, err := c.explain("ClaimLanes", lanes, starts, int64(perLane))
		pages = next + rows
		return err
	})
	return pages, err
}

// HastenBuffers is how many pages Hasten touches, which it does.
func (s *Store) HastenBuffers(ctx context.Context, lanes []int16, mark string, most int, now time.Time) (pages int, err error) {
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		pages, err = (&claiming{store: s, ctx: ctx, session: tx.session}).explain("Hasten", lanes, convergo.Micros(now), mark, int64(most))
		return err
	})
	return pages, err
}

func (c *claiming) explain(name string, args ...any) (pages int, err error) {
	err = c.session.raw(func(conn *pgx.Conn) error {
		var text []byte
		args := append([]any{pgx.QueryExecModeExec}, args...)
		if err := conn.QueryRow(c.ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+c.store.sql.Get(name), args...).Scan(&text); err != nil {
			return fmt.Errorf("explain %s: %w", name, err)
		}
		var plans []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			return err
		}
		pages = plans[0].Plan.Hit + plans[0].Plan.Read
		return nil
	})
	return pages, err
}

// TimesPlans are the plans of the statements that OddTimes reads rows with, as the server would run them now.
func (s *Store) TimesPlans(ctx context.Context) (lines []string, err error) {
	err = s.snapshot(ctx, s.begin.claim, func(c session) error {
		if _, err := c.exec(ctx, "ByIndexOnly"); err != nil {
			return err
		}
		for _, name := range []string{"TimesBefore", "TimesAfter", "EventsBelow"} {
			err := c.raw(func(conn *pgx.Conn) error {
				args := []any{pgx.QueryExecModeExec, convergo.Micros(time.Now()), int64(1000)}
				rows, err := conn.Query(ctx, "EXPLAIN (ANALYZE, BUFFERS) "+c.store.sql.Get(name), args...)
				if err != nil {
					return err
				}
				plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
				lines = append(append(lines, name), plan...)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	return lines, err
}
