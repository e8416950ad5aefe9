package order

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/retain"
)

// keepClaims is how long the claim of a client token stays at least. While it is there, a repeat of the request with another
// Idempotency-Key gets the first answer; afterwards the token has expired long ago and is refused as such.
const keepClaims = 14 * 24 * time.Hour

// Retention are the rows that may leave: claims of client tokens. Orders, refunds and prices stay.
func (s *Service) Retention() []retain.Job {
	return []retain.Job{{Name: "client tokens", Keep: max(keepClaims, 2*s.cfg.TokenTTL), Purge: s.purgeClaims}}
}

// purgeClaims removes up to most claims that are older than before, never one whose token may still be good: that claim is all
// that stands between the token and a second order. A token expires at the latest one TokenTTL after it was claimed.
func (s *Service) purgeClaims(ctx context.Context, before time.Time, most int) (removed int, err error) {
	if good := s.deps.Now().Add(-s.cfg.TokenTTL); before.After(good) {
		before = good
	}
	err = s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		removed = 0
		old, err := selectRows[string](ctx, tx, s.sql.Get("OldClaims"), convergo.Micros(before), most)
		if err != nil {
			return err
		}
		for _, id := range old {
			n, err := s.exec(ctx, tx, "RemoveClaim", id)
			if err != nil {
				return err
			}
			removed += int(n)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("remove claims of client tokens: %w", err)
	}
	return removed, nil
}
