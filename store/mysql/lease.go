package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

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
		return nil, s.fail("lease", err)
	}
	return held, nil
}

func (s *Store) lease(ctx context.Context, tx *Tx, req relay.LeaseRequest) ([]relay.Lease, error) {
	term := req.Term.Microseconds()
	if _, err := s.exec(ctx, tx, "JoinRelays", req.Owner, term); err != nil {
		return nil, err
	}
	held, err := s.standing(ctx, tx, "LockLanes", req.Held, req.Owner)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		if _, err = s.execWith(ctx, tx, "RenewLanes", []string{":lanes", lanesOf(held)}, term, req.Owner); err != nil {
			return nil, err
		}
	}
	if req.RenewOnly {
		return held, nil
	}
	live, err := s.liveRelays(ctx, tx)
	if err != nil {
		return nil, err
	}
	share := (convergo.Lanes + live - 1) / max(live, 1)
	for _, l := range req.Held[:min(req.Busy, len(req.Held))] { // what is in flight stays, also above the share
		if share < len(held) && held[share] == l {
			share++
		}
	}
	if len(held) > share { // another relay has come
		if _, err = s.execWith(ctx, tx, "FreeLanes", []string{":lanes", lanesOf(held[share:])}, req.Owner); err != nil {
			return nil, err
		}
		return held[:share], nil
	}
	if len(held) == share {
		return held, nil
	}
	return s.take(ctx, tx, req.Owner, held, share-len(held), term)
}

// take takes up to most lanes more.
func (s *Store) take(ctx context.Context, tx *Tx, owner string, held []relay.Lease, most int, term int64) ([]relay.Lease, error) {
	free, err := list(ctx, tx, func(rows *sql.Rows) (l relay.Lease, err error) { return l, rows.Scan(&l.Lane, &l.Token) },
		s.with("FreeableLanes", ":lanes", lanesOf(held)), owner, most)
	if err != nil {
		return nil, fmt.Errorf("FreeableLanes: %w", err)
	}
	if len(free) == 0 {
		return held, nil
	}
	if _, err = s.execWith(ctx, tx, "TakeLanes", []string{":lanes", lanesOf(free)}, owner, term); err != nil {
		return nil, err
	}
	for _, l := range free {
		held = append(held, relay.Lease{Lane: l.Lane, Token: l.Token + 1})
	}
	return held, nil
}

// liveRelays counts them, and forgets those that are dead.
func (s *Store) liveRelays(ctx context.Context, tx *Tx) (live int, err error) {
	var dead []string
	_, err = list(ctx, tx, func(rows *sql.Rows) (none struct{}, err error) {
		var (
			owner string
			alive bool
		)
		err = rows.Scan(&owner, &alive)
		if alive {
			live++
		} else {
			dead = append(dead, owner)
		}
		return none, err
	}, s.sql.Get("LiveRelays"))
	if err != nil {
		return 0, fmt.Errorf("LiveRelays: %w", err)
	}
	slices.Sort(dead)
	for _, owner := range dead {
		if _, err = s.exec(ctx, tx, "ForgetExpired", owner); err != nil {
			return 0, err
		}
	}
	return live, nil
}

// standing locks the rows of the leases' lanes and returns those leases that still stand, in their order. With no owner the
// token alone decides, which no two owners share.
func (s *Store) standing(
	ctx context.Context, tx *Tx, statement string, leases []relay.Lease, owner string,
) (stand []relay.Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	var tokens [convergo.Lanes]int64
	_, err = list(ctx, tx, func(rows *sql.Rows) (none struct{}, err error) {
		var (
			l       relay.Lease
			has     string
			current bool
		)
		if err = rows.Scan(&l.Lane, &has, &l.Token, &current); err == nil && current && has != "" && (owner == "" || owner == has) {
			tokens[l.Lane] = l.Token
		}
		return none, err
	}, s.with(statement, ":lanes", lanesOf(leases)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	for _, l := range leases {
		if l.Lane < convergo.Lanes && l.Token > 0 && tokens[l.Lane] == l.Token {
			stand = append(stand, l)
		}
	}
	return stand, nil
}

// lanesOf is the leases' lanes as a list in a statement.
func lanesOf(leases []relay.Lease) string {
	lanes := make([]int64, len(leases))
	for i, l := range leases {
		lanes[i] = int64(l.Lane)
	}
	slices.Sort(lanes)
	return numbers(slices.Compact(lanes))
}

// Release implements relay.Store.
func (s *Store) Release(ctx context.Context, owner string, leases []relay.Lease) error {
	err := s.update(ctx, func(ctx context.Context, tx *Tx) error {
		stand, err := s.standing(ctx, tx, "LockLanes", leases, owner)
		if err != nil {
			return err
		}
		if len(stand) > 0 {
			if _, err = s.execWith(ctx, tx, "FreeLanes", []string{":lanes", lanesOf(stand)}, owner); err != nil {
				return err
			}
		}
		_, err = s.exec(ctx, tx, "ForgetRelay", owner)
		return err
	})
	if err != nil {
		return s.fail("release", err)
	}
	return nil
}
