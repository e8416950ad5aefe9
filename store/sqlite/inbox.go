package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
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
		return 0, fmt.Errorf("sqlite store %s: consumer %s: mark %s: %w", s.opts.Name, consumer, event.Key, err)
	}
	return marked, nil
}

func (s *Store) mark(
	ctx context.Context, tx convergo.Tx, consumer string, event *convergo.Event, refuseStale bool, now time.Time,
) (inbox.Marked, error) {
	key, payload := event.Key.Digest(), sha256.Sum256(event.Payload)
	inserted, err := s.exec(ctx, tx, "InsertMark", consumer, key[:], payload[:], convergo.Micros(now))
	if err != nil {
		return 0, err
	}
	if inserted == 0 {
		var before []byte
		if err := tx.QueryRowContext(ctx, s.sql.Get("FindMark"), consumer, key[:]).Scan(&before); err != nil {
			return 0, fmt.Errorf("FindMark: %w", s.explain(err))
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
	raised, err := s.exec(ctx, tx, "RaiseVersion", consumer, aggregate[:], event.Version)
	if err != nil || raised > 0 {
		return inbox.Fresh, err
	}
	_, err = s.exec(ctx, tx, "DeleteMark", consumer, key[:], payload[:])
	return inbox.Stale, err
}

// Blocked implements inbox.Parking. While nothing is blocked it is one probe of an index.
func (s *Store) Blocked(
	ctx context.Context, tx convergo.Tx, consumer string, aggregates []convergo.Aggregate,
) (map[convergo.Aggregate]bool, error) {
	var any bool
	if err := tx.QueryRowContext(ctx, s.sql.Get("AnyBlocked"), consumer).Scan(&any); err != nil {
		return nil, fmt.Errorf("sqlite store %s: consumer %s: blocked: %w", s.opts.Name, consumer, s.explain(err))
	}
	if !any || len(aggregates) == 0 {
		return nil, nil
	}
	var digests []byte
	for _, a := range aggregates {
		digests = appendDigest(digests, a.Digest())
	}
	found, err := list(ctx, tx, func(rows *sql.Rows) (i int, err error) { return i, rows.Scan(&i) },
		s.sql.Get("BlockedOf"), consumer, string(digests))
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: consumer %s: blocked: %w", s.opts.Name, consumer, s.explain(err))
	}
	blocked := make(map[convergo.Aggregate]bool, len(found))
	for _, i := range found {
		blocked[aggregates[i]] = true
	}
	return blocked, nil
}

// Enqueue implements inbox.Parking.
func (s *Store) Enqueue(ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, now time.Time) error {
	_, err := s.enqueue(ctx, tx, "EnqueueMessage", consumer, &event, 0, "", now)
	if err == nil {
		err = s.consumerGoesOn(ctx, tx, consumer, event.Aggregate, now)
	}
	if err != nil {
		return fmt.Errorf("sqlite store %s: consumer %s: enqueue %s: %w", s.opts.Name, consumer, event.Key, err)
	}
	return nil
}

func (s *Store) enqueue(
	ctx context.Context, tx convergo.Tx, statement, consumer string, e *convergo.Event, attempts int, lastError string, now time.Time,
) (int64, error) {
	headers, err := stored.HeadersText(e.Headers)
	if err != nil {
		return 0, err
	}
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), sha256.Sum256(e.Payload)
	return s.exec(ctx, tx, statement, consumer, key[:], aggregate[:], int64(attempts), lastError, convergo.Micros(now),
		convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID,
		string(e.Key), headers, stored.NotNil(e.Payload), payload[:])
}

// messageKey is what a message is known by in inbox_waiting.
func messageKey(consumer string, e *convergo.Event) []any {
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), sha256.Sum256(e.Payload)
	return []any{consumer, key[:], aggregate[:], payload[:]}
}

// consumerGoesOn settles what becomes of an aggregate after its queue changed: with messages it is blocked, with none it is
// free, unless it is held; a head that has not failed is due at once.
func (s *Store) consumerGoesOn(ctx context.Context, tx convergo.Tx, consumer string, a convergo.Aggregate, now time.Time) error {
	digest, us := a.Digest(), convergo.Micros(now)
	if _, err := s.exec(ctx, tx, "BlockConsumerOnce", consumer, digest[:], a.Type, a.ID, us, us); err != nil {
		return err
	}
	freed, err := s.exec(ctx, tx, "UnblockConsumer", consumer, digest[:])
	if err != nil || freed > 0 {
		return err
	}
	_, err = s.exec(ctx, tx, "ConsumerGoesOn", consumer, digest[:], us)
	return err
}

// Fail implements inbox.Parking.
func (s *Store) Fail(ctx context.Context, tx convergo.Tx, consumer string, f inbox.Failure, now time.Time) error {
	if err := s.fail(ctx, tx, consumer, &f, now); err != nil {
		return fmt.Errorf("sqlite store %s: consumer %s: fail %s: %w", s.opts.Name, consumer, f.Event.Key, err)
	}
	return nil
}

func (s *Store) fail(ctx context.Context, tx convergo.Tx, consumer string, f *inbox.Failure, now time.Time) error {
	inserted, err := s.enqueue(ctx, tx, "EnqueueHead", consumer, &f.Event, f.Attempts, clip(f.Error), now)
	if err != nil {
		return err
	}
	if inserted == 0 {
		args := append([]any{int64(f.Attempts), clip(f.Error)}, messageKey(consumer, &f.Event)...)
		if _, err = s.exec(ctx, tx, "MessageFailed", args...); err != nil {
			return err
		}
	}
	digest, a := f.Event.Aggregate.Digest(), f.Event.Aggregate
	_, err = s.exec(ctx, tx, "BlockConsumer", consumer, digest[:], a.Type, a.ID, convergo.Micros(f.Next), convergo.Micros(now))
	return err
}

// Due implements inbox.Parking. One probe of an index while nothing is due.
func (s *Store) Due(
	ctx context.Context, consumer string, limit int, now time.Time,
) (aggregates []convergo.Aggregate, next time.Time, err error) {
	first := int64(0)
	err = s.reader(ctx, func(c *cachingConn) error {
		return c.each(ctx, s.sql.Get("DueQueues"), func(v []driver.Value) error {
			at := integer(v[2])
			switch {
			case first != 0:
			case at > convergo.Micros(now) || len(aggregates) == limit:
				first = at
			default:
				aggregates = append(aggregates, convergo.Aggregate{Type: text(v[0]), ID: text(v[1])})
			}
			return nil
		}, consumer, int64(limit)+1)
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sqlite store %s: consumer %s: due: %w", s.opts.Name, consumer, err)
	}
	return aggregates, convergo.FromMicros(first), nil
}

// Queue implements inbox.Parking. There is one writing transaction at a time, so nobody else has the queue.
func (s *Store) Queue(
	ctx context.Context, tx convergo.Tx, consumer string, aggregate convergo.Aggregate, most int, now time.Time,
) ([]inbox.Queued, error) {
	digest := aggregate.Digest()
	room := stored.Within(inbox.MaxQueueBytes)
	messages, err := list(ctx, tx, func(rows *sql.Rows) (m inbox.Queued, err error) {
		if m.Event, err = scanEvent(rows, &m.Position, &m.Attempts, &m.LastError); err == nil {
			err = room(m.Event)
		}
		return m, err
	}, s.sql.Get("ReadQueue"), consumer, digest[:], convergo.Micros(now), max(most, 1))
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: consumer %s: queue of %s: %w", s.opts.Name, consumer, aggregate, s.explain(err))
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
		return fmt.Errorf("sqlite store %s: consumer %s: dequeue %s: %w", s.opts.Name, consumer, event.Key, err)
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
		return false, fmt.Errorf("sqlite store %s: consumer %s: bury %s: %w", s.opts.Name, consumer, f.Event.Key, err)
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
		clip(f.Place), clip(f.Error), convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), e.Topic, e.Type, e.Aggregate.Type,
		e.Aggregate.ID, e.MessageID, string(e.Key), headers, stored.NotNil(e.Payload))
	if err != nil {
		return err
	}
	if hold {
		_, err = s.exec(ctx, tx, "HoldConsumer", consumer, aggregate[:], e.Aggregate.Type, e.Aggregate.ID, us, us)
		return err
	}
	return s.consumerGoesOn(ctx, tx, consumer, e.Aggregate, now)
}

// position is where the message stands in its queue, or where it belongs when it is in none: it was the next to be applied.
func (s *Store) position(ctx context.Context, tx convergo.Tx, consumer string, e *convergo.Event) (position int64, err error) {
	err = tx.QueryRowContext(ctx, s.sql.Get("FindPosition"), messageKey(consumer, e)...).Scan(&position)
	if errors.Is(err, sql.ErrNoRows) {
		aggregate := e.Aggregate.Digest()
		err = tx.QueryRowContext(ctx, s.sql.Get("HeadPosition"), consumer, aggregate[:]).Scan(&position)
	}
	if err != nil {
		return 0, fmt.Errorf("find its position: %w", s.explain(err))
	}
	return position, nil
}
