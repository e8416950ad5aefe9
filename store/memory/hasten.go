package memory

import (
	"context"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Hasten implements relay.Store.
func (s *Store) Hasten(ctx context.Context, leases []relay.Lease, mark string, most int, now time.Time) (n int, err error) {
	err = s.change(ctx, "hasten", func(tx *Tx) error {
		at := convergo.Micros(now)
		var found []convergo.Digest
		for _, l := range leases {
			for k := range tx.now.blockedDue.from(laneBlocked{lane: l.Lane, next: at + 1}) {
				if k.lane != l.Lane || len(found) >= most {
					break
				}
				if b, _ := tx.now.blocked.get(k.digest); strings.HasPrefix(b.lastError, mark) {
					found = append(found, k.digest)
				}
			}
		}
		for _, digest := range found {
			b, _ := tx.now.blocked.get(digest)
			b.next = at
			tx.setBlocked(digest, b)
		}
		n = len(found)
		return nil
	})
	return n, err
}
