package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// Begin implements inbox.Notes.
func (s *Store) Begin(ctx context.Context, tx convergo.Tx, consumer, part string, key convergo.Key, now time.Time) (times int, err error) {
	digest := key.Digest()
	if _, err = s.exec(ctx, tx, "NoteBegun", consumer, part, digest[:], convergo.Micros(now)); err == nil {
		err = s.explain(tx.QueryRowContext(ctx, s.sql.Get("CountBegun"), consumer, part).Scan(&times))
	}
	if err != nil {
		return 0, fmt.Errorf("sqlite store %s: consumer %s: begin %s: %w", s.opts.Name, consumer, part, err)
	}
	return times, nil
}

// Register implements inbox.Notes.
func (s *Store) Register(ctx context.Context, tx convergo.Tx, consumer string, types []string, now time.Time) error {
	for _, t := range slices.Sorted(slices.Values(types)) {
		if _, err := s.exec(ctx, tx, "RegisterType", consumer, t, convergo.Micros(now)); err != nil {
			return fmt.Errorf("sqlite store %s: consumer %s: register %s: %w", s.opts.Name, consumer, t, err)
		}
	}
	return nil
}

// Registered implements inbox.Notes.
func (s *Store) Registered(ctx context.Context, tx convergo.Tx, consumer string, since time.Time) ([]string, error) {
	types, err := list(ctx, tx, func(rows *sql.Rows) (t string, err error) { return t, rows.Scan(&t) },
		s.sql.Get("RegisteredTypes"), consumer, convergo.Micros(since))
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: consumer %s: registered types: %w", s.opts.Name, consumer, s.explain(err))
	}
	return types, nil
}
