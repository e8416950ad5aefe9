package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Lease implements relay.Store.
func (s *Store) Lease(ctx context.Context, req relay.LeaseRequest) (held []relay.Lease, err error) {
	err = s.update(ctx, func(ctx context.Context, tx *Tx) (err error) {
		held, err = s.lease(ctx, tx, req)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: lease: %w", s.opts.Name, err)
	}
	return held, nil
}

func (s *Store) lease(ctx context.Context, tx *Tx, req relay.LeaseRequest) ([]relay.Lease, error) {
	term := req.Term.Microseconds()
	if _, err := s.exec(ctx, tx, "JoinRelays", req.Owner, term); err != nil {
		return nil, err
	}
	held, live, err := s.renew(ctx, tx, req, term)
	if err != nil || req.RenewOnly {
		return held, err
	}
	if len(held) == 0 {
		if err := tx.QueryRowContext(ctx, s.sql.Get("LiveRelays")).Scan(&live); err != nil {
			return nil, fmt.Errorf("LiveRelays: %w", err)
		}
	}
	share := (convergo.Lanes + live - 1) / max(live, 1)
	for _, l := range req.Held[:min(req.Busy, len(req.Held))] { // what is in flight stays, also above the share
		if share < len(held) && held[share] == l {
			share++
		}
	}
	if len(held) > share { // another relay has come
		if _, err := s.exec(ctx, tx, "FreeLanes", leasesText(held[share:]), req.Owner); err != nil {
			return nil, err
		}
		return held[:share], nil
	}
	if len(held) >= share {
		return held, nil
	}
	if _, err := s.exec(ctx, tx, "ForgetRelays", ""); err != nil {
		return nil, err
	}
	taken, err := list(ctx, tx, func(rows *sql.Rows) (l relay.Lease, err error) { return l, rows.Scan(&l.Lane, &l.Token) },
		s.sql.Get("TakeLanes"), req.Owner, term, share-len(held), leasesText(held))
	if err != nil {
		return nil, fmt.Errorf("TakeLanes: %w", s.explain(err))
	}
	return append(held, taken...), nil
}

// renew returns those of the leases that still stood, in their order, and how many relays are alive if any did.
func (s *Store) renew(ctx context.Context, tx *Tx, req relay.LeaseRequest, term int64) (held []relay.Lease, live int, err error) {
	if len(req.Held) == 0 {
		return nil, 0, nil
	}
	renewed, err := list(ctx, tx, func(rows *sql.Rows) (lane convergo.Lane, err error) { return lane, rows.Scan(&lane, &live) },
		s.sql.Get("RenewLanes"), leasesText(req.Held), req.Owner, term)
	if err != nil {
		return nil, 0, fmt.Errorf("RenewLanes: %w", s.explain(err))
	}
	var stood [convergo.Lanes]bool
	for _, lane := range renewed {
		stood[lane] = true
	}
	held = make([]relay.Lease, 0, len(renewed))
	for _, l := range req.Held {
		if l.Lane < convergo.Lanes && stood[l.Lane] {
			held = append(held, l)
		}
	}
	return held, live, nil
}

// leasesText is the JSON array of [lane, token].
func leasesText(leases []relay.Lease) string {
	text := append(make([]byte, 0, 16*len(leases)+2), '[')
	for i, l := range leases {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, '['), int64(l.Lane), 10)
		text = append(strconv.AppendInt(append(text, ','), l.Token, 10), ']')
	}
	return string(append(text, ']'))
}

// Release implements relay.Store.
func (s *Store) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	err := s.update(ctx, func(ctx context.Context, tx *Tx) error {
		if _, err := s.exec(ctx, tx, "FreeLanes", leasesText(leases), owner); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, "ForgetRelays", owner)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlite store %s: release: %w", s.opts.Name, err)
	}
	return nil
}
