package memory

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
)

// Mark implements inbox.Store.
func (s *Store) Mark(
	ctx context.Context, tx *Tx, consumer string, event convergo.Event, refuseStale bool, now time.Time,
) (inbox.Marked, error) {
	if err := ready(ctx, tx, "mark"); err != nil {
		return 0, err
	}
	key := consumerKey{consumer, event.Key.Digest()}
	payload := payloadDigest(event)
	if row, ok := tx.now.marks.get(key); ok {
		if row.payload != payload {
			return inbox.Mismatch, nil
		}
		return inbox.Duplicate, nil
	}
	if event.Version > 0 {
		aggregate := consumerKey{consumer, event.Aggregate.Digest()}
		last, _ := tx.now.versions.get(aggregate)
		if refuseStale && event.Version <= last {
			return inbox.Stale, nil
		}
		tx.now.versions = tx.now.versions.put(aggregate, max(last, event.Version))
	}
	tx.now.marks = tx.now.marks.put(key, markRow{payload, convergo.Micros(now)})
	return inbox.Fresh, nil
}

// Blocked implements inbox.Parking.
func (s *Store) Blocked(
	ctx context.Context, tx *Tx, consumer string, aggregates []convergo.Aggregate,
) (map[convergo.Aggregate]bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: blocked: %w", err)
	}
	blocked := map[convergo.Aggregate]bool{}
	for _, a := range aggregates {
		if tx.now.inBlocked.has(consumerKey{consumer, a.Digest()}) {
			blocked[a] = true
		}
	}
	return blocked, nil
}

// Enqueue implements inbox.Parking.
func (s *Store) Enqueue(ctx context.Context, tx *Tx, consumer string, event convergo.Event, now time.Time) error {
	if err := ready(ctx, tx, "enqueue"); err != nil {
		return err
	}
	if tx.now.inPlaces.has(messageKey(consumer, event)) {
		return nil
	}
	tx.now.lastInPlace++
	tx.queueAt(consumer, tx.now.lastInPlace, inWaitingRow{event: copyEvent(event), at: convergo.Micros(now)})
	tx.inGoOn(consumer, event.Aggregate, convergo.Micros(now), false)
	return nil
}

// Fail implements inbox.Parking.
func (s *Store) Fail(ctx context.Context, tx *Tx, consumer string, f inbox.Failure, now time.Time) error {
	if err := ready(ctx, tx, "fail"); err != nil {
		return err
	}
	digest := f.Event.Aggregate.Digest()
	place, queued := tx.now.inPlaces.get(messageKey(consumer, f.Event))
	row := inWaitingRow{event: copyEvent(f.Event), at: convergo.Micros(now)}
	if queued {
		row, _ = tx.now.inQueue.get(consumerPlace{consumer, digest, place})
	} else {
		place = tx.placeBeforeAll(consumer, digest)
	}
	row.attempts, row.lastError = f.Attempts, clip(f.Error)
	tx.queueAt(consumer, place, row)
	tx.setInBlocked(consumer, digest, inBlockedRow{aggregate: f.Event.Aggregate, next: convergo.Micros(f.Next)})
	return nil
}

// placeBeforeAll is a place ahead of the queue: a new one when the queue is empty.
func (tx *Tx) placeBeforeAll(consumer string, aggregate convergo.Digest) int64 {
	if head, ok := tx.inHead(consumer, aggregate); ok {
		return head.place - 1
	}
	tx.now.lastInPlace++
	return tx.now.lastInPlace
}

func (tx *Tx) inHead(consumer string, aggregate convergo.Digest) (head consumerPlace, ok bool) {
	low := consumerPlace{consumer: consumer, digest: aggregate, place: -1 << 62}
	for k := range tx.now.inQueue.from(low) {
		return k, k.consumer == consumer && k.digest == aggregate
	}
	return head, false
}

func (tx *Tx) queueAt(consumer string, place int64, row inWaitingRow) {
	tx.now.inQueue = tx.now.inQueue.put(consumerPlace{consumer, row.event.Aggregate.Digest(), place}, row)
	tx.now.inPlaces = tx.now.inPlaces.put(messageKey(consumer, row.event), place)
}

// unqueue removes the event from its queue; place is 0 when it was in none.
func (tx *Tx) unqueue(consumer string, event convergo.Event) (place int64) {
	key := messageKey(consumer, event)
	place, queued := tx.now.inPlaces.get(key)
	if queued {
		tx.now.inPlaces = tx.now.inPlaces.del(key)
		tx.now.inQueue = tx.now.inQueue.del(consumerPlace{consumer, event.Aggregate.Digest(), place})
	}
	return place
}

// setInBlocked writes the row and keeps inDue in step.
func (tx *Tx) setInBlocked(consumer string, aggregate convergo.Digest, b inBlockedRow) {
	tx.inUnblock(consumer, aggregate)
	tx.now.inBlocked = tx.now.inBlocked.put(consumerKey{consumer, aggregate}, b)
	if !b.held {
		tx.now.inDue = tx.now.inDue.put(consumerDue{consumer, b.next, aggregate}, none{})
	}
}

func (tx *Tx) inUnblock(consumer string, aggregate convergo.Digest) {
	key := consumerKey{consumer, aggregate}
	if b, ok := tx.now.inBlocked.get(key); ok {
		tx.now.inDue = tx.now.inDue.del(consumerDue{consumer, b.next, aggregate})
		tx.now.inBlocked = tx.now.inBlocked.del(key)
	}
}

// inGoOn settles what becomes of an aggregate after its queue changed. With hold it waits for a person. Otherwise it is
// free when nothing waits, and due at once when it has a new head that has not failed.
func (tx *Tx) inGoOn(consumer string, a convergo.Aggregate, now int64, hold bool) {
	digest := a.Digest()
	b, blocked := tx.now.inBlocked.get(consumerKey{consumer, digest})
	if !blocked {
		b = inBlockedRow{aggregate: a, next: now}
	}
	head, found := tx.inHead(consumer, digest)
	switch {
	case hold:
		b.held = true
		tx.setInBlocked(consumer, digest, b)
	case b.held:
	case !found:
		tx.inUnblock(consumer, digest)
	default:
		if row, _ := tx.now.inQueue.get(head); row.attempts == 0 {
			b.next = now
		}
		tx.setInBlocked(consumer, digest, b)
	}
}

// Due implements inbox.Parking.
func (s *Store) Due(
	ctx context.Context, consumer string, limit int, now time.Time,
) (due []convergo.Aggregate, next time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return nil, time.Time{}, fmt.Errorf("memory store: due: %w", err)
	}
	seen := s.committed.Load()
	for k := range seen.inDue.from(consumerDue{consumer: consumer}) {
		if k.consumer != consumer {
			break
		}
		if k.next > convergo.Micros(now) || len(due) == limit {
			return due, convergo.FromMicros(k.next), nil
		}
		b, _ := seen.inBlocked.get(consumerKey{consumer, k.digest})
		due = append(due, b.aggregate)
	}
	return due, time.Time{}, nil
}

// Queue implements inbox.Parking.
func (s *Store) Queue(
	ctx context.Context, tx *Tx, consumer string, aggregate convergo.Aggregate, most int, now time.Time,
) (messages []inbox.Queued, err error) {
	if err := ready(ctx, tx, "queue"); err != nil {
		return nil, err
	}
	digest := aggregate.Digest()
	b, blocked := tx.now.inBlocked.get(consumerKey{consumer, digest})
	if !blocked || b.held || b.next > convergo.Micros(now) {
		return nil, nil
	}
	size := 0
	for k, row := range tx.now.inQueue.from(consumerPlace{consumer: consumer, digest: digest, place: -1 << 62}) {
		if k.consumer != consumer || k.digest != digest || len(messages) >= max(most, 1) {
			break
		}
		if size += len(row.event.Payload); len(messages) > 0 && size > inbox.MaxQueueBytes {
			break
		}
		messages = append(messages, inbox.Queued{
			Event: copyEvent(row.event), Position: k.place, Attempts: row.attempts, LastError: row.lastError,
		})
		if row.attempts > 0 { // it has failed before: alone, so that the others do not fail with it
			break
		}
	}
	return messages, nil
}

// Dequeue implements inbox.Parking.
func (s *Store) Dequeue(ctx context.Context, tx *Tx, consumer string, event convergo.Event, now time.Time) error {
	if err := ready(ctx, tx, "dequeue"); err != nil {
		return err
	}
	tx.unqueue(consumer, event)
	tx.inGoOn(consumer, event.Aggregate, convergo.Micros(now), false)
	return nil
}

// Bury implements inbox.Parking. A message without a key (a malformed one) cannot be marked: each becomes a dead letter.
func (s *Store) Bury(ctx context.Context, tx *Tx, consumer string, f inbox.Failure, hold bool, now time.Time) (bool, error) {
	if err := ready(ctx, tx, "bury"); err != nil {
		return false, err
	}
	place := int64(0)
	if f.Event.Key != "" {
		key, payload := consumerKey{consumer, f.Event.Key.Digest()}, payloadDigest(f.Event)
		mark, marked := tx.now.marks.get(key)
		if marked && mark.payload == payload {
			return false, nil
		}
		if !marked {
			tx.now.marks = tx.now.marks.put(key, markRow{payload, convergo.Micros(now)})
		}
		place = tx.unqueue(consumer, f.Event)
	}
	if place == 0 {
		place = tx.placeBeforeAll(consumer, f.Event.Aggregate.Digest())
	}
	tx.now.lastInDead++
	id := fmt.Sprintf("%016d", tx.now.lastInDead)
	tx.now.inDead = tx.now.inDead.put(id, inDeadRow{
		id: id, consumer: consumer, event: copyEvent(f.Event), place: place, hold: hold, attempts: f.Attempts,
		error: clip(f.Error), where: f.Place, at: convergo.Micros(now), state: ops.Open,
	})
	tx.inGoOn(consumer, f.Event.Aggregate, convergo.Micros(now), hold)
	return true, nil
}

func payloadDigest(e convergo.Event) convergo.Digest { return sha256.Sum256(e.Payload) }

// messageKey is what a message is known by in the queues: key, aggregate and payload.
func messageKey(consumer string, e convergo.Event) consumerKey {
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), payloadDigest(e)
	return consumerKey{consumer, sha256.Sum256(slices.Concat(key[:], aggregate[:], payload[:]))}
}
