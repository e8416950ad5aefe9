package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
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
		return false, fmt.Errorf("postgres store %s: add call %s: %w", s.opts.Name, call.Key, err)
	}
	if added == 0 {
		return false, nil
	}
	s.wakeCallsAfter(tx)
	return true, nil
}

// Claim implements outside.Store. With nothing to do it is one statement.
func (s Calls) Claim(
	ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time,
) (claimed []outside.Claimed, next time.Time, err error) {
	if len(kinds) == 0 {
		return nil, time.Time{}, nil
	}
	next, err = s.next(ctx, kinds, now)
	if err == nil && !next.IsZero() && !next.After(now) {
		err = s.update(ctx, func(ctx context.Context, tx *Tx) (err error) {
			claimed, err = s.claim(ctx, tx, kinds, lease, limit, now)
			return err
		})
		if err == nil {
			next, err = s.next(ctx, kinds, now)
		}
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("postgres store %s: claim calls: %w", s.opts.Name, err)
	}
	return claimed, next, nil
}

// next is when something can be claimed next, by the caller's clock; zero when there is nothing.
func (s Calls) next(ctx context.Context, kinds []string, now time.Time) (next time.Time, err error) {
	var at, left *int64
	err = s.reader(ctx, func(c session) error {
		_, err := c.one(ctx, "NextCall", []any{kinds}, &at, &left)
		return err
	})
	if at != nil {
		next = convergo.FromMicros(*at)
	}
	if left != nil {
		if expiry := now.Add(time.Duration(*left) * time.Microsecond); next.IsZero() || expiry.Before(next) {
			next = expiry
		}
	}
	return next, err
}

// claim takes over first what was left behind, then what is due.
func (s Calls) claim(
	ctx context.Context, tx *Tx, kinds []string, lease time.Duration, limit int, now time.Time,
) (all []outside.Claimed, err error) {
	for _, statement := range []string{"ClaimExpiredCalls", "ClaimWaitingCalls"} {
		if len(all) >= limit {
			break
		}
		args := []any{kinds, lease.Microseconds(), int64(limit - len(all)), convergo.Micros(now)}
		err := tx.each(ctx, statement, args, func(rows pgx.Rows) error {
			var c outside.Claimed
			var ambiguous int64
			err := rows.Scan(&c.Kind, &c.Key, &c.Group, &c.Token, &c.Attempts, &ambiguous, &c.Payload)
			c.Ambiguous = ambiguous != 0
			all = append(all, c)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
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
		return false, fmt.Errorf("postgres store %s: finish call %s: state %d is not an outcome", s.opts.Name, c.Key, o.State)
	}
	key := c.Key.Digest()
	held, err := s.exec(ctx, tx, "FinishCall", key[:], c.Token, int64(o.State), attempt, ambiguous,
		convergo.Micros(o.Next), clip(o.Error), o.Result, convergo.Micros(now))
	if err != nil {
		return false, fmt.Errorf("postgres store %s: finish call %s: %w", s.opts.Name, c.Key, err)
	}
	if held == 0 {
		return false, nil
	}
	s.wakeCallsAfter(tx) // the next of its group, or its own next attempt, may be due
	return true, nil
}
