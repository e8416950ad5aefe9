package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

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
		return 0, fmt.Errorf("postgres store %s: consumer %s: mark %s: %w", s.opts.Name, consumer, event.Key, err)
	}
	return marked, nil
}

func (s *Store) mark(
	ctx context.Context, tx convergo.Tx, consumer string, event *convergo.Event, refuseStale bool, now time.Time,
) (inbox.Marked, error) {
	key, payload := event.Key.Digest(), sha256.Sum256(event.Payload)
	before, err := s.markOnce(ctx, tx, consumer, key, payload, now)
	switch {
	case err != nil:
		return 0, err
	case before == nil:
	case string(before) != string(payload[:]):
		return inbox.Mismatch, nil
	default:
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

// markOnce inserts the mark, or returns the payload's digest in the one that is there. A mark that stands in the way may be
// gone a moment later: purged, or removed with its redriven dead letter.
func (s *Store) markOnce(
	ctx context.Context, tx convergo.Tx, consumer string, key, payload convergo.Digest, now time.Time,
) (before []byte, err error) {
	for range 3 {
		inserted, err := s.exec(ctx, tx, "InsertMark", consumer, key[:], payload[:], convergo.Micros(now))
		if err != nil || inserted > 0 {
			return nil, err
		}
		if found, err := s.one(ctx, tx, "FindMark", []any{consumer, key[:]}, &before); err != nil || found {
			return before, err
		}
	}
	return nil, errors.New("the mark of its key comes and goes: is somebody removing marks all the time?")
}

// Blocked implements inbox.Parking. While nothing is blocked it is one probe of an index for each aggregate.
func (s *Store) Blocked(
	ctx context.Context, tx convergo.Tx, consumer string, aggregates []convergo.Aggregate,
) (map[convergo.Aggregate]bool, error) {
	blocked, err := s.blocked(ctx, tx, consumer, aggregates)
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: consumer %s: blocked: %w", s.opts.Name, consumer, err)
	}
	return blocked, nil
}

func (s *Store) blocked(
	ctx context.Context, tx convergo.Tx, consumer string, aggregates []convergo.Aggregate,
) (map[convergo.Aggregate]bool, error) {
	own, err := s.own(tx)
	if err != nil || len(aggregates) == 0 {
		return nil, err
	}
	digests := make([][]byte, len(aggregates))
	names := make(map[convergo.Digest]convergo.Aggregate, len(aggregates))
	for i, a := range aggregates {
		d := a.Digest()
		digests[i], names[d] = d[:], a
	}
	slices.SortFunc(digests, slices.Compare)
	var blocked map[convergo.Aggregate]bool
	err = own.each(ctx, "BlockedOf", []any{consumer, digests}, func(rows pgx.Rows) error {
		var d []byte
		if err := rows.Scan(&d); err != nil {
			return err
		}
		if blocked == nil {
			blocked = map[convergo.Aggregate]bool{}
		}
		blocked[names[convergo.Digest(d)]] = true
		return nil
	})
	return blocked, err
}

// Enqueue implements inbox.Parking.
func (s *Store) Enqueue(ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, now time.Time) error {
	_, err := s.enqueue(ctx, tx, "EnqueueMessage", consumer, &event, 0, "", now)
	if err == nil {
		err = s.consumerGoesOn(ctx, tx, consumer, event.Aggregate, now)
	}
	if err != nil {
		return fmt.Errorf("postgres store %s: consumer %s: enqueue %s: %w", s.opts.Name, consumer, event.Key, err)
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
		convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), readable(e.Topic), readable(e.Type), readable(e.Aggregate.Type),
		readable(e.Aggregate.ID), readable(e.MessageID), readable(string(e.Key)), headers, stored.NotNil(e.Payload), payload[:])
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
	if _, err := s.exec(ctx, tx, "BlockConsumerOnce", consumer, digest[:], readable(a.Type), readable(a.ID), us, us); err != nil {
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
		return fmt.Errorf("postgres store %s: consumer %s: fail %s: %w", s.opts.Name, consumer, f.Event.Key, err)
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
	_, err = s.exec(ctx, tx, "BlockConsumer", consumer, digest[:], readable(a.Type), readable(a.ID),
		convergo.Micros(f.Next), convergo.Micros(now))
	return err
}

// Due implements inbox.Parking. One probe of an index while nothing is due.
func (s *Store) Due(
	ctx context.Context, consumer string, limit int, now time.Time,
) (aggregates []convergo.Aggregate, next time.Time, err error) {
	first := int64(0)
	err = s.reader(ctx, func(c session) error {
		return c.each(ctx, "DueQueues", []any{consumer, int64(limit) + 1}, func(rows pgx.Rows) error {
			var (
				a  convergo.Aggregate
				at int64
			)
			if err := rows.Scan(&a.Type, &a.ID, &at); err != nil {
				return err
			}
			switch {
			case first != 0:
			case at > convergo.Micros(now) || len(aggregates) == limit:
				first = at
			default:
				aggregates = append(aggregates, a)
			}
			return nil
		})
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("postgres store %s: consumer %s: due: %w", s.opts.Name, consumer, err)
	}
	return aggregates, convergo.FromMicros(first), nil
}

// Queue implements inbox.Parking.
func (s *Store) Queue(
	ctx context.Context, tx convergo.Tx, consumer string, aggregate convergo.Aggregate, most int, now time.Time,
) (messages []inbox.Queued, err error) {
	own, err := s.own(tx)
	digest := aggregate.Digest()
	found := false
	if err == nil {
		var at int64
		found, err = s.one(ctx, own, "LockQueue", []any{consumer, digest[:], convergo.Micros(now)}, &at)
	}
	if err == nil && found {
		messages, err = readQueue(ctx, own, consumer, digest[:], most)
	}
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: consumer %s: queue of %s: %w", s.opts.Name, consumer, aggregate, err)
	}
	return messages, nil
}

// readQueue reads the head of one aggregate's queue. A message that has failed before is the last one, so that the others do
// not fail with it.
func readQueue(ctx context.Context, tx *Tx, consumer string, aggregate []byte, most int) (messages []inbox.Queued, err error) {
	room := stored.Within(inbox.MaxQueueBytes)
	err = tx.each(ctx, "ReadQueue", []any{consumer, aggregate, int64(max(most, 1))}, func(rows pgx.Rows) error {
		if n := len(messages); n > 0 && messages[n-1].Attempts > 0 {
			return nil
		}
		var (
			m     inbox.Queued
			event eventRow
		)
		err := rows.Scan(event.columns(&m.Position, &m.Attempts, &m.LastError)...)
		m.Event = event.event()
		if err == nil {
			err = room(m.Event)
		}
		if err == nil {
			messages = append(messages, m)
		}
		return err
	})
	if errors.Is(err, stored.ErrEnough) {
		err = nil
	}
	return messages, err
}

// Dequeue implements inbox.Parking.
func (s *Store) Dequeue(ctx context.Context, tx convergo.Tx, consumer string, event convergo.Event, now time.Time) error {
	_, err := s.exec(ctx, tx, "DeleteMessage", messageKey(consumer, &event)...)
	if err == nil {
		err = s.consumerGoesOn(ctx, tx, consumer, event.Aggregate, now)
	}
	if err != nil {
		return fmt.Errorf("postgres store %s: consumer %s: dequeue %s: %w", s.opts.Name, consumer, event.Key, err)
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
		return false, fmt.Errorf("postgres store %s: consumer %s: bury %s: %w", s.opts.Name, consumer, f.Event.Key, err)
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
		clip(f.Place), clip(f.Error), convergo.Micros(e.CreatedAt), e.Version, int64(e.MaxAttempts), readable(e.Topic), readable(e.Type),
		readable(e.Aggregate.Type), readable(e.Aggregate.ID), readable(e.MessageID), readable(string(e.Key)), headers, stored.NotNil(e.Payload))
	if err != nil {
		return err
	}
	if hold {
		_, err = s.exec(ctx, tx, "HoldConsumer", consumer, aggregate[:], readable(e.Aggregate.Type), readable(e.Aggregate.ID), us, us)
		return err
	}
	return s.consumerGoesOn(ctx, tx, consumer, e.Aggregate, now)
}

// position is where the message stands in its queue, or where it belongs when it is in none: it was the next to be applied.
func (s *Store) position(ctx context.Context, tx convergo.Tx, consumer string, e *convergo.Event) (position int64, err error) {
	found, err := s.one(ctx, tx, "FindPosition", messageKey(consumer, e), &position)
	if err == nil && !found {
		aggregate := e.Aggregate.Digest()
		_, err = s.one(ctx, tx, "HeadPosition", []any{consumer, aggregate[:]}, &position)
	}
	if err != nil {
		return 0, fmt.Errorf("find its position: %w", err)
	}
	return position, nil
}
