package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/internal/stored"
)

// Mark implements inbox.Store. A fresh mark is one statement, two with refuseStale. Versions are kept of the marks that
// were made with refuseStale.
func (s *Store) Mark(
	ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, refuseStale bool, now time.Time,
) (inbox.Marked, error) {
	marked, err := s.mark(ctx, tx, consumer, &event, refuseStale, now)
	if err != nil {
		return 0, s.failed(consumer, "mark "+string(event.Key), err)
	}
	return marked, nil
}

// failed is fail for what a consumer does.
func (s *Store) failed(consumer, what string, err error) error {
	return s.fail("consumer "+consumer+": "+what, err)
}

func (s *Store) mark(
	ctx context.Context, tx convergo.Tx, consumer string, event *convergo.Event, refuseStale bool, now time.Time,
) (inbox.Marked, error) {
	key, payload := event.Key.Digest(), sha256.Sum256(event.Payload)
	inserted, err := s.once(ctx, tx, "InsertMark", consumer, key[:], payload[:], convergo.Micros(now))
	if err != nil {
		return 0, err
	}
	if inserted == 0 {
		var before []byte
		if err := tx.QueryRowContext(ctx, s.sql.Get("FindMark"), consumer, key[:]).Scan(&before); err != nil {
			return 0, fmt.Errorf("FindMark: %w", err)
		}
		if string(before) != string(payload[:]) {
			return inbox.Mismatch, nil
		}
		return inbox.Duplicate, nil
	}
	if !refuseStale || event.Version == 0 {
		return inbox.Fresh, nil
	}
	aggregate := event.Aggregate.Digest()
	stale, err := s.once(ctx, tx, "RaiseVersion", consumer, aggregate[:], event.Version)
	if err != nil || stale == 0 {
		return inbox.Fresh, err
	}
	_, err = s.exec(ctx, tx, "DeleteMark", consumer, key[:], payload[:])
	return inbox.Stale, err
}

// Blocked implements inbox.Parking. It locks the rows of those that have a queue, in order of their digests.
func (s *Store) Blocked(
	ctx context.Context, tx convergo.Tx, consumer string, aggregates []convergo.Aggregate,
) (map[convergo.Aggregate]bool, error) {
	if len(aggregates) == 0 {
		return nil, nil
	}
	by := make(map[convergo.Digest]convergo.Aggregate, len(aggregates))
	digests := make([]convergo.Digest, 0, len(aggregates))
	for _, a := range aggregates {
		d := a.Digest()
		by[d] = a
		digests = append(digests, d)
	}
	slices.SortFunc(digests, func(a, b convergo.Digest) int { return slices.Compare(a[:], b[:]) })
	found, err := list(ctx, tx, scanDigest, s.with("LockBlocked", ":digests", literals(slices.Compact(digests))), consumer)
	if err != nil {
		return nil, s.failed(consumer, "blocked", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	blocked := make(map[convergo.Aggregate]bool, len(found))
	for _, d := range found {
		blocked[by[d]] = true
	}
	return blocked, nil
}

// Enqueue implements inbox.Parking.
func (s *Store) Enqueue(ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, now time.Time) error {
	id, err := s.enqueue(ctx, tx, consumer, &event, 0, "", 0, now)
	if err == nil && id != 0 {
		_, err = s.exec(ctx, tx, "TailPosition", id)
	}
	if err == nil {
		err = s.consumerGoesOn(ctx, tx, consumer, event.Aggregate, now)
	}
	if err != nil {
		return s.failed(consumer, "enqueue "+string(event.Key), err)
	}
	return nil
}

// enqueue returns the id of the new row, 0 when the message is queued already.
func (s *Store) enqueue(
	ctx context.Context, tx convergo.Tx, consumer string, e *convergo.Event, attempts int, lastError string, position int64, now time.Time,
) (int64, error) {
	headers, err := stored.HeadersText(e.Headers)
	if err != nil {
		return 0, err
	}
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), sha256.Sum256(e.Payload)
	return s.once(ctx, tx, "EnqueueMessage", consumer, key[:], aggregate[:], int64(attempts), lastError, convergo.Micros(now),
		convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID,
		string(e.Key), headers, stored.NotNil(e.Payload), payload[:], position)
}

// messageKey is what a message is known by in inbox_waiting.
func messageKey(consumer string, e *convergo.Event) []any {
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), sha256.Sum256(e.Payload)
	return []any{consumer, key[:], aggregate[:], payload[:]}
}

// consumerGoesOn settles what becomes of an aggregate after its queue changed: with messages it is blocked, with none it is
// free, unless it is held; a head that has not failed is due at once.
//
// The blocked row is taken first, and looked at in a statement of its own. So of two transactions that change one queue the
// second sees here what the first has left: an empty queue is not freed while another transaction appends to it.
//
//	A appends a message, and waits here     B takes out the last one, frees the queue, commits
//	A's BlockConsumerOnce inserts the row: what A appended is due
func (s *Store) consumerGoesOn(ctx context.Context, tx convergo.Tx, consumer string, a convergo.Aggregate, now time.Time) error {
	digest, us := a.Digest(), convergo.Micros(now)
	_, err := s.exec(ctx, tx, "BlockConsumerOnce", consumer, digest[:], stored.Clip(a.Type, maxNameColumn), stored.Clip(a.ID, maxNameColumn), us, us)
	if err != nil {
		return err
	}
	freed, err := s.exec(ctx, tx, "UnblockConsumer", consumer, digest[:], consumer, digest[:])
	if err != nil || freed > 0 {
		return err
	}
	_, err = s.exec(ctx, tx, "ConsumerGoesOn", us, consumer, digest[:], consumer, digest[:])
	return err
}

// Fail implements inbox.Parking.
func (s *Store) Fail(ctx context.Context, tx convergo.Tx, consumer string, f inbox.Failure, now time.Time) error {
	if err := s.failMessage(ctx, tx, consumer, &f, now); err != nil {
		return s.failed(consumer, "fail "+string(f.Event.Key), err)
	}
	return nil
}

func (s *Store) failMessage(ctx context.Context, tx convergo.Tx, consumer string, f *inbox.Failure, now time.Time) error {
	digest, a := f.Event.Aggregate.Digest(), f.Event.Aggregate
	// It takes the queue, so that nobody else puts something before its head.
	_, err := s.exec(ctx, tx, "BlockConsumer", consumer, digest[:], a.Type, a.ID, convergo.Micros(f.Next), convergo.Micros(now))
	if err != nil {
		return err
	}
	var ahead sql.NullInt64
	if err = tx.QueryRowContext(ctx, s.sql.Get("HeadPosition"), consumer, digest[:]).Scan(&ahead); err != nil {
		return fmt.Errorf("HeadPosition: %w", err)
	}
	id, err := s.enqueue(ctx, tx, consumer, &f.Event, f.Attempts, clip(f.Error), ahead.Int64, now)
	switch {
	case err != nil:
		return err
	case id == 0: // it keeps its place
		_, err = s.exec(ctx, tx, "MessageFailed", append([]any{int64(f.Attempts), clip(f.Error)}, messageKey(consumer, &f.Event)...)...)
	case !ahead.Valid:
		_, err = s.exec(ctx, tx, "TailPosition", id)
	}
	return err
}

// Due implements inbox.Parking. One probe of an index while nothing is due.
func (s *Store) Due(
	ctx context.Context, consumer string, limit int, now time.Time,
) (aggregates []convergo.Aggregate, next time.Time, err error) {
	type queue struct {
		aggregate convergo.Aggregate
		at        int64
	}
	queues, err := list(ctx, s.db, func(rows *sql.Rows) (q queue, err error) {
		return q, rows.Scan(&q.aggregate.Type, &q.aggregate.ID, &q.at)
	}, s.sql.Get("DueQueues"), consumer, limit+1)
	if err != nil {
		return nil, time.Time{}, s.failed(consumer, "due", err)
	}
	for _, q := range queues {
		if q.at > convergo.Micros(now) || len(aggregates) == limit {
			return aggregates, convergo.FromMicros(q.at), nil
		}
		aggregates = append(aggregates, q.aggregate)
	}
	return aggregates, time.Time{}, nil
}

// Queue implements inbox.Parking. It waits for a transaction that has the queue, and reads when that has ended.
func (s *Store) Queue(
	ctx context.Context, tx convergo.Tx, consumer string, aggregate convergo.Aggregate, most int, now time.Time,
) ([]inbox.Queued, error) {
	digest := aggregate.Digest()
	taken, err := list(ctx, tx, scanID, s.sql.Get("LockQueue"), consumer, digest[:], convergo.Micros(now))
	if err != nil {
		return nil, s.failed(consumer, "queue of "+aggregate.String(), err)
	}
	if len(taken) == 0 {
		return nil, nil
	}
	room := stored.Within(inbox.MaxQueueBytes)
	messages, err := list(ctx, tx, func(rows *sql.Rows) (m inbox.Queued, err error) {
		if m.Event, err = scanEvent(rows, &m.Position, &m.Attempts, &m.LastError); err == nil {
			err = room(m.Event)
		}
		return m, err
	}, s.sql.Get("ReadQueue"), consumer, digest[:], max(most, 1))
	if err != nil {
		return nil, s.failed(consumer, "queue of "+aggregate.String(), err)
	}
	for i, m := range messages {
		if m.Attempts > 0 { // it has failed before: alone, so that the others do not fail with it
			return messages[:i+1], nil
		}
	}
	return messages, nil
}

// Dequeue implements inbox.Parking.
func (s *Store) Dequeue(ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, now time.Time) error {
	_, err := s.exec(ctx, tx, "DeleteMessage", messageKey(consumer, &event)...)
	if err == nil {
		err = s.consumerGoesOn(ctx, tx, consumer, event.Aggregate, now)
	}
	if err != nil {
		return s.failed(consumer, "dequeue "+string(event.Key), err)
	}
	return nil
}

// Bury implements inbox.Parking. A message without a key (a malformed one) cannot be marked: each becomes a dead letter.
func (s *Store) Bury(
	ctx context.Context, tx convergo.Tx, consumer string, f inbox.Failure, hold bool, now time.Time,
) (buried bool, err error) {
	marked := inbox.Fresh
	if f.Event.Key != "" {
		marked, err = s.mark(ctx, tx, consumer, &f.Event, false, now)
	}
	if err == nil && marked != inbox.Duplicate {
		buried, err = true, s.bury(ctx, tx, consumer, &f, hold, now)
	}
	if err != nil {
		return false, s.failed(consumer, "bury "+string(f.Event.Key), err)
	}
	return buried, nil
}

func (s *Store) bury(ctx context.Context, tx convergo.Tx, consumer string, f *inbox.Failure, hold bool, now time.Time) error {
	e := &f.Event
	key, aggregate, us := e.Key.Digest(), e.Aggregate.Digest(), convergo.Micros(now)
	position, err := s.position(ctx, tx, consumer, e)
	if err != nil {
		return err
	}
	if e.Key != "" {
		if _, err = s.exec(ctx, tx, "DeleteMessage", messageKey(consumer, e)...); err != nil {
			return err
		}
	}
	headers, err := stored.HeadersText(e.Headers)
	if err != nil {
		return err
	}
	holds := int64(0)
	if hold {
		holds = 1
	}
	_, err = s.exec(ctx, tx, "InsertDeadLetter", stored.NewID(now), consumer, holds, key[:], aggregate[:], position, int64(f.Attempts), us,
		clip(f.Place), clip(f.Error), convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), valid(e.Topic), valid(e.Type),
		valid(e.Aggregate.Type), valid(e.Aggregate.ID), valid(e.MessageID), valid(string(e.Key)), headers, stored.NotNil(e.Payload))
	if err != nil {
		return err
	}
	if hold {
		_, err = s.exec(ctx, tx, "HoldConsumer", consumer, aggregate[:], stored.Clip(e.Aggregate.Type, maxNameColumn),
			stored.Clip(e.Aggregate.ID, maxNameColumn), us, us)
		return err
	}
	return s.consumerGoesOn(ctx, tx, consumer, e.Aggregate, now)
}

// position is where the message stands in its queue, or where it belongs when it is in none: it was the next to be applied, so
// ahead of the queue, and of every position to come, which are ids that are not given out yet; but behind what is dead already.
func (s *Store) position(ctx context.Context, tx convergo.Tx, consumer string, e *convergo.Event) (int64, error) {
	var position sql.NullInt64
	err := tx.QueryRowContext(ctx, s.sql.Get("FindPosition"), messageKey(consumer, e)...).Scan(&position)
	aggregate := e.Aggregate.Digest()
	for _, statement := range []string{"HeadPosition", "DeadPosition"} {
		if err != nil && !errors.Is(err, sql.ErrNoRows) || position.Valid {
			break
		}
		err = tx.QueryRowContext(ctx, s.sql.Get(statement), consumer, aggregate[:]).Scan(&position)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("find its position: %w", err)
	}
	return position.Int64, nil
}
