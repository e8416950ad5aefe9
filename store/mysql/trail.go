package mysql

import (
	"context"
	"database/sql"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/internal/stored"
)

// Record implements ops.Trail.
func (s *Store) Record(ctx context.Context, a ops.Act) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error { return s.record(ctx, tx, a) })
	if err != nil {
		return s.fail("record an act", err)
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
func (s *Store) Acts(ctx context.Context, limit int, after int64) ([]ops.Act, error) {
	acts, err := list(ctx, s.reader(ctx), func(rows *sql.Rows) (ops.Act, error) { return stored.ScanAct(rows.Scan) }, s.sql.Get("Acts"), after, limit)
	if err != nil {
		return nil, s.fail("acts", err)
	}
	return acts, nil
}
