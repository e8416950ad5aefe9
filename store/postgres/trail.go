package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/internal/stored"
)

// Record implements ops.Trail.
func (s *Store) Record(ctx context.Context, a ops.Act) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error { return s.record(ctx, tx, a) })
	if err != nil {
		return fmt.Errorf("postgres store %s: record an act: %w", s.opts.Name, err)
	}
	return nil
}

// record writes down what a person did; when it is committed the log tells it.
func (s *Store) record(ctx context.Context, tx *Tx, a ops.Act) error {
	_, err := s.exec(ctx, tx, "RecordAct", stored.ActRow(a)...)
	if err == nil {
		tx.AfterCommit(func() { stored.LogAct(s.opts.Log, s.opts.Name, a) })
	}
	return err
}

// Acts implements ops.Trail.
func (s *Store) Acts(ctx context.Context, limit int, after int64) (acts []ops.Act, err error) {
	err = s.reader(ctx, func(c session) error {
		return c.each(ctx, "Acts", []any{after, int64(limit)}, func(rows pgx.Rows) error {
			a, err := stored.ScanAct(rows.Scan)
			acts = append(acts, a)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: acts: %w", s.opts.Name, err)
	}
	return acts, nil
}
