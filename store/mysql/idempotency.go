package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/store/internal/stored"
)

// FindRequest implements idempotency.Store.
func (s *Store) FindRequest(ctx context.Context, tx convergo.Tx, scope string, key convergo.Key) (*idempotency.Record, error) {
	digest := key.Digest()
	r := idempotency.Record{Scope: scope, Key: key}
	var (
		fingerprint []byte
		at          int64
		header      string
	)
	err := tx.QueryRowContext(ctx, s.sql.Get("FindRequest"), scope, digest[:]).Scan(&fingerprint, &r.Status, &at, &header, &r.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		r.Header, err = stored.Headers(header)
	}
	if err != nil {
		return nil, fmt.Errorf("mysql store %s: find request %s: %w", s.opts.Name, key, explain(err))
	}
	copy(r.Fingerprint[:], fingerprint)
	r.At = convergo.FromMicros(at)
	return &r, nil
}

// RecordRequest implements idempotency.Store.
func (s *Store) RecordRequest(ctx context.Context, tx convergo.Tx, r idempotency.Record) (bool, error) {
	header, err := stored.HeadersText(r.Header)
	if err != nil {
		return false, fmt.Errorf("mysql store %s: record request %s: %w", s.opts.Name, r.Key, err)
	}
	digest := r.Key.Digest()
	inserted, err := s.exec(ctx, tx, "RecordRequest", r.Scope, digest[:], string(r.Key), r.Fingerprint[:], int64(r.Status),
		convergo.Micros(r.At), header, stored.NotNil(r.Body))
	if err != nil {
		return false, fmt.Errorf("mysql store %s: record request %s: %w", s.opts.Name, r.Key, err)
	}
	return inserted == 1, nil
}
