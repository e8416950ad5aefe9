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
	headers, err := headersText(e.Headers)
	if err != nil {
		return 0, err
	}
	key, aggregate, payload := e.Key.Digest(), e.Aggregate.Digest(), sha256.Sum256(e.Payload)
	return s.exec(ctx, tx, statement, consumer, key[:], aggregate[:], int64(attempts), lastError, convergo.Micros(now),
		convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), e.Topic, e.Type, e.Aggregate.Type, e.Aggregate.ID, e.MessageID,
		string(e.Key), headers, notNil(e.Payload), payload[:])
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

// Due implements inbox.Parking. While nothing is due it is one probe of an index.
func (s *Store) Due(
	ctx context.Context, consumer string, limit, perQueue int, now time.Time,
) (queues []inbox.Queue, next time.Time, err error) {
	first := int64(0)
	err = s.reader(ctx, func(c *cachingConn) error {
		return c.each(ctx, s.sql.Get("DueQueues"), func(v []driver.Value) error { first = integer(v[3]); return nil }, consumer, int64(1))
	})
	if err == nil && due(first, convergo.Micros(now)) {
		err = s.snapshot(ctx, func(c *cachingConn) (err error) {
			queues, first, err = s.queues(c, consumer, limit, perQueue, convergo.Micros(now))
			return err
		})
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sqlite store %s: consumer %s: due: %w", s.opts.Name, consumer, err)
	}
	return queues, convergo.FromMicros(first), nil
}

func (s *Store) queues(c *cachingConn, consumer string, limit, perQueue int, now int64) (queues []inbox.Queue, next int64, err error) {
	var digests [][]byte
	err = c.each(context.Background(), s.sql.Get("DueQueues"), func(v []driver.Value) error {
		at := integer(v[3])
		switch {
		case next != 0:
		case at > now || len(queues) == limit:
			next = at
		default:
			digests = append(digests, bytesOf(v[0]))
			queues = append(queues, inbox.Queue{Aggregate: convergo.Aggregate{Type: text(v[1]), ID: text(v[2])}})
		}
		return nil
	}, consumer, int64(limit)+1)
	if err != nil {
		return nil, 0, err
	}
	for i := range queues {
		if queues[i].Messages, err = s.queue(c, consumer, digests[i], perQueue); err != nil {
			return nil, 0, err
		}
	}
	return queues, next, nil
}

// queue reads the head of one aggregate's queue; a message that has failed before comes alone.
func (s *Store) queue(c *cachingConn, consumer string, aggregate []byte, most int) (messages []inbox.Queued, err error) {
	alone := false
	err = c.each(context.Background(), s.sql.Get("ReadQueue"), func(v []driver.Value) error {
		if alone {
			return nil
		}
		event, err := eventOf(v[3:])
		if err != nil {
			return err
		}
		m := inbox.Queued{Event: event, Position: integer(v[0]), Attempts: int(integer(v[1])), LastError: text(v[2])}
		messages, alone = append(messages, m), m.Attempts > 0
		return nil
	}, consumer, aggregate, int64(max(most, 1)))
	return messages, err
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
func (s *Store) Bury(ctx context.Context, tx convergo.Tx, consumer string, f inbox.Failure, hold bool, now time.Time) error {
	if err := s.bury(ctx, tx, consumer, &f, hold, now); err != nil {
		return fmt.Errorf("sqlite store %s: consumer %s: bury %s: %w", s.opts.Name, consumer, f.Event.Key, err)
	}
	return nil
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
		payload := sha256.Sum256(e.Payload)
		if _, err = s.exec(ctx, tx, "InsertMark", consumer, key[:], payload[:], us); err != nil {
			return err
		}
	}
	headers, err := headersText(e.Headers)
	if err != nil {
		return err
	}
	holds := int64(0)
	if hold {
		holds = 1
	}
	_, err = s.exec(ctx, tx, "InsertDeadLetter", newID(now), consumer, holds, key[:], aggregate[:], position, int64(f.Attempts), us,
		clip(f.Place), clip(f.Error), convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), e.Topic, e.Type, e.Aggregate.Type,
		e.Aggregate.ID, e.MessageID, string(e.Key), headers, notNil(e.Payload))
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
