package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

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
	var id int64
	var err error
	if call.Group != "" {
		_, err = s.exec(ctx, tx, "LockGroup", call.Group)
	}
	if err == nil {
		id, err = s.once(ctx, tx, "AddCall", call.Kind, string(call.Key), key[:], call.Group,
			max(convergo.Micros(call.NotBefore), us), us, us, stored.NotNil(call.Payload))
	}
	if err != nil {
		return false, s.fail("add call "+string(call.Key), err)
	}
	if id == 0 {
		return false, nil
	}
	s.wakeCallsAfter(tx)
	return true, nil
}

// Claim implements outside.Store. With nothing to do it is one statement and no transaction.
func (s Calls) Claim(
	ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time,
) (claimed []outside.Claimed, next time.Time, err error) {
	if len(kinds) == 0 {
		return nil, time.Time{}, nil
	}
	names := quoted(kinds)
	next, err = s.next(ctx, names, now)
	if err == nil && !next.IsZero() && !next.After(now) {
		err = s.update(ctx, func(ctx context.Context, tx *Tx) (err error) {
			claimed, err = s.claim(ctx, tx, names, lease, limit, now)
			return err
		})
		if err == nil {
			next, err = s.next(ctx, names, now)
		}
	}
	if err != nil {
		return nil, time.Time{}, s.fail("claim calls", err)
	}
	return claimed, next, nil
}

// quoted is a list of texts as it stands in a statement: as bytes, so that nothing in them can be taken for anything else.
func quoted(texts []string) string {
	parts := make([]string, len(texts))
	for i, text := range texts {
		parts[i] = "_utf8mb4 x'" + hex.EncodeToString([]byte(text)) + "'"
	}
	return strings.Join(parts, ",")
}

// next is when something can be claimed next, by the caller's clock; zero when there is nothing.
func (s Calls) next(ctx context.Context, kinds string, now time.Time) (next time.Time, err error) {
	var due, left sql.NullInt64
	if err = s.db.QueryRowContext(ctx, s.with("NextCall", ":kinds", kinds)).Scan(&due, &left); err != nil {
		return next, fmt.Errorf("NextCall: %w", err)
	}
	if due.Valid {
		next = convergo.FromMicros(due.Int64)
	}
	if left.Valid {
		if expiry := now.Add(time.Duration(left.Int64) * time.Microsecond); next.IsZero() || expiry.Before(next) {
			next = expiry
		}
	}
	return next, nil
}

// claim takes over first what was left behind, then what is due. The rows are locked and then changed by primary key.
func (s Calls) claim(
	ctx context.Context, tx *Tx, kinds string, lease time.Duration, limit int, now time.Time,
) (all []outside.Claimed, err error) {
	us := convergo.Micros(now)
	for _, step := range []struct {
		find, start string
		args        []any
	}{
		{"ClaimExpiredCalls", "StartExpiredCalls", nil},
		{"ClaimWaitingCalls", "StartWaitingCalls", []any{us}},
	} {
		if len(all) >= limit {
			break
		}
		var ids []int64
		some, err := list(ctx, tx, func(rows *sql.Rows) (c outside.Claimed, err error) {
			var id int64
			err = rows.Scan(&id, &c.Kind, &c.Key, &c.Group, &c.Token, &c.Attempts, &c.Ambiguous, &c.Payload)
			ids = append(ids, id)
			return c, err
		}, s.with(step.find, ":kinds", kinds), append(step.args, limit-len(all))...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.find, err)
		}
		if len(ids) == 0 {
			continue
		}
		slices.Sort(ids)
		if _, err = s.execWith(ctx, tx, step.start, []string{":ids", numbers(ids)}, lease.Microseconds(), us); err != nil {
			return nil, err
		}
		all = append(all, some...)
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
		return false, fmt.Errorf("mysql store %s: finish call %s: state %d is not an outcome", s.opts.Name, c.Key, o.State)
	}
	key := c.Key.Digest()
	held, err := s.exec(ctx, tx, "FinishCall", int64(o.State), attempt, ambiguous, convergo.Micros(o.Next), clip(o.Error), o.Result,
		convergo.Micros(now), key[:], c.Token)
	if err != nil {
		return false, s.fail("finish call "+string(c.Key), err)
	}
	if held == 0 {
		return false, nil
	}
	s.wakeCallsAfter(tx) // the next of its group, or its own next attempt, may be due
	return true, nil
}
