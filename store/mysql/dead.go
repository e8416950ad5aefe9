package mysql

import (
	"context"
	"crypto/sha256"
	"database/sql"
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
func (s *Store) DeadEvents(ctx context.Context, limit int, after int64) ([]ops.DeadEvent, error) {
	room := stored.Within(ops.MaxPageBytes)
	dead, err := list(ctx, s.db, func(rows *sql.Rows) (d ops.DeadEvent, err error) {
		var at int64
		d.Event, err = scanEvent(rows, &d.ID, &d.Attempts, &d.Error, &d.Place, &at, &d.Held, &d.PayloadBytes)
		d.DiedAt = convergo.FromMicros(at)
		if err == nil {
			err = room(d.Event)
		}
		return d, err
	}, s.sql.Get("DeadEvents"), after, limit)
	if err != nil {
		return nil, s.fail("dead events", err)
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
		_, err := s.exec(ctx, tx, "RecordDiscarded", convergo.Micros(now), clip(by), clip(reason), id)
		return err
	})
}

// closeEvent takes a dead event off the list; move says where it goes. Then its aggregate's queue goes on. The lane's row is
// locked first: no settlement and no other operator changes the queue meanwhile, and the first of two operators decides.
func (s *Store) closeEvent(
	ctx context.Context, what ops.Move, id int64, by, reason string, now time.Time, move func(context.Context, *Tx, sql.NullInt64) error,
) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
		var (
			lane      int64
			aggregate []byte
			key       string
			earlier   sql.NullInt64
		)
		err := tx.QueryRowContext(ctx, s.sql.Get("LaneOfEvent"), id).Scan(&lane)
		if err == nil {
			_, err = list(ctx, tx, func(*sql.Rows) (none struct{}, err error) { return none, nil },
				s.with("LockLanes", ":lanes", strconv.FormatInt(lane, 10)))
		}
		if err == nil {
			err = tx.QueryRowContext(ctx, s.sql.Get("FindDeadEvent"), id).Scan(&aggregate, &key, &earlier)
		}
		if errors.Is(err, sql.ErrNoRows) {
			return ops.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("FindDeadEvent: %w", err)
		}
		if err = move(ctx, tx, earlier); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "DeleteDead", id); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "ReleaseAggregate", aggregate, aggregate); err != nil {
			return err
		}
		digest, err := digestOf(aggregate)
		if err != nil {
			return err
		}
		s.wakeAfter(tx)
		if err = s.record(ctx, tx, ops.Act{
			Target: ops.TargetEvent, ID: strconv.FormatInt(id, 10), Move: what, Key: convergo.Key(key), By: by, Reason: reason, At: now,
		}); err != nil {
			return err
		}
		return s.queuesGoOn(ctx, tx, map[convergo.Digest]bool{digest: true}, convergo.Micros(now))
	})
	if err != nil {
		return s.fail(string(what)+" dead event "+strconv.FormatInt(id, 10), err)
	}
	return nil
}

// replayChunk is how many event rows one transaction of Replay looks at, so that nobody is kept waiting.
const replayChunk = 2000

// Replay implements ops.Outbox.
func (s *Store) Replay(ctx context.Context, since, _ time.Time) (n int, err error) {
	us := convergo.Micros(since)
	replay := func(lock, query string, args ...any) error {
		made := int64(0)
		err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
			made = 0
			ids, err := list(ctx, tx, scanID, query, args...)
			if err != nil {
				return fmt.Errorf("%s: %w", lock, err)
			}
			if len(ids) == 0 {
				return nil
			}
			if made, err = s.exec(ctx, tx, "ReplayEvents", array(ids)); made > 0 {
				s.wakeAfter(tx)
			}
			return err
		})
		if err == nil {
			n += int(made)
		}
		return err
	}
	delayed, err := list(ctx, s.reader(ctx), scanID, s.sql.Get("DueSince"), us, us)
	slices.Sort(delayed)
	for ids := range slices.Chunk(delayed, listMost) {
		if err == nil {
			err = replay("LockListed", s.sql.Get("LockListed"), array(ids))
		}
	}
	var low, high int64
	if err == nil {
		low, high, err = s.writtenSince(ctx, us)
	}
	for ; err == nil && low <= high; low += replayChunk {
		err = replay("LockEvents", s.sql.Get("LockEvents"), low, min(low+replayChunk-1, high), us)
	}
	if err != nil {
		return n, s.fail("replay", err)
	}
	return n, nil
}

// writtenSince is the range of ids in which all events lie that were written since then; low is above high when there are
// none. Ids grow with time but for what clocks and long transactions shuffle, so it looks back until a whole window is older.
func (s *Store) writtenSince(ctx context.Context, since int64) (low, high int64, err error) {
	const window = 1000
	low, high = math.MaxInt64, 0
	below := int64(math.MaxInt64)
	for more := true; more; {
		rows, err := list(ctx, s.reader(ctx), scanAged, s.sql.Get("EventsBelow"), below, window)
		if err != nil {
			return 0, 0, fmt.Errorf("EventsBelow: %w", err)
		}
		young := false
		for _, row := range rows {
			below = row.id
			if row.at >= since {
				young, low, high = true, below, max(high, below)
			}
		}
		more = young && len(rows) == window
	}
	return low, high, nil
}

// DeadLetters implements ops.Inbox.
func (s *Store) DeadLetters(ctx context.Context, consumer string, limit int, after string) ([]ops.DeadLetter, error) {
	room := stored.Within(ops.MaxPageBytes)
	letters, err := list(ctx, s.db, func(rows *sql.Rows) (l ops.DeadLetter, err error) {
		var died, closed int64
		l.Event, err = scanEvent(rows, &l.ID, &l.Consumer, &l.Attempts, &l.Error, &l.Place, &died, &l.Held, &l.State, &closed,
			&l.ClosedBy, &l.Reason)
		l.DiedAt, l.ClosedAt = convergo.FromMicros(died), convergo.FromMicros(closed)
		if err == nil {
			err = room(l.Event)
		}
		return l, err
	}, s.sql.Get("DeadLetters"), after, consumer, consumer, limit)
	if err != nil {
		return nil, s.fail("dead letters", err)
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
		queued, err := s.once(ctx, tx, "RequeueLetter", convergo.Micros(now), payload[:], id)
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

// closeLetter takes the aggregate's queue before the letter, as those do who consume; then it looks what the letter is by now.
func (s *Store) closeLetter(
	ctx context.Context, id string, what ops.Move, by, reason string, now time.Time, move func(context.Context, *Tx, letter) error,
) error {
	err := s.join(ctx, func(ctx context.Context, tx *Tx) error {
		var l letter
		err := tx.QueryRowContext(ctx, s.sql.Get("LetterAggregate"), id).Scan(&l.consumer, &l.digest, &l.aggregate.Type, &l.aggregate.ID)
		if err == nil {
			us := convergo.Micros(now)
			if _, err = s.exec(ctx, tx, "BlockConsumerOnce", l.consumer, l.digest, stored.Clip(l.aggregate.Type, maxNameColumn),
				stored.Clip(l.aggregate.ID, maxNameColumn), us, us); err != nil {
				return err
			}
			err = tx.QueryRowContext(ctx, s.sql.Get("FindLetter"), id).Scan(&l.key, &l.keyDigest, &l.payload, &l.earlier)
		}
		if errors.Is(err, sql.ErrNoRows) {
			return ops.ErrNotFound
		}
		if err != nil {
			return fmt.Errorf("FindLetter: %w", err)
		}
		if err = move(ctx, tx, l); err != nil {
			return err
		}
		act := ops.Act{Target: ops.TargetLetter, ID: id, Move: what, Key: convergo.Key(l.key), By: by, Reason: reason, At: now}
		_, state := act.States()
		if _, err = s.exec(ctx, tx, "CloseLetter", state, convergo.Micros(now), clip(by), clip(reason), id); err != nil {
			return err
		}
		if err = s.record(ctx, tx, act); err != nil {
			return err
		}
		if _, err = s.exec(ctx, tx, "ReleaseConsumer", l.consumer, l.digest, l.consumer, l.digest); err != nil {
			return err
		}
		return s.consumerGoesOn(ctx, tx, l.consumer, l.aggregate, now)
	})
	if err != nil {
		return s.fail(string(what)+" dead letter "+id, err)
	}
	return nil
}
