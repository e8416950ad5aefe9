package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Claim implements relay.Store.
func (s *Store) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	if err := ctx.Err(); err != nil {
		return relay.Claim{}, fmt.Errorf("memory store: claim: %w", err)
	}
	if err := s.promote(ctx, leases, now); err != nil {
		return relay.Claim{}, err
	}
	seen := s.committed.Load()
	c := claim{
		state: seen, now: convergo.Micros(now), perLane: max(perLane, 1),
		portion: relay.NewPortion(perLane, convergo.Lane(s.claims.Add(1)%convergo.Lanes)),
	}
	for _, l := range leases {
		c.queues(l.Lane)
	}
	for _, l := range leases {
		c.lane(l.Lane)
	}
	if err := c.portion.Complete(c.measure, c.read); err != nil {
		return relay.Claim{}, err
	}
	events, more := c.portion.Claim()
	return relay.Claim{Events: events, More: more, NextDue: convergo.FromMicros(c.next), Unowned: seen.unowned(time.Now())}, nil
}

// promote makes due delayed events pending, in order of their times. It writes only when there are any.
func (s *Store) promote(ctx context.Context, leases []relay.Lease, now time.Time) error {
	due := func(st *state, lane convergo.Lane) (list []laneDue) {
		for k := range st.delayed.from(laneDue{lane: lane}) {
			if k.lane != lane || k.at > convergo.Micros(now) {
				break
			}
			list = append(list, k)
		}
		return list
	}
	some := false
	for _, l := range leases {
		some = some || len(due(s.committed.Load(), l.Lane)) > 0
	}
	if !some {
		return nil
	}
	return s.change(ctx, "promote delayed events", func(tx *Tx) error {
		for _, l := range leases {
			for _, k := range due(&tx.now, l.Lane) {
				tx.now.delayed = tx.now.delayed.del(k)
				tx.makePending(k.lane, k.id)
			}
		}
		return nil
	})
}

// claim gathers what a relay may work on out of one snapshot.
type claim struct {
	state   *state
	now     int64
	perLane int
	next    int64
	portion *relay.Portion
}

// add copies the event, a large one when there is room.
func (c *claim) add(p relay.Pending, id int64) {
	e, _ := c.state.events.get(id)
	if sizes := sizesOf(e.event); sizes.Payload > relay.InlineBytes || sizes.Headers > relay.InlineBytes {
		c.portion.AddLater(p, id)
		return
	}
	p.Event = copyEvent(e.event)
	c.portion.Add(p)
}

func (c *claim) measure(ids []int64, tell func(id int64, e convergo.Event, sizes relay.Sizes)) error {
	for _, id := range ids {
		row, _ := c.state.events.get(id)
		e := row.event
		e.Payload, e.Headers = nil, nil
		tell(id, e, sizesOf(row.event))
	}
	return nil
}

func (c *claim) read(ids []int64, tell func(id int64, e convergo.Event)) error {
	for _, id := range ids {
		row, _ := c.state.events.get(id)
		tell(id, copyEvent(row.event))
	}
	return nil
}

func sizesOf(e convergo.Event) relay.Sizes {
	s := relay.Sizes{
		Topic: int64(len(e.Topic)), Type: int64(len(e.Type)), AggregateType: int64(len(e.Aggregate.Type)), AggregateID: int64(len(e.Aggregate.ID)),
		MessageID: int64(len(e.MessageID)), Key: int64(len(e.Key)), Payload: int64(len(e.Payload)),
	}
	for name, value := range e.Headers {
		s.Headers += int64(len(name) + len(value))
	}
	return s
}

// queues adds the due queues of the lane's blocked aggregates.
func (c *claim) queues(lane convergo.Lane) {
	room := c.perLane
	for k := range c.state.blockedDue.from(laneBlocked{lane: lane}) {
		if k.lane != lane {
			break
		}
		if k.next > c.now {
			c.dueAt(k.next)
			break
		}
		if room == 0 {
			c.portion.More()
			break
		}
		room = c.queue(lane, k.digest, room)
	}
}

func (c *claim) queue(lane convergo.Lane, digest convergo.Digest, room int) int {
	for k, row := range c.state.waiting.from(placeInQueue{digest: digest}) {
		if k.digest != digest {
			break
		}
		if room == 0 {
			c.portion.More()
			break
		}
		c.add(relay.Pending{Seq: k.seq, Lane: lane, Attempts: row.attempts, Queued: true}, row.id)
		room--
		if row.attempts > 0 { // it has failed before: alone, so that the others do not fail with it
			break
		}
	}
	return room
}

// lane adds the lane's own events and looks when the next delayed one is due.
func (c *claim) lane(lane convergo.Lane) {
	room := c.perLane
	for k, id := range c.state.pending.from(laneSeq{lane: lane}) {
		if k.lane != lane {
			break
		}
		if room == 0 {
			c.portion.More()
			break
		}
		room--
		e, _ := c.state.events.get(id)
		c.add(relay.Pending{Seq: k.seq, Lane: lane, Held: c.state.blocked.has(e.digest)}, id)
	}
	for k := range c.state.delayed.from(laneDue{lane: lane}) {
		if k.lane == lane {
			c.dueAt(k.at)
		}
		break
	}
}

func (c *claim) dueAt(us int64) {
	if c.next == 0 || us < c.next {
		c.next = us
	}
}

// Settle implements relay.Store.
func (s *Store) Settle(ctx context.Context, set relay.Settlement) error {
	return s.change(ctx, "settle", func(tx *Tx) error {
		leased := map[convergo.Lane]bool{}
		now := time.Now()
		for _, l := range set.Leases {
			if row, _ := tx.now.lanes.get(l.Lane); !row.stands(l.Token, now) {
				return fmt.Errorf("lane %d, token %d: %w", l.Lane, l.Token, relay.ErrLeaseLost)
			}
			leased[l.Lane] = true
		}
		st := settling{tx: tx, leased: leased, now: convergo.Micros(set.Now), touched: map[convergo.Digest]bool{}}
		return st.settle(set)
	})
}

// settling applies a settlement. Rows move first and the blocked aggregates are looked at last, so that the outcome does
// not depend on the order of the lists: an event set aside together with the success of its aggregate's head is the new
// head.
type settling struct {
	tx      *Tx
	leased  map[convergo.Lane]bool
	now     int64
	touched map[convergo.Digest]bool // aggregates whose queue may have changed
}

func (st *settling) settle(set relay.Settlement) error {
	for _, p := range set.Sent {
		if _, _, err := st.take(p); err != nil {
			return err
		}
	}
	for _, p := range set.Aside {
		if err := st.requeue(p, p.Attempts); err != nil {
			return err
		}
	}
	for _, f := range set.Dead {
		if err := st.bury(f, set.HoldAggregate); err != nil {
			return err
		}
	}
	for digest := range st.touched {
		st.tx.goOn(digest, st.now)
	}
	for _, f := range set.Failed { // last: it decides when its aggregate's queue goes on
		if err := st.fail(f); err != nil {
			return err
		}
	}
	return nil
}

// take removes the event from where it was claimed, its lane or its aggregate's queue; ok is false when it is not there
// any more: this settlement was applied before and its answer was lost.
func (st *settling) take(p relay.Pending) (row eventRow, ok bool, err error) {
	lane, digest := p.Lane, p.Event.Aggregate.Digest()
	if !st.leased[lane] {
		return row, false, fmt.Errorf("event %s: its lane %d is not among the settlement's leases", p.Event.Key, lane)
	}
	now := &st.tx.now
	if !p.Queued {
		place := laneSeq{lane, p.Seq}
		id, _ := now.pending.get(place)
		now.pending = now.pending.del(place)
		row, ok = now.events.get(id)
		return row, ok, nil
	}
	place := placeInQueue{digest, p.Seq}
	w, _ := now.waiting.get(place)
	now.waiting = now.waiting.del(place)
	st.touched[digest] = true
	row, ok = now.events.get(w.id)
	return row, ok, nil
}

func (st *settling) requeue(p relay.Pending, attempts int) error {
	row, ok, err := st.take(p)
	if err != nil || !ok {
		return err
	}
	st.tx.now.waiting = st.tx.now.waiting.put(placeInQueue{row.digest, p.Seq}, waitingRow{row.id, attempts})
	st.touched[row.digest] = true
	return nil
}

func (st *settling) fail(f relay.Failure) error {
	row, ok, err := st.take(f.Pending)
	if err != nil || !ok {
		return err
	}
	st.tx.now.waiting = st.tx.now.waiting.put(placeInQueue{row.digest, f.Seq}, waitingRow{row.id, f.Attempts + 1})
	b := st.tx.block(row.digest, row.event.Aggregate, st.now)
	b.next, b.lastError = convergo.Micros(f.Next), clip(f.Error)
	st.tx.setBlocked(row.digest, b)
	return nil
}

func (st *settling) bury(f relay.Failure, hold bool) error {
	row, ok, err := st.take(f.Pending)
	if err != nil || !ok {
		return err
	}
	st.tx.now.dead = st.tx.now.dead.put(row.id, deadRow{
		id: row.id, seq: f.Seq, hold: hold, attempts: f.Attempts + 1, error: clip(f.Error), place: f.Place, at: st.now,
	})
	if hold {
		b := st.tx.block(row.digest, row.event.Aggregate, st.now)
		b.held, b.lastError = true, clip(f.Error)
		st.tx.setBlocked(row.digest, b)
	}
	st.touched[row.digest] = true
	return nil
}

// block is the aggregate's blocked row, a new one when it has none.
func (tx *Tx) block(digest convergo.Digest, a convergo.Aggregate, now int64) blockedRow {
	if b, ok := tx.now.blocked.get(digest); ok {
		return b
	}
	return blockedRow{aggregate: a, lane: a.Lane(), next: now, since: now}
}

// setBlocked writes the row and keeps blockedDue in step.
func (tx *Tx) setBlocked(digest convergo.Digest, b blockedRow) {
	tx.unblock(digest)
	tx.now.blocked = tx.now.blocked.put(digest, b)
	if !b.held {
		tx.now.blockedDue = tx.now.blockedDue.put(laneBlocked{b.lane, b.next, digest}, none{})
	}
}

func (tx *Tx) unblock(digest convergo.Digest) {
	if b, ok := tx.now.blocked.get(digest); ok {
		tx.now.blockedDue = tx.now.blockedDue.del(laneBlocked{b.lane, b.next, digest})
		tx.now.blocked = tx.now.blocked.del(digest)
	}
}

// goOn settles what becomes of an aggregate after its queue changed: with nothing waiting it is free unless a person must
// act; else its head is due at once, unless it has failed before (then its own time stands).
func (tx *Tx) goOn(digest convergo.Digest, now int64) {
	b, blocked := tx.now.blocked.get(digest)
	head, found := tx.head(digest)
	switch {
	case blocked && b.held:
	case !found:
		tx.unblock(digest)
	case !blocked:
		e, _ := tx.now.events.get(head.id)
		tx.setBlocked(digest, tx.block(digest, e.event.Aggregate, now))
	case head.attempts == 0:
		b.next = now
		tx.setBlocked(digest, b)
	}
}

func (tx *Tx) head(digest convergo.Digest) (head waitingRow, found bool) {
	for k, row := range tx.now.waiting.from(placeInQueue{digest: digest}) {
		return row, k.digest == digest
	}
	return head, false
}
