package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// promoteMost is how many delayed events one claim makes pending; the rest follow with the next claim.
const promoteMost = 1000

// Claim implements relay.Store: one read-only transaction, and one that makes delayed events pending when any is due. Nothing it
// reads grows with what is not claimed.
func (s *Store) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	c := claiming{
		store: s, ctx: ctx, perLane: int64(max(perLane, 1)), now: convergo.Micros(now),
		portion: relay.NewPortion(perLane, convergo.Lane(s.claims.Add(1)%convergo.Lanes)),
	}
	for _, l := range leases {
		if l.Lane < convergo.Lanes {
			c.leases, c.lanes = append(c.leases, l), append(c.lanes, int16(l.Lane))
		}
	}
	if err := c.run(); err != nil {
		return relay.Claim{}, fmt.Errorf("postgres store %s: claim: %w", s.opts.Name, err)
	}
	events, more := c.portion.Claim()
	return relay.Claim{Events: events, More: more, NextDue: convergo.FromMicros(c.next), Unowned: c.unowned}, nil
}

type claiming struct {
	store   *Store
	ctx     context.Context
	session session
	leases  []relay.Lease
	lanes   []int16
	perLane int64
	now     int64
	portion *relay.Portion
	next    int64
	unowned bool

	floors  []int64 // of delayed events, by lane
	seen    *snapshot
	seq     int64
	started time.Time
}

func (c *claiming) run() error {
	if len(c.lanes) == 0 {
		return c.ctx.Err()
	}
	promoted := false
	for {
		promote := false
		// Queues and lanes out of one snapshot: an aggregate must not look blocked in one and free in the other.
		err := c.store.snapshot(c.ctx, c.store.begin.claim, func(s session) (err error) {
			c.session = s
			promote, err = c.read(promoted)
			return err
		})
		if err != nil || !promote {
			return err
		}
		promoted = true
		if err = c.promote(); err != nil {
			return err
		}
	}
}

// read reads what there is; promote: delayed events are due, and must become pending first.
func (c *claiming) read(promoted bool) (promote bool, err error) {
	c.floors = c.store.floors.delayed(c.lanes)
	delayed, retry, err := c.due(0)
	if err != nil {
		return false, err
	}
	late := due(delayed, c.now)
	if late && !promoted {
		return true, nil
	}
	if !late {
		c.store.floors.noneDue(c.lanes, c.floors, c.now)
	}
	waiting := due(retry, c.now)
	if waiting {
		if err = c.queues(); err != nil {
			return false, err
		}
	}
	if err = c.pending(); err != nil {
		return false, err
	}
	if err = c.large(); err != nil {
		return false, err
	}
	if late || waiting {
		if delayed, retry, err = c.due(c.now); err != nil {
			return false, err
		}
	}
	if late { // more were due than one claim promotes
		c.portion.More()
	}
	if c.next = delayed; c.next == 0 || retry != 0 && retry < c.next {
		c.next = retry
	}
	return false, nil
}

// due: 0 is none.
func due(at, now int64) bool { return at != 0 && at <= now }

// due reads when the next delayed event and the next retry after a time are due.
func (c *claiming) due(after int64) (delayed, retry int64, err error) {
	var first, second *int64
	var seen string
	into := []any{&first, &second, &c.seq, &seen, &c.started, &c.unowned}
	if _, err = c.session.one(c.ctx, "NextDue", []any{c.lanes, after, c.floors}, into...); err != nil {
		return 0, 0, err
	}
	if c.seen, err = parseSnapshot(seen); err != nil {
		return 0, 0, err
	}
	if first != nil {
		delayed = *first
	}
	if second != nil {
		retry = *second
	}
	return delayed, retry, nil
}

// pending reads the head of each lane, from its floor on.
func (c *claiming) pending() error {
	floors := &c.store.floors
	lanes, starts, life := floors.look(c.leases, c.seen, c.seq, c.started)
	var first [convergo.Lanes]int64
	if len(lanes) > 0 {
		row := func(rows pgx.Rows) error { return c.row(rows, &first) }
		if err := c.session.each(c.ctx, "ClaimLanes", []any{lanes, starts, c.perLane}, row); err != nil {
			return err
		}
	}
	floors.found(c.leases, c.seen, life, &first)
	return nil
}

// row reads one row of ClaimLanes. Also of one that has no room the floors must know.
func (c *claiming) row(rows pgx.Rows, first *[convergo.Lanes]int64) error {
	var (
		lane, seq, n, id int64
		held             *bool
		event            nullableEvent
	)
	if err := rows.Scan(event.columns(&lane, &seq, &n, &id, &held)...); err != nil {
		return err
	}
	if at := &first[lane]; *at == 0 || seq < *at {
		*at = seq
	}
	switch {
	case n > c.perLane:
		c.portion.More()
	case held != nil: // else its event is gone, which nothing of ours does
		c.add(relay.Pending{Seq: seq, Lane: convergo.Lane(lane), Held: *held}, id, &event)
	}
	return nil
}

func (c *claiming) add(p relay.Pending, id int64, event *nullableEvent) {
	if event.topic == nil {
		c.portion.AddLater(p, id)
		return
	}
	p.Event = event.event()
	c.portion.Add(p)
}

// large reads the events that did not come with their rows, as far as they have room.
func (c *claiming) large() error {
	return c.portion.Complete(func(ids []int64, tell func(id int64, e convergo.Event, sizes relay.Sizes)) error {
		return c.session.each(c.ctx, "EventSizes", []any{ids}, func(rows pgx.Rows) error {
			var (
				id    int64
				event eventRow
				size  relay.Sizes
			)
			err := rows.Scan(append(event.columns(&id), &size.Topic, &size.Type, &size.AggregateType, &size.AggregateID,
				&size.MessageID, &size.Key, &size.Headers, &size.Payload)...)
			tell(id, event.event(), size)
			return err
		})
	}, func(ids []int64, tell func(id int64, e convergo.Event)) error {
		return c.session.each(c.ctx, "LargeEvents", []any{ids}, func(rows pgx.Rows) error {
			var (
				id    int64
				event eventRow
			)
			err := rows.Scan(event.columns(&id)...)
			tell(id, event.event())
			return err
		})
	})
}

// queues reads the due queues of blocked aggregates, up to perLane events a lane.
func (c *claiming) queues() error {
	var lanes []int16
	err := c.session.each(c.ctx, "DueLanes", []any{c.lanes, c.now}, func(rows pgx.Rows) error {
		var lane int16
		err := rows.Scan(&lane)
		lanes = append(lanes, lane)
		return err
	})
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		room := c.perLane
		err = c.session.each(c.ctx, "ClaimQueue", []any{lane, c.now, c.perLane + 1}, func(rows pgx.Rows) error {
			var (
				seq, attempts, id int64
				event             nullableEvent
			)
			if err := rows.Scan(event.columns(&seq, &attempts, &id)...); err != nil {
				return err
			}
			if room == 0 {
				c.portion.More()
				return nil
			}
			room--
			c.add(relay.Pending{Seq: seq, Lane: convergo.Lane(lane), Attempts: int(attempts), Queued: true}, id, &event)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// promote makes due delayed events pending, those of a lane in order of their times. One statement, its own transaction.
func (c *claiming) promote() error {
	s := c.store
	if s.opts.ReadOnly {
		return ErrReadOnly
	}
	return s.update(c.ctx, func(ctx context.Context, tx *Tx) error {
		_, err := s.exec(ctx, tx, "PromoteDelayed", c.lanes, c.now, promoteMost, c.floors)
		return err
	})
}
