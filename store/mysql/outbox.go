package mysql

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/internal/stored"
)

// Insert implements outbox.Store. tx may be a transaction of this store or any other transaction on the same database, for
// example an *sql.Tx; only the former can arrange a wake-up. A transaction of another's is not repeated here: when the error is
// MySQL's 1213 or 1205, roll it back and run it again.
func (s *Store) Insert(ctx context.Context, tx convergo.Tx, events []convergo.Event) ([]bool, error) {
	fresh := make([]bool, len(events))
	any := false
	for i := range events {
		id, err := s.insertEvent(ctx, tx, &events[i])
		if err != nil {
			return nil, fmt.Errorf("mysql store %s: insert event %s: %w", s.opts.Name, events[i].Key, err)
		}
		fresh[i] = id != 0
		any = any || fresh[i]
	}
	if any {
		s.wakeAfter(tx)
	}
	return fresh, nil
}

func (s *Store) insertEvent(ctx context.Context, tx convergo.Tx, e *convergo.Event) (id int64, err error) {
	headers, err := stored.HeadersText(e.Headers)
	if err != nil {
		return 0, err
	}
	key, aggregate := e.Key.Digest(), e.Aggregate.Digest()
	return s.once(ctx, tx, "InsertEvent", convergo.Micros(e.CreatedAt), convergo.Micros(e.DeliverAt), int64(laneOf(aggregate)), e.Version,
		int64(e.MaxAttempts), key[:], aggregate[:], e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID, string(e.Key),
		headers, stored.NotNil(e.Payload))
}

// laneOf is Aggregate.Lane of a digest that is known already.
func laneOf(d convergo.Digest) convergo.Lane { return convergo.Lane(d[0] % convergo.Lanes) }

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
