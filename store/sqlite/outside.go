package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/store/internal/stored"
)

// Calls is the store as outside.Store: outgoing calls have a Claim of their own.
type Calls struct{ *Store }

// Calls is the store's part for outgoing calls.
func (s *Store) Calls() Calls { return Calls{s} }

// Add implements outside.Store.
func (s Calls) Add(ctx context.Context, tx convergo.Tx, call outside.Call, now time.Time) (bool, error) {
	key, us := call.Key.Digest(), convergo.Micros(now)
	added, err := s.exec(ctx, tx, "AddCall", call.Kind, string(call.Key), key[:], call.Group,
		max(convergo.Micros(call.NotBefore), us), us, us, stored.NotNil(call.Payload))
	if err != nil {
		return false, fmt.Errorf("sqlite store %s: add call %s: %w", s.opts.Name, call.Key, err)
	}
	if added == 0 {
		return false, nil
	}
	s.wakeCallsAfter(tx)
	return true, nil
}

// Claim implements outside.Store. With nothing to do it is one statement, on a reading connection.
func (s Calls) Claim(
	ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time,
) (claimed []outside.Claimed, next time.Time, err error) {
	list, err := json.Marshal(kinds)
	if err != nil || len(kinds) == 0 {
		return nil, time.Time{}, err
	}
	c := claim{kinds: string(list), lease: lease, limit: limit, now: now}
	err = s.reader(ctx, func(conn *cachingConn) error { return c.look(ctx, s.sql, conn.each) })
	next = c.next()
	if err == nil && (c.waits() || c.expired()) {
		err = s.update(ctx, func(ctx context.Context, tx *Tx) (err error) {
			again := c // this may run again
			claimed, err = s.claim(ctx, tx, &again)
			next = again.next()
			return err
		})
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sqlite store %s: claim calls: %w", s.opts.Name, err)
	}
	return claimed, next, nil
}

// claim is a claim of calls: what is asked for, and what there is.
type claim struct {
	kinds string // JSON array
	lease time.Duration
	limit int
	now   time.Time

	waiting time.Time // when the first waiting call is due; zero when none waits
	expiry  time.Time // when the first lease expires; zero when there is none
}

func (c *claim) waits() bool   { return !c.waiting.IsZero() && !c.waiting.After(c.now) }
func (c *claim) expired() bool { return !c.expiry.IsZero() && !c.expiry.After(c.now) }

// next is when something can be claimed next, by the caller's clock; zero when there is nothing.
func (c *claim) next() time.Time {
	if c.waiting.IsZero() || !c.expiry.IsZero() && c.expiry.Before(c.waiting) {
		return c.expiry
	}
	return c.waiting
}

// look finds out when something can be claimed.
func (c *claim) look(
	ctx context.Context, statements sqltext.Set,
	each func(ctx context.Context, query string, row func(v []driver.Value) error, args ...any) error,
) error {
	return each(ctx, statements.Get("NextCall"), func(v []driver.Value) error {
		c.waiting, c.expiry = time.Time{}, time.Time{}
		if v[0] != nil {
			c.waiting = convergo.FromMicros(integer(v[0]))
		}
		if v[1] != nil { // by the database's clock
			c.expiry = c.now.Add(time.Duration(integer(v[1])) * time.Microsecond)
		}
		return nil
	}, c.kinds)
}

// claim takes over first what was left behind, then what is due, and looks what is left.
func (s Calls) claim(ctx context.Context, tx *Tx, c *claim) (all []outside.Claimed, err error) {
	for _, step := range []struct {
		statement string
		due       bool
	}{{"ClaimExpiredCalls", c.expired()}, {"ClaimWaitingCalls", c.waits()}} {
		if !step.due || len(all) >= c.limit {
			continue
		}
		some, err := list(ctx, tx, scanClaimed, s.sql.Get(step.statement), c.kinds, c.lease.Microseconds(), c.limit-len(all), convergo.Micros(c.now))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.statement, s.explain(err))
		}
		all = append(all, some...)
	}
	return all, c.look(ctx, s.sql, tx.each)
}

func scanClaimed(rows *sql.Rows) (c outside.Claimed, err error) {
	var id int64
	return c, rows.Scan(&id, &c.Kind, &c.Key, &c.Group, &c.Token, &c.Attempts, &c.Ambiguous, &c.Payload)
}

// Finish implements outside.Store.
func (s Calls) Finish(ctx context.Context, tx convergo.Tx, c outside.Claimed, o outside.Outcome, now time.Time) (bool, error) {
	attempt, ambiguous := int64(0), int64(0)
	switch o.State {
	case outside.Waiting:
		attempt = 1
		if o.Ambiguous {
			ambiguous = 1
		}
	case outside.Done, outside.Failed:
	default:
		return false, fmt.Errorf("sqlite store %s: finish call %s: state %d is not an outcome", s.opts.Name, c.Key, o.State)
	}
	key := c.Key.Digest()
	held, err := s.exec(ctx, tx, "FinishCall", key[:], c.Token, int64(o.State), attempt, ambiguous,
		convergo.Micros(o.Next), clip(o.Error), o.Result, convergo.Micros(now))
	if err != nil {
		return false, fmt.Errorf("sqlite store %s: finish call %s: %w", s.opts.Name, c.Key, err)
	}
	if held == 0 {
		return false, nil
	}
	if c.Group != "" || o.State == outside.Waiting {
		s.wakeCallsAfter(tx) // the next of its group, or its own next attempt, may be due
	}
	return true, nil
}
