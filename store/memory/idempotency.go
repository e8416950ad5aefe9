package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
)

// FindRequest implements idempotency.Store.
func (s *Store) FindRequest(ctx context.Context, tx *Tx, scope string, key convergo.Key) (*idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: find request: %w", err)
	}
	r, ok := tx.now.requests.get(requestKey{scope, string(key)})
	if !ok {
		return nil, nil
	}
	r = copyRecord(r)
	return &r, nil
}

// RecordRequest implements idempotency.Store.
func (s *Store) RecordRequest(ctx context.Context, tx *Tx, r idempotency.Record) (bool, error) {
	if err := ready(ctx, tx, "record request"); err != nil {
		return false, err
	}
	key := requestKey{r.Scope, string(r.Key)}
	if tx.now.requests.has(key) {
		return false, nil
	}
	tx.now.requests = tx.now.requests.put(key, copyRecord(r))
	return true, nil
}

func copyRecord(r idempotency.Record) idempotency.Record {
	r.Header, r.Body = maps.Clone(r.Header), slices.Clone(r.Body)
	r.At = convergo.FromMicros(convergo.Micros(r.At))
	return r
}
