package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/internal/stored"
)

// exec runs a named statement in tx, which is ours or somebody else's, and returns how many rows it affected.
func (s *Store) exec(ctx context.Context, tx convergo.Tx, name string, args ...any) (int64, error) {
	if own, ok := tx.(*Tx); ok {
		if err := own.usable(ctx); err != nil {
			return 0, err
		}
		return own.exec(ctx, name, args...)
	}
	result, err := tx.ExecContext(ctx, s.sql.Get(name), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return result.RowsAffected()
}

// one reads the first row of a named query in tx; found is false when there is none.
func (s *Store) one(ctx context.Context, tx convergo.Tx, name string, args []any, dest ...any) (found bool, err error) {
	if own, ok := tx.(*Tx); ok {
		if err := own.usable(ctx); err != nil {
			return false, err
		}
		return own.one(ctx, name, args, dest...)
	}
	err = tx.QueryRowContext(ctx, s.sql.Get(name), args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// own is tx as one of ours: what needs lists as arguments, or locks that outlast a statement, is not for others.
func (s *Store) own(tx convergo.Tx) (*Tx, error) {
	own, ok := tx.(*Tx)
	if !ok || own.store != s {
		return nil, fmt.Errorf("needs a transaction of this store, not %T", tx)
	}
	return own, nil
}

// each calls row with every row of a named query.
func (t *Tx) each(ctx context.Context, name string, args []any, row func(rows pgx.Rows) error) error {
	if err := t.usable(ctx); err != nil {
		return err
	}
	return t.session.each(ctx, name, args, row)
}

// eventRow receives the columns created_at, deliver_at, aggregate_version, max_attempts, topic, type, aggregate_type,
// aggregate_id, message_id, event_key, headers, payload.
type eventRow struct {
	created, deliver, version   int64
	most                        int64
	topic, kind, group, id      string
	message, key, encodedHeader string
	payload                     []byte
}

// columns are where the columns go; before are those that stand before the event's.
func (r *eventRow) columns(before ...any) []any {
	return append(before, &r.created, &r.deliver, &r.version, &r.most, &r.topic, &r.kind, &r.group, &r.id, &r.message, &r.key,
		&r.encodedHeader, &r.payload)
}

func (r *eventRow) event() convergo.Event {
	return convergo.Event{
		CreatedAt: convergo.FromMicros(r.created), DeliverAt: convergo.FromMicros(r.deliver), Version: r.version, MaxAttempts: int(r.most),
		Topic: r.topic, Type: r.kind, Aggregate: convergo.Aggregate{Type: r.group, ID: r.id}, MessageID: r.message,
		Key: convergo.Key(r.key), Headers: relay.HeadersOf(r.encodedHeader), Payload: stored.NotNil(r.payload),
	}
}

// nullableEvent is an eventRow whose columns may all be NULL: an outer join found none.
type nullableEvent struct {
	created, deliver, version, most                     *int64
	topic, kind, group, id, message, key, encodedHeader *string
	payload                                             []byte
}

func (r *nullableEvent) columns(before ...any) []any {
	return append(before, &r.created, &r.deliver, &r.version, &r.most, &r.topic, &r.kind, &r.group, &r.id, &r.message, &r.key,
		&r.encodedHeader, &r.payload)
}

func (r *nullableEvent) event() convergo.Event {
	full := eventRow{
		*r.created, *r.deliver, *r.version, *r.most, *r.topic, *r.kind, *r.group, *r.id, *r.message, *r.key, *r.encodedHeader, r.payload,
	}
	return full.event()
}

// readable is a text as PostgreSQL takes it: what came out of a malformed message may be no UTF-8, or have zero bytes.
func readable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func clip(text string) string {
	return strings.ReplaceAll(stored.Clip(text, stored.MaxErrorBytes), "\x00", "")
}
