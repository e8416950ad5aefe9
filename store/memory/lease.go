package memory

import (
	"context"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Lease implements relay.Store.
func (s *Store) Lease(ctx context.Context, req relay.LeaseRequest) ([]relay.Lease, error) {
	var held []relay.Lease
	err := s.change(ctx, "lease lanes", func(tx *Tx) error {
		now := time.Now()
		share := tx.join(req.Owner, now, now.Add(req.Term))
		held = tx.lease(req, share, now)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// join renews the owner's membership, forgets the relays whose membership has ended, and returns the fair share.
func (tx *Tx) join(owner string, now, until time.Time) int {
	live := tx.now.relays
	for name, expires := range live.all() {
		if expires <= convergo.Micros(now) {
			live = live.del(name)
		}
	}
	tx.now.relays = live.put(owner, convergo.Micros(until))
	n := tx.now.relays.len()
	return (convergo.Lanes + n - 1) / n
}

func (tx *Tx) lease(req relay.LeaseRequest, share int, now time.Time) []relay.Lease {
	expires := convergo.Micros(now.Add(req.Term))
	var held []relay.Lease
	for i, l := range req.Held {
		row, _ := tx.now.lanes.get(l.Lane)
		if row.owner != req.Owner || !row.stands(l.Token, now) {
			continue
		}
		if len(held) >= share && i >= req.Busy && !req.RenewOnly { // above the fair share: another relay has come
			tx.now.lanes = tx.now.lanes.put(l.Lane, laneRow{token: row.token})
			continue
		}
		row.expires = expires
		tx.now.lanes = tx.now.lanes.put(l.Lane, row)
		held = append(held, l)
	}
	for i := 0; i < convergo.Lanes && len(held) < share && !req.RenewOnly; i++ {
		lane := convergo.Lane(i)
		row, _ := tx.now.lanes.get(lane)
		unknown := row.owner == req.Owner && !slices.ContainsFunc(held, func(l relay.Lease) bool { return l.Lane == lane })
		if row.owner != "" && row.expires > convergo.Micros(now) && !unknown {
			continue
		}
		row = laneRow{owner: req.Owner, token: row.token + 1, expires: expires}
		tx.now.lanes = tx.now.lanes.put(lane, row)
		held = append(held, relay.Lease{Lane: lane, Token: row.token})
	}
	return held
}

// stands tells whether a lease with this token is still good.
func (r laneRow) stands(token int64, now time.Time) bool {
	return r.owner != "" && r.token == token && r.expires > convergo.Micros(now)
}

// unowned tells whether any lane has no living owner.
func (st *state) unowned(now time.Time) bool {
	for i := range convergo.Lane(convergo.Lanes) {
		if row, _ := st.lanes.get(i); row.owner == "" || row.expires <= convergo.Micros(now) {
			return true
		}
	}
	return false
}

// Release implements relay.Store.
func (s *Store) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	return s.change(ctx, "release lanes", func(tx *Tx) error {
		for _, l := range leases {
			if row, _ := tx.now.lanes.get(l.Lane); row.owner == owner && row.token == l.Token {
				tx.now.lanes = tx.now.lanes.put(l.Lane, laneRow{token: row.token})
			}
		}
		tx.now.relays = tx.now.relays.del(owner)
		return nil
	})
}

// ExpireLeases ends every lease, of lanes and of outgoing calls, and every relay's membership, as if their terms had
// passed. For tests that do not run under testing/synctest.
func (s *Store) ExpireLeases(ctx context.Context) error {
	return s.change(ctx, "expire leases", func(tx *Tx) error {
		const past = 1
		for lane, row := range tx.now.lanes.all() {
			row.expires = past
			tx.now.lanes = tx.now.lanes.put(lane, row)
		}
		for owner := range tx.now.relays.all() {
			tx.now.relays = tx.now.relays.put(owner, past)
		}
		for id := range tx.now.open.all() {
			row, _ := tx.now.calls.get(id)
			row.lease = min(row.lease, past)
			tx.now.calls = tx.now.calls.put(id, row)
		}
		return nil
	})
}
