package postgres

import (
	"context"
	"fmt"
)

// BreakLeases ends the leases of all relays and outgoing calls at once, so that nobody has to wait for those of a process
// that was killed. Only a caller who knows that he is alone may do it. Tokens are not reset: should a former owner be alive
// after all, the store refuses what it settles.
func (s *Store) BreakLeases(ctx context.Context) error {
	err := s.update(ctx, func(ctx context.Context, tx *Tx) error {
		for _, statement := range []string{"BreakLanes", "ForgetAllRelays", "BreakCalls"} {
			if _, err := s.exec(ctx, tx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("postgres store %s: break leases: %w", s.opts.Name, err)
	}
	return nil
}
