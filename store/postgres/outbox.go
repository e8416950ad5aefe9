package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/internal/stored"
)

// Insert implements outbox.Store. tx may be a transaction of this store or any other transaction on the same database, for
// example an *sql.Tx: of a library that rewrites placeholders itself give its inner *sql.Tx. Only one that offers
// convergo.AfterCommit can arrange a wake-up; see Wake for the others. One event is one round trip, and so are many in a
// transaction of this store.
func (s *Store) Insert(ctx context.Context, tx convergo.Tx, events []convergo.Event) ([]bool, error) {
	var fresh []bool
	var err error
	if own, ok := tx.(*Tx); ok && own.store == s && len(events) > 1 {
		if err = own.usable(ctx); err == nil {
			err = own.raw(func(conn *pgx.Conn) error { fresh, err = s.insertBatch(ctx, conn, events); return err })
		}
	} else {
		fresh, err = s.insertEach(events, func(name string, args []any) (int64, error) { return s.exec(ctx, tx, name, args...) })
	}
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: insert: %w", s.opts.Name, err)
	}
	s.delayedAfter(tx, events)
	if slices.Contains(fresh, true) {
		s.wakeAfter(tx)
	}
	return fresh, nil
}

// delayedAfter tells the claims of this process about delayed events, now and again after the commit: until then a claim does
// not see them.
func (s *Store) delayedAfter(tx any, events []convergo.Event) {
	for i := range events {
		if deliver := convergo.Micros(events[i].DeliverAt); deliver > 0 {
			lane := events[i].Aggregate.Lane()
			s.floors.wrote(lane, deliver)
			if after, ok := tx.(convergo.AfterCommit); ok {
				after.AfterCommit(func() { s.floors.wrote(lane, deliver) })
			}
		}
	}
}

func (s *Store) insertEach(events []convergo.Event, exec func(name string, args []any) (int64, error)) ([]bool, error) {
	fresh := make([]bool, len(events))
	for i := range events {
		name, args, err := insertion(&events[i])
		if err != nil {
			return nil, err
		}
		affected, err := exec(name, args)
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", events[i].Key, err)
		}
		fresh[i] = affected == 1
	}
	return fresh, nil
}

// insertBatch sends all events in one round trip; the server inserts them one after another.
func (s *Store) insertBatch(ctx context.Context, conn sender, events []convergo.Event) ([]bool, error) {
	var batch pgx.Batch
	fresh := make([]bool, len(events))
	for i := range events {
		name, args, err := insertion(&events[i])
		if err != nil {
			return nil, err
		}
		batch.Queue(s.sql.Get(name), args...).Exec(func(tag pgconn.CommandTag) error {
			fresh[i] = tag.RowsAffected() == 1
			return nil
		})
	}
	return fresh, conn.SendBatch(ctx, &batch).Close()
}

// sender is a connection or transaction of pgx.
type sender interface {
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// insertion is the statement that inserts an event, and its arguments.
func insertion(e *convergo.Event) (name string, args []any, err error) {
	headers, err := stored.HeadersText(e.Headers)
	if err != nil {
		return "", nil, err
	}
	name = "InsertEvent"
	deliver := convergo.Micros(e.DeliverAt)
	if deliver > 0 {
		name = "InsertDelayed"
	}
	key, aggregate := e.Key.Digest(), e.Aggregate.Digest()
	return name, []any{
		convergo.Micros(e.CreatedAt), deliver, int64(laneOf(aggregate)), e.Version, int64(e.MaxAttempts), key[:], aggregate[:],
		e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID, string(e.Key), headers, stored.NotNil(e.Payload),
	}, nil
}

// laneOf is Aggregate.Lane of a digest that is known already.
func laneOf(d convergo.Digest) convergo.Lane { return convergo.Lane(d[0] % convergo.Lanes) }

// PGX is the outbox for pgx's own transactions: outbox.Store[pgx.Tx].
type PGX struct{ store *Store }

// PGX is the store's part for pgx.Tx. Such a transaction cannot tell when it has committed: call Wake then, or the relay finds
// the events with its next poll.
func (s *Store) PGX() PGX { return PGX{s} }

// Insert implements outbox.Store; one round trip.
func (p PGX) Insert(ctx context.Context, tx pgx.Tx, events []convergo.Event) (fresh []bool, err error) {
	if len(events) == 1 {
		fresh, err = p.store.insertEach(events, func(name string, args []any) (int64, error) {
			tag, err := tx.Exec(ctx, p.store.sql.Get(name), args...)
			return tag.RowsAffected(), err
		})
	} else {
		fresh, err = p.store.insertBatch(ctx, tx, events)
	}
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: insert: %w", p.store.opts.Name, err)
	}
	p.store.delayedAfter(tx, events)
	return fresh, nil
}

// wakeAfter arranges one wake-up of the relay per transaction.
func (s *Store) wakeAfter(tx convergo.Tx) {
	if own, ok := tx.(*Tx); ok {
		if own.woken.events {
			return
		}
		own.woken.events = true
	}
	if after, ok := tx.(convergo.AfterCommit); ok {
		after.AfterCommit(s.wakeEvents)
	}
}

// wakeCallsAfter arranges one wake-up for outgoing calls per transaction.
func (s *Store) wakeCallsAfter(tx convergo.Tx) {
	if own, ok := tx.(*Tx); ok {
		if own.woken.calls {
			return
		}
		own.woken.calls = true
	}
	if after, ok := tx.(convergo.AfterCommit); ok {
		after.AfterCommit(s.wakeCalls)
	}
}
