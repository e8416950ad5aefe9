package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
)

// Begin implements inbox.Notes.
func (s *Store) Begin(ctx context.Context, tx convergo.Tx, consumer, part string, key convergo.Key, now time.Time) (times int, err error) {
	digest := key.Digest()
	if _, err = s.exec(ctx, tx, "NoteBegun", consumer, part, digest[:], convergo.Micros(now)); err == nil {
		_, err = s.one(ctx, tx, "CountBegun", []any{consumer, part}, &times)
	}
	if err != nil {
		return 0, fmt.Errorf("postgres store %s: consumer %s: begin %s: %w", s.opts.Name, consumer, part, err)
	}
	return times, nil
}

// Register implements inbox.Notes.
func (s *Store) Register(ctx context.Context, tx convergo.Tx, consumer string, types []string, now time.Time) error {
	for _, t := range slices.Sorted(slices.Values(types)) {
		if _, err := s.exec(ctx, tx, "RegisterType", consumer, t, convergo.Micros(now)); err != nil {
			return fmt.Errorf("postgres store %s: consumer %s: register %s: %w", s.opts.Name, consumer, t, err)
		}
	}
	return nil
}

// Registered implements inbox.Notes.
func (s *Store) Registered(ctx context.Context, tx convergo.Tx, consumer string, since time.Time) (types []string, err error) {
	own, err := s.own(tx)
	if err == nil {
		err = own.each(ctx, "RegisteredTypes", []any{consumer, convergo.Micros(since)}, func(rows pgx.Rows) error {
			var t string
			err := rows.Scan(&t)
			types = append(types, t)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: consumer %s: registered types: %w", s.opts.Name, consumer, err)
	}
	return types, nil
}
