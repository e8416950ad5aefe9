package mysql

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// Begin implements inbox.Notes.
func (s *Store) Begin(ctx context.Context, tx convergo.Tx, consumer, part string, key convergo.Key, now time.Time) (times int, err error) {
	digest := key.Digest()
	if _, err = s.exec(ctx, tx, "NoteBegun", consumer, part, digest[:], convergo.Micros(now)); err == nil {
		err = tx.QueryRowContext(ctx, s.sql.Get("CountBegun"), consumer, part).Scan(&times)
	}
	if err != nil {
		return 0, s.failed(consumer, "begin "+part, err)
	}
	return times, nil
}

// Register implements inbox.Notes.
func (s *Store) Register(ctx context.Context, tx convergo.Tx, consumer string, types []string, now time.Time) error {
	for _, t := range slices.Sorted(slices.Values(types)) {
		if _, err := s.exec(ctx, tx, "RegisterType", consumer, t, convergo.Micros(now)); err != nil {
			return s.failed(consumer, "register "+t, err)
		}
	}
	return nil
}

// Registered implements inbox.Notes.
func (s *Store) Registered(ctx context.Context, tx convergo.Tx, consumer string, since time.Time) ([]string, error) {
	types, err := list(ctx, tx, func(rows *sql.Rows) (t string, err error) { return t, rows.Scan(&t) },
		s.sql.Get("RegisteredTypes"), consumer, convergo.Micros(since))
	if err != nil {
		return nil, s.failed(consumer, "registered types", err)
	}
	return types, nil
}
