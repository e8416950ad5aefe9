package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
)

// Calls is the store as outside.Store: outgoing calls have a Claim of their own.
type Calls struct{ *Store }

// Calls is the store's part for outgoing calls.
func (s *Store) Calls() Calls { return Calls{s} }

// Add implements outside.Store.
func (s Calls) Add(ctx context.Context, tx *Tx, call outside.Call, now time.Time) (bool, error) {
	if err := ready(ctx, tx, "add call"); err != nil {
		return false, err
	}
	key := call.Key.Digest()
	if tx.now.callKeys.has(key) {
		return false, nil
	}
	call.Payload = slices.Clone(call.Payload)
	call.NotBefore = convergo.FromMicros(convergo.Micros(call.NotBefore))
	tx.now.lastCall++
	id := tx.now.lastCall
	due := max(convergo.Micros(call.NotBefore), convergo.Micros(now))
	tx.now.calls = tx.now.calls.put(id, callRow{call: call, next: due, created: convergo.Micros(now), updated: convergo.Micros(now)})
	tx.now.callKeys = tx.now.callKeys.put(key, id)
	tx.now.open = tx.now.open.put(id, none{})
	if !tx.woken.calls {
		tx.woken.calls = true
		tx.AfterCommit(s.wakeCalls)
	}
	return true, nil
}

// Claim implements outside.Store.
func (s Calls) Claim(
	ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time,
) ([]outside.Claimed, time.Time, error) {
	var c claiming
	err := s.change(ctx, "claim calls", func(tx *Tx) error {
		clock := time.Now()
		c = claiming{tx: tx, kinds: kinds, now: convergo.Micros(now), clock: convergo.Micros(clock),
			lease: convergo.Micros(clock.Add(lease)), limit: limit, groups: map[string]bool{}}
		for id := range tx.now.open.all() {
			c.look(id)
		}
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return c.claimed, convergo.FromMicros(c.next), nil
}

type claiming struct {
	tx      *Tx
	kinds   []string
	now     int64 // judges when a waiting call is due
	clock   int64 // judges when a lease has expired
	lease   int64
	limit   int
	groups  map[string]bool // whose oldest open call has been seen
	claimed []outside.Claimed
	next    int64
}

func (c *claiming) look(id int64) {
	row, _ := c.tx.now.calls.get(id)
	if g := row.call.Group; g != "" {
		if c.groups[g] {
			return
		}
		c.groups[g] = true
	}
	if !slices.Contains(c.kinds, row.call.Kind) {
		return
	}
	due, now := row.next, c.now
	if row.state == outside.Started {
		due, now = row.lease, c.clock
	}
	if due > now || len(c.claimed) == c.limit {
		if c.next == 0 || due < c.next {
			c.next = due
		}
		return
	}
	if row.state == outside.Started { // its owner died, or is too slow: it may have reached the other side
		row.ambiguous = true
		row.attempts++
	}
	row.state, row.lease, row.updated = outside.Started, c.lease, c.now
	row.token++
	c.tx.now.calls = c.tx.now.calls.put(id, row)
	call := row.call
	call.Payload = slices.Clone(call.Payload)
	c.claimed = append(c.claimed, outside.Claimed{Call: call, Token: row.token, Attempts: row.attempts, Ambiguous: row.ambiguous})
}

// Finish implements outside.Store.
func (s Calls) Finish(ctx context.Context, tx *Tx, c outside.Claimed, o outside.Outcome, now time.Time) (bool, error) {
	if err := ready(ctx, tx, "finish call"); err != nil {
		return false, err
	}
	id, ok := tx.now.callKeys.get(c.Key.Digest())
	row, _ := tx.now.calls.get(id)
	if !ok || row.state != outside.Started || row.token != c.Token {
		return false, nil
	}
	switch o.State {
	case outside.Waiting:
		row.attempts++
		row.next, row.ambiguous = convergo.Micros(o.Next), o.Ambiguous
	case outside.Done, outside.Failed:
		tx.now.open = tx.now.open.del(id)
	default:
		return false, fmt.Errorf("memory store: finish call %s: state %d is not an outcome", c.Key, o.State)
	}
	row.state, row.result, row.error = o.State, slices.Clone(o.Result), clip(o.Error)
	row.lease, row.updated = 0, convergo.Micros(now)
	tx.now.calls = tx.now.calls.put(id, row)
	return true, nil
}
