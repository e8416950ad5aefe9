package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

// DeadEvents implements ops.Outbox.
func (s *Store) DeadEvents(ctx context.Context, limit int, after int64) ([]ops.DeadEvent, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: dead events: %w", err)
	}
	seen := s.committed.Load()
	var list []ops.DeadEvent
	size := 0
	for id, d := range seen.dead.from(after + 1) {
		row, _ := seen.events.get(id)
		sizes, event := sizesOf(row.event), row.event
		if sizes.Payload > convergo.MaxPayloadBytes {
			event.Payload = nil
		}
		if sizes.Headers > relay.MaxHeaderText {
			event.Headers = nil
		}
		if size += len(event.Payload); len(list) >= limit || len(list) > 0 && size > ops.MaxPageBytes {
			break
		}
		b, _ := seen.blocked.get(row.digest)
		list = append(list, ops.DeadEvent{
			ID: id, Event: copyEvent(event), PayloadBytes: sizes.Payload, Attempts: d.attempts, Error: d.error, Place: d.place,
			DiedAt: convergo.FromMicros(d.at), Held: b.held,
		})
	}
	return list, nil
}

// RedriveEvent implements ops.Outbox.
func (s *Store) RedriveEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.change(ctx, "redrive event", func(tx *Tx) error {
		d, e, err := tx.deadEvent(id)
		if err != nil {
			return err
		}
		for other, o := range tx.now.dead.all() {
			if row, _ := tx.now.events.get(other); row.digest == e.digest && o.seq < d.seq {
				return fmt.Errorf("event %d (%s): event %d: %w", id, e.event.Key, other, ops.ErrEarlierDead)
			}
		}
		tx.now.dead = tx.now.dead.del(id)
		tx.now.waiting = tx.now.waiting.put(placeInQueue{e.digest, d.seq}, waitingRow{id: id})
		tx.relent(e.digest, e.event.Aggregate, convergo.Micros(now))
		tx.recordEvent(e, ops.MoveRedrive, by, reason, now)
		tx.AfterCommit(s.wakeEvents)
		return nil
	})
}

// DiscardEvent implements ops.Outbox.
func (s *Store) DiscardEvent(ctx context.Context, id int64, by, reason string, now time.Time) error {
	return s.change(ctx, "discard event", func(tx *Tx) error {
		d, e, err := tx.deadEvent(id)
		if err != nil {
			return err
		}
		tx.now.dead = tx.now.dead.del(id)
		tx.now.discarded = tx.now.discarded.put(id, discardedRow{d, by, reason, convergo.Micros(now)})
		tx.relent(e.digest, e.event.Aggregate, convergo.Micros(now))
		tx.recordEvent(e, ops.MoveDiscard, by, reason, now)
		tx.AfterCommit(s.wakeEvents)
		return nil
	})
}

func (tx *Tx) deadEvent(id int64) (deadRow, eventRow, error) {
	d, ok := tx.now.dead.get(id)
	if !ok {
		return d, eventRow{}, fmt.Errorf("event %d: %w", id, ops.ErrNotFound)
	}
	e, _ := tx.now.events.get(id)
	return d, e, nil
}

// relent lets an aggregate go on after a person acted on a dead event of it, unless another dead one holds it.
func (tx *Tx) relent(digest convergo.Digest, a convergo.Aggregate, now int64) {
	b := tx.block(digest, a, now)
	b.held = false
	for id, d := range tx.now.dead.all() {
		if row, _ := tx.now.events.get(id); d.hold && row.digest == digest {
			b.held = true
		}
	}
	tx.setBlocked(digest, b)
	tx.goOn(digest, now)
}

// Replay implements ops.Outbox. It is atomic here.
func (s *Store) Replay(ctx context.Context, since, now time.Time) (int, error) {
	n := 0
	err := s.change(ctx, "replay", func(tx *Tx) error {
		unsent := tx.now.unsent()
		for id, e := range tx.now.events.all() {
			if unsent[id] || tx.now.discarded.has(id) ||
				max(convergo.Micros(e.event.CreatedAt), convergo.Micros(e.event.DeliverAt)) < convergo.Micros(since) {
				continue
			}
			tx.makePending(e.lane, id)
			n++
		}
		if n > 0 {
			tx.AfterCommit(s.wakeEvents)
		}
		return nil
	})
	return n, err
}

// unsent are the events that are still to be sent, or dead.
func (st *state) unsent() map[int64]bool {
	ids := map[int64]bool{}
	for _, id := range st.pending.all() {
		ids[id] = true
	}
	for k := range st.delayed.all() {
		ids[k.id] = true
	}
	for _, w := range st.waiting.all() {
		ids[w.id] = true
	}
	for id := range st.dead.all() {
		ids[id] = true
	}
	return ids
}

// DeadLetters implements ops.Inbox.
func (s *Store) DeadLetters(ctx context.Context, consumer string, limit int, after string) ([]ops.DeadLetter, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory store: dead letters: %w", err)
	}
	seen := s.committed.Load()
	var list []ops.DeadLetter
	size := 0
	for id, d := range seen.inDead.from(after) {
		if id == after || d.state != ops.Open || consumer != "" && d.consumer != consumer {
			continue
		}
		if size += len(d.event.Payload); len(list) >= limit || len(list) > 0 && size > ops.MaxPageBytes {
			break
		}
		b, _ := seen.inBlocked.get(consumerKey{d.consumer, d.event.Aggregate.Digest()})
		list = append(list, ops.DeadLetter{
			ID: id, Consumer: d.consumer, Event: copyEvent(d.event), Attempts: d.attempts, Error: d.error, Place: d.where,
			DiedAt: convergo.FromMicros(d.at), Held: b.held, State: d.state,
		})
	}
	return list, nil
}

// RedriveLetter implements ops.Inbox. The mark of another message under the same key (one that was applied, when the
// letter is there because its payload differs) stays: the letter would be an effect of that key for the second time.
func (s *Store) RedriveLetter(ctx context.Context, id, by, reason string, now time.Time) error {
	return s.change(ctx, "redrive letter", func(tx *Tx) error {
		d, err := tx.openLetter(id)
		if err != nil {
			return err
		}
		aggregate := d.event.Aggregate.Digest()
		for other, o := range tx.now.inDead.all() {
			if o.state == ops.Open && o.consumer == d.consumer && o.event.Aggregate.Digest() == aggregate && o.place < d.place {
				return fmt.Errorf("letter %s (%s): letter %s: %w", id, d.event.Key, other, ops.ErrEarlierDead)
			}
		}
		if _, queued := tx.now.inPlaces.get(messageKey(d.consumer, d.event)); queued && d.event.Key == "" {
			return fmt.Errorf("letter %s: %w", id, ops.ErrQueued)
		}
		tx.closeLetter(d, ops.Redriven, by, reason, now)
		tx.recordLetter(d, ops.MoveRedrive, by, reason, now)
		tx.unmark(d.consumer, d.event)
		tx.unqueue(d.consumer, d.event) // a redelivery that queued behind its own dead letter
		tx.queueAt(d.consumer, d.place, inWaitingRow{event: d.event, at: convergo.Micros(now)})
		tx.inRelent(d.consumer, d.event.Aggregate, convergo.Micros(now))
		return nil
	})
}

// DiscardLetter implements ops.Inbox.
func (s *Store) DiscardLetter(ctx context.Context, id, by, reason string, now time.Time) error {
	return s.change(ctx, "discard letter", func(tx *Tx) error {
		d, err := tx.openLetter(id)
		if err != nil {
			return err
		}
		tx.closeLetter(d, ops.Discarded, by, reason, now)
		tx.recordLetter(d, ops.MoveDiscard, by, reason, now)
		tx.inRelent(d.consumer, d.event.Aggregate, convergo.Micros(now))
		return nil
	})
}

func (tx *Tx) openLetter(id string) (inDeadRow, error) {
	d, ok := tx.now.inDead.get(id)
	if !ok || d.state != ops.Open {
		return d, fmt.Errorf("letter %q: %w", id, ops.ErrNotFound)
	}
	return d, nil
}

func (tx *Tx) closeLetter(d inDeadRow, state ops.State, by, reason string, now time.Time) {
	d.state, d.closedBy, d.reason, d.closedAt = state, by, reason, convergo.Micros(now)
	tx.now.inDead = tx.now.inDead.put(d.id, d)
}

func (tx *Tx) unmark(consumer string, e convergo.Event) {
	key := consumerKey{consumer, e.Key.Digest()}
	if row, ok := tx.now.marks.get(key); ok && row.payload == payloadDigest(e) {
		tx.now.marks = tx.now.marks.del(key)
	}
}

// inRelent lets an aggregate go on after a person acted on a dead letter of it, unless another open one holds it.
func (tx *Tx) inRelent(consumer string, a convergo.Aggregate, now int64) {
	digest := a.Digest()
	b := inBlockedRow{aggregate: a, next: now}
	if row, ok := tx.now.inBlocked.get(consumerKey{consumer, digest}); ok {
		b = row
		b.held = false
	}
	for _, d := range tx.now.inDead.all() {
		if d.state == ops.Open && d.hold && d.consumer == consumer && d.event.Aggregate.Digest() == digest {
			b.held = true
		}
	}
	tx.setInBlocked(consumer, digest, b)
	tx.inGoOn(consumer, a, now, false)
}
