package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Hasten implements relay.Store.
func (s *Store) Hasten(ctx context.Context, leases []relay.Lease, mark string, most int, now time.Time) (n int, err error) {
	var lanes int64
	for _, l := range leases {
		if l.Lane < convergo.Lanes {
			lanes |= 1 << l.Lane
		}
	}
	if lanes == 0 || most <= 0 {
		return 0, ctx.Err()
	}
	err = s.update(ctx, func(ctx context.Context, tx *Tx) error {
		affected, err := s.exec(ctx, tx, "Hasten", lanes, convergo.Micros(now), mark, int64(most))
		n = int(affected)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sqlite store %s: hasten: %w", s.opts.Name, err)
	}
	return n, nil
}
