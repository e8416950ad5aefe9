package memory

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
)

// Insert implements outbox.Store.
func (s *Store) Insert(ctx context.Context, tx *Tx, events []convergo.Event) ([]bool, error) {
	if err := ready(ctx, tx, "insert events"); err != nil {
		return nil, err
	}
	fresh := make([]bool, len(events))
	for i, e := range events {
		fresh[i] = tx.insertEvent(e)
		if fresh[i] && !tx.woken.events {
			tx.woken.events = true
			tx.AfterCommit(s.wakeEvents)
		}
	}
	return fresh, nil
}

func (tx *Tx) insertEvent(e convergo.Event) bool {
	key := e.Key.Digest()
	if tx.now.eventKeys.has(key) {
		return false
	}
	tx.now.lastEvent++
	row := eventRow{id: tx.now.lastEvent, event: copyEvent(e), digest: e.Aggregate.Digest(), lane: e.Aggregate.Lane()}
	tx.now.events = tx.now.events.put(row.id, row)
	tx.now.eventKeys = tx.now.eventKeys.put(key, row.id)
	if due := convergo.Micros(e.DeliverAt); due > 0 {
		tx.now.delayed = tx.now.delayed.put(laneDue{row.lane, due, row.id}, none{})
		return true
	}
	tx.makePending(row.lane, row.id)
	return true
}

// makePending gives the event the next position, the last of its lane.
func (tx *Tx) makePending(lane convergo.Lane, id int64) {
	tx.now.lastSeq++
	tx.now.pending = tx.now.pending.put(laneSeq{lane, tx.now.lastSeq}, id)
}

// ready tells why a method may not write in tx now.
func ready(ctx context.Context, tx *Tx, what string) error {
	err := ctx.Err()
	if err == nil {
		err = tx.writable()
	}
	if err != nil {
		return fmt.Errorf("memory store: %s: %w", what, err)
	}
	return nil
}
