package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/internal/stored"
)

// DeadEvents implements ops.Outbox.
func (s *Store) DeadEvents(ctx context.Context, limit int, after int64) (dead []ops.DeadEvent, err error) {
	err = s.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		room := stored.Within(ops.MaxPageBytes)
		dead, err = list(ctx, tx, func(rows *sql.Rows) (d ops.DeadEvent, err error) {
			var at int64
			d.Event, err = scanEvent(rows, &d.ID, &d.Attempts, &d.Error, &d.Place, &at, &d.Held, &d.PayloadBytes)
			d.DiedAt = convergo.FromMicros(at)
			if err == nil {
				err = room(d.Event)
			}
			return d, err
		}, s.sql.Get("DeadEvents"), after, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: dead events: %w", s.opts.Name, s.explain(err))
	}
	return dead, nil
}

// RedriveEvent implements ops.Outbox.
func (s *Store) RedriveEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.closeEvent(ctx, ops.MoveRedrive, id, by, reason, now, func(ctx context.Context, tx *Tx, earlier sql.NullInt64) error {
		if earlier.Valid {
			return fmt.Errorf("event %d: %w", earlier.Int64, ops.ErrEarlierDead)
		}
		_, err := s.exec(ctx, tx, "RequeueDead", id)
		return err
	})
}

// DiscardEvent implements ops.Outbox.
func (s *Store) DiscardEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.closeEvent(ctx, ops.MoveDiscard, id, by, reason, now, func(ctx context.Context, tx *Tx, _ sql.NullInt64) error {
		_, err := s.exec(ctx, tx, "RecordDiscarded", id, convergo.Micros(now), clip(by), clip(reason))
		return err
	})
}

// closeEvent takes a dead event off the list; move says where it goes. Then its aggregate's queue goes on.
func (s *Store) closeEvent(
	ctx context.Context, what ops.Move, id int64, by, reason string, now time.Time, move func(context.Context, *Tx, sql.NullInt64) error,
) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
		var (
			aggregate []byte
			key       string
			earlier   sql.NullInt64
		)
		err := tx.QueryRowContext(ctx, s.sql.Get("FindDeadEvent"), id).Scan(&aggregate, &key, &earlier)
		if errors.Is(err, sql.ErrNoRows) {
			return ops.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("FindDeadEvent: %w", s.explain(err))
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
		return s.queuesGoOn(ctx, tx, string(appendDigest(nil, convergo.Digest(aggregate))), convergo.Micros(now))
	})
	if err != nil {
		return fmt.Errorf("sqlite store %s: %s dead event %d: %w", s.opts.Name, what, id, err)
	}
	return nil
}

// replayChunk is how many event rows one transaction of Replay looks at, so that other writers are not kept waiting.
const replayChunk = 5000

// Replay implements ops.Outbox.
func (s *Store) Replay(ctx context.Context, since, _ time.Time) (n int, err error) {
	us := convergo.Micros(since)
	replay := func(statement string, args ...any) error {
		var made int64
		err := s.join(ctx, func(ctx context.Context, tx *Tx) (err error) {
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
			err = replay("ReplayDelayed", idList(ids))
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
		return n, fmt.Errorf("sqlite store %s: replay: %w", s.opts.Name, err)
	}
	return n, nil
}

// dueSince are the ids of events that were written before, and were to be delivered since then; in order.
func (s *Store) dueSince(ctx context.Context, since int64) (ids []int64, err error) {
	err = s.reader(ctx, func(c *cachingConn) error {
		return c.each(ctx, s.sql.Get("DueSince"), func(v []driver.Value) error { ids = append(ids, integer(v[0])); return nil }, since)
	})
	slices.Sort(ids)
	return ids, err
}

// writtenSince is the range of ids in which all events lie that were written since then; low is above high when there are
// none. Ids grow with time but for what clocks and long transactions shuffle, so it looks back until a whole window is older.
func (s *Store) writtenSince(ctx context.Context, since int64) (low, high int64, err error) {
	const window = 1000
	low, high = math.MaxInt64, 0
	below := int64(math.MaxInt64)
	err = s.reader(ctx, func(c *cachingConn) error {
		for more := true; more; {
			rows, young := 0, false
			err := c.each(ctx, s.sql.Get("EventsBelow"), func(v []driver.Value) error {
				below = integer(v[0])
				rows++
				if integer(v[1]) >= since {
					young, low, high = true, below, max(high, below)
				}
				return nil
			}, below, int64(window))
			if err != nil {
				return err
			}
			more = young && rows == window
		}
		return nil
	})
	return low, high, err
}

// DeadLetters implements ops.Inbox.
func (s *Store) DeadLetters(ctx context.Context, consumer string, limit int, after string) (letters []ops.DeadLetter, err error) {
	err = s.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		room := stored.Within(ops.MaxPageBytes)
		letters, err = list(ctx, tx, func(rows *sql.Rows) (l ops.DeadLetter, err error) {
			var died, closed int64
			l.Event, err = scanEvent(rows, &l.ID, &l.Consumer, &l.Attempts, &l.Error, &l.Place, &died, &l.Held, &l.State, &closed,
				&l.ClosedBy, &l.Reason)
			l.DiedAt, l.ClosedAt = convergo.FromMicros(died), convergo.FromMicros(closed)
			if err == nil {
				err = room(l.Event)
			}
			return l, err
		}, s.sql.Get("DeadLetters"), consumer, after, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite store %s: dead letters: %w", s.opts.Name, s.explain(err))
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
	earlier   sql.NullString
}

// RedriveLetter implements ops.Inbox.
func (s *Store) RedriveLetter(ctx context.Context, id, by, reason string, now time.Time) error {
	return s.closeLetter(ctx, id, ops.MoveRedrive, by, reason, now, func(ctx context.Context, tx *Tx, l letter) error {
		if l.earlier.Valid {
			return fmt.Errorf("dead letter %s: %w", l.earlier.String, ops.ErrEarlierDead)
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
		var l letter
		err := tx.QueryRowContext(ctx, s.sql.Get("FindLetter"), id).
			Scan(&l.consumer, &l.key, &l.keyDigest, &l.digest, &l.aggregate.Type, &l.aggregate.ID, &l.payload, &l.earlier)
		if errors.Is(err, sql.ErrNoRows) {
			return ops.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("FindLetter: %w", s.explain(err))
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
		return fmt.Errorf("sqlite store %s: %s dead letter %s: %w", s.opts.Name, what, id, err)
	}
	return nil
}
