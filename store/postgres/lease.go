package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

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
		return nil, fmt.Errorf("postgres store %s: lease: %w", s.opts.Name, err)
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
		if _, err := s.one(ctx, tx, "LiveRelays", nil, &live); err != nil {
			return nil, err
		}
	}
	share := (convergo.Lanes + live - 1) / max(live, 1)
	for _, l := range req.Held[:min(req.Busy, len(req.Held))] { // what is in flight stays, also above the share
		if share < len(held) && held[share] == l {
			share++
		}
	}
	if len(held) > share { // another relay has come
		lanes, tokens := leaseLists(held[share:])
		if _, err := s.exec(ctx, tx, "FreeLanes", lanes, tokens, req.Owner); err != nil {
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
	lanes, _ := leaseLists(held)
	taken := held
	err = tx.each(ctx, "TakeLanes", []any{req.Owner, term, share - len(held), lanes}, func(rows pgx.Rows) error {
		var lane, token int64
		if err := rows.Scan(&lane, &token); err != nil {
			return err
		}
		taken = append(taken, relay.Lease{Lane: convergo.Lane(lane), Token: token})
		return nil
	})
	return taken, err
}

// renew returns those of the leases that still stood, in their order, and how many relays are alive if any did.
func (s *Store) renew(ctx context.Context, tx *Tx, req relay.LeaseRequest, term int64) (held []relay.Lease, live int, err error) {
	if len(req.Held) == 0 {
		return nil, 0, nil
	}
	lanes, tokens := leaseLists(req.Held)
	var stood [convergo.Lanes]bool
	err = tx.each(ctx, "RenewLanes", []any{lanes, tokens, req.Owner, term}, func(rows pgx.Rows) error {
		var lane int64
		if err := rows.Scan(&lane, &live); err != nil {
			return err
		}
		stood[lane] = true
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	for _, l := range req.Held {
		if l.Lane < convergo.Lanes && stood[l.Lane] {
			held = append(held, l)
		}
	}
	return held, live, nil
}

// leaseLists are the lanes and the tokens, for two arrays.
func leaseLists(leases []relay.Lease) (lanes []int16, tokens []int64) {
	lanes, tokens = make([]int16, 0, len(leases)), make([]int64, 0, len(leases))
	for _, l := range leases {
		lanes, tokens = append(lanes, int16(l.Lane)), append(tokens, l.Token)
	}
	return lanes, tokens
}

// Release implements relay.Store.
func (s *Store) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	lanes, tokens := leaseLists(leases)
	err := s.update(ctx, func(ctx context.Context, tx *Tx) error {
		if _, err := s.exec(ctx, tx, "FreeLanes", lanes, tokens, owner); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, "ForgetRelays", owner)
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres store %s: release: %w", s.opts.Name, err)
	}
	return nil
}
