package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/internal/stored"
)

// DeadEvents implements ops.Outbox.
func (s *Store) DeadEvents(ctx context.Context, limit int, after int64) (dead []ops.DeadEvent, err error) {
	room := stored.Within(ops.MaxPageBytes)
	err = s.reader(ctx, func(c session) error {
		return c.each(ctx, "DeadEvents", []any{after, int64(limit)}, func(rows pgx.Rows) error {
			var (
				d        ops.DeadEvent
				at, hold int64
				event    eventRow
			)
			err := rows.Scan(event.columns(&d.ID, &d.Attempts, &d.Error, &d.Place, &at, &hold, &d.PayloadBytes)...)
			d.DiedAt, d.Held, d.Event = convergo.FromMicros(at), hold != 0, event.event()
			if err == nil {
				err = room(d.Event)
			}
			if err == nil {
				dead = append(dead, d)
			}
			return err
		})
	})
	if err != nil && !errors.Is(err, stored.ErrEnough) {
		return nil, fmt.Errorf("postgres store %s: dead events: %w", s.opts.Name, err)
	}
	return dead, nil
}

// RedriveEvent implements ops.Outbox.
func (s *Store) RedriveEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.closeEvent(ctx, ops.MoveRedrive, id, by, reason, now, func(ctx context.Context, tx *Tx, earlier *int64) error {
		if earlier != nil {
			return fmt.Errorf("event %d: %w", *earlier, ops.ErrEarlierDead)
		}
		_, err := s.exec(ctx, tx, "RequeueDead", id)
		return err
	})
}

// DiscardEvent implements ops.Outbox.
func (s *Store) DiscardEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.closeEvent(ctx, ops.MoveDiscard, id, by, reason, now, func(ctx context.Context, tx *Tx, _ *int64) error {
		_, err := s.exec(ctx, tx, "RecordDiscarded", id, convergo.Micros(now), clip(by), clip(reason))
		return err
	})
}

// closeEvent takes a dead event off the list; move says where it goes. Then its aggregate's queue goes on. All under the
// lock of its lane, like a settlement.
func (s *Store) closeEvent(
	ctx context.Context, what ops.Move, id int64, by, reason string, now time.Time, move func(context.Context, *Tx, *int64) error,
) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
		if _, err := s.exec(ctx, tx, "LockDeadsLane", id); err != nil {
			return err
		}
		var (
			aggregate []byte
			key       string
			earlier   *int64
		)
		found, err := s.one(ctx, tx, "FindDeadEvent", []any{id}, &aggregate, &key, &earlier)
		if err != nil {
			return err
		}
		if !found {
			return ops.ErrNotFound
		}
		if err = move(ctx, tx, earlier); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "DeleteDead", id); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "ReleaseAggregate", aggregate); err != nil {
			return err
		}
		s.wakeAfter(tx)
		if err = s.record(ctx, tx, ops.Act{
			Target: ops.TargetEvent, ID: strconv.FormatInt(id, 10), Move: what, Key: convergo.Key(key), By: by, Reason: reason, At: now,
		}); err != nil {
			return err
		}
		return s.queuesGoOn(ctx, tx, [][]byte{aggregate}, convergo.Micros(now))
	})
	if err != nil {
		return fmt.Errorf("postgres store %s: %s dead event %d: %w", s.opts.Name, what, id, err)
	}
	return nil
}

// replayChunk is how many event rows one transaction of Replay looks at.
const replayChunk = 5000

// Replay implements ops.Outbox. Replays take turns.
func (s *Store) Replay(ctx context.Context, since, _ time.Time) (n int, err error) {
	us := convergo.Micros(since)
	replay := func(statement string, args ...any) error {
		var made int64
		err := s.join(ctx, func(ctx context.Context, tx *Tx) (err error) {
			if _, err = s.exec(ctx, tx, "LockReplays"); err != nil {
				return err
			}
			if made, err = s.exec(ctx, tx, statement, args...); made > 0 {
				s.wakeAfter(tx)
			}
			return err
		})
		if err == nil {
			n += int(made)
		}
		return err
	}
	delayed, err := s.dueSince(ctx, us)
	for ids := range slices.Chunk(delayed, replayChunk) {
		if err == nil {
			err = replay("ReplayDelayed", ids)
		}
	}
	var low, high int64
	if err == nil {
		low, high, err = s.writtenSince(ctx, us)
	}
	for ; err == nil && low <= high; low += replayChunk {
		err = replay("ReplayEvents", low, min(low+replayChunk-1, high), us)
	}
	if err != nil {
		return n, fmt.Errorf("postgres store %s: replay: %w", s.opts.Name, err)
	}
	return n, nil
}

// dueSince are the ids of events that were written before, and were to be delivered since then; in order.
func (s *Store) dueSince(ctx context.Context, since int64) (ids []int64, err error) {
	err = s.reader(ctx, func(c session) error {
		return c.each(ctx, "DueSince", []any{since}, func(rows pgx.Rows) error {
			var id int64
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		})
	})
	return ids, err
}

// writtenSince is the range of ids in which all events lie that were written since then; low is above high when there are
// none. Ids grow with time but for what clocks and long transactions shuffle, so it looks back until a whole window is older.
func (s *Store) writtenSince(ctx context.Context, since int64) (low, high int64, err error) {
	const window = 1000
	low, high = math.MaxInt64, 0
	below := int64(math.MaxInt64)
	err = s.reader(ctx, func(c session) error {
		for more := true; more; {
			count, young := 0, false
			err := c.each(ctx, "EventsBelow", []any{below, int64(window)}, func(rows pgx.Rows) error {
				var at int64
				if err := rows.Scan(&below, &at); err != nil {
					return err
				}
				count++
				if at >= since {
					young, low, high = true, below, max(high, below)
				}
				return nil
			})
			if err != nil {
				return err
			}
			more = young && count == window
		}
		return nil
	})
	return low, high, err
}

// DeadLetters implements ops.Inbox.
func (s *Store) DeadLetters(ctx context.Context, consumer string, limit int, after string) (letters []ops.DeadLetter, err error) {
	room := stored.Within(ops.MaxPageBytes)
	err = s.reader(ctx, func(c session) error {
		return c.each(ctx, "DeadLetters", []any{consumer, after, int64(limit)}, func(rows pgx.Rows) error {
			var (
				l                  ops.DeadLetter
				died, closed, hold int64
				event              eventRow
			)
			err := rows.Scan(event.columns(&l.ID, &l.Consumer, &l.Attempts, &l.Error, &l.Place, &died, &hold, &l.State, &closed,
				&l.ClosedBy, &l.Reason)...)
			l.DiedAt, l.ClosedAt, l.Held, l.Event = convergo.FromMicros(died), convergo.FromMicros(closed), hold != 0, event.event()
			if err == nil {
				err = room(l.Event)
			}
			if err == nil {
				letters = append(letters, l)
			}
			return err
		})
	})
	if err != nil && !errors.Is(err, stored.ErrEnough) {
		return nil, fmt.Errorf("postgres store %s: dead letters: %w", s.opts.Name, err)
	}
	return letters, nil
}

// letter is what closing a dead letter needs to know.
type letter struct {
	consumer  string
	key       string
	keyDigest []byte
	payload   []byte
	digest    []byte
	aggregate convergo.Aggregate
	earlier   *string
}

// RedriveLetter implements ops.Inbox.
func (s *Store) RedriveLetter(ctx context.Context, id, by, reason string, now time.Time) error {
	return s.closeLetter(ctx, id, ops.MoveRedrive, by, reason, now, func(ctx context.Context, tx *Tx, l letter) error {
		if l.earlier != nil {
			return fmt.Errorf("dead letter %s: %w", *l.earlier, ops.ErrEarlierDead)
		}
		payload := sha256.Sum256(l.payload)
		if l.key != "" { // a redelivery of the same message may have queued behind it
			if _, err := s.exec(ctx, tx, "DeleteMessage", l.consumer, l.keyDigest, l.digest, payload[:]); err != nil {
				return err
			}
		}
		queued, err := s.exec(ctx, tx, "RequeueLetter", id, convergo.Micros(now), payload[:])
		if err != nil {
			return err
		}
		if queued == 0 {
			return ops.ErrQueued
		}
		_, err = s.exec(ctx, tx, "DeleteMark", l.consumer, l.keyDigest, payload[:])
		return err
	})
}

// DiscardLetter implements ops.Inbox.
func (s *Store) DiscardLetter(ctx context.Context, id, by, reason string, now time.Time) error {
	return s.closeLetter(ctx, id, ops.MoveDiscard, by, reason, now, func(context.Context, *Tx, letter) error { return nil })
}

func (s *Store) closeLetter(
	ctx context.Context, id string, what ops.Move, by, reason string, now time.Time, move func(context.Context, *Tx, letter) error,
) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
		if _, err := s.exec(ctx, tx, "LockLettersQueue", id); err != nil {
			return err
		}
		var l letter
		found, err := s.one(ctx, tx, "FindLetter", []any{id},
			&l.consumer, &l.key, &l.keyDigest, &l.digest, &l.aggregate.Type, &l.aggregate.ID, &l.payload, &l.earlier)
		if err != nil {
			return err
		}
		if !found {
			return ops.ErrNotFound
		}
		if err = move(ctx, tx, l); err != nil {
			return err
		}
		act := ops.Act{Target: ops.TargetLetter, ID: id, Move: what, Key: convergo.Key(l.key), By: by, Reason: reason, At: now}
		_, state := act.States()
		if _, err = s.exec(ctx, tx, "CloseLetter", id, state, convergo.Micros(now), clip(by), clip(reason)); err != nil {
			return err
		}
		if err = s.record(ctx, tx, act); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "ReleaseConsumer", l.consumer, l.digest); err != nil {
			return err
		}
		return s.consumerGoesOn(ctx, tx, l.consumer, l.aggregate, now)
	})
	if err != nil {
		return fmt.Errorf("postgres store %s: %s dead letter %s: %w", s.opts.Name, what, id, err)
	}
	return nil
}
