package mysql

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Hasten implements relay.Store. What is to be hastened is read without locks; then the lanes' rows are locked, as everybody does who
// changes what is blocked, so that no two wait for each other.
func (s *Store) Hasten(ctx context.Context, leases []relay.Lease, mark string, most int, now time.Time) (n int, err error) {
	leases = slices.DeleteFunc(slices.Clone(leases), func(l relay.Lease) bool { return l.Lane >= convergo.Lanes })
	if len(leases) == 0 || most <= 0 {
		return 0, ctx.Err()
	}
	lanes, at := lanesOf(leases), convergo.Micros(now)
	digests, err := list(ctx, s.db, scanDigest, s.with("DueLater", ":lanes", lanes), at, mark, mark, most)
	if err != nil {
		return 0, s.fail("hasten", fmt.Errorf("DueLater: %w", err))
	}
	if len(digests) == 0 {
		return 0, nil
	}
	slices.SortFunc(digests, func(a, b convergo.Digest) int { return slices.Compare(a[:], b[:]) })
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		n = 0
		if _, err := s.standing(ctx, tx, "LockLanes", leases, ""); err != nil {
			return err
		}
		for chunk := range slices.Chunk(digests, headsMost) {
			affected, err := s.execWith(ctx, tx, "Hasten", []string{":digests", literals(chunk)}, at, at, mark, mark)
			if err != nil {
				return err
			}
			n += int(affected)
		}
		return nil
	})
	if err != nil {
		return 0, s.fail("hasten", err)
	}
	return n, nil
}
