package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/internal/stored"
)

// promoteMost is how many delayed events one claim makes pending; the rest follow with the next claim.
const promoteMost = 1000

// Claim implements relay.Store. With nothing to do it is one statement, else two, in no transaction (and a look of floor.go's once a
// second, which locks what nobody uses): what it reads is changed by the
// leases' owner alone, an operator's redrive or discard aside, and whichever of the two states of a queue that shows, an event
// comes out in its place or is held: queues are read before lanes, and a held event goes to the queue's end. Nothing it reads
// grows with what is not claimed.
func (s *Store) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	lanes := make([]int64, 0, len(leases))
	for _, l := range leases {
		if l.Lane < convergo.Lanes {
			lanes = append(lanes, int64(l.Lane))
		}
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	for {
		turn, rows := s.turnOf(), s.narrow.rows.Load()
		c := claiming{
			store: s, lanes: lanes, perLane: max(perLane, 1), now: convergo.Micros(now), turn: turn, left: rows,
			portion: relay.NewPortion(perLane, turn),
		}
		bounded, cancel := half(ctx)
		err := c.run(bounded)
		late := err != nil && bounded.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case late && s.narrow.late(rows):
		case err != nil:
			return relay.Claim{}, s.fail("claim", err)
		default:
			s.narrow.inTime(rows)
			events, more := c.portion.Claim()
			return relay.Claim{Events: events, More: more, NextDue: convergo.FromMicros(c.next), Unowned: c.unowned}, nil
		}
	}
}

type claiming struct {
	store   *Store
	lanes   []int64
	perLane int
	now     int64
	portion *relay.Portion
	next    int64
	turn    convergo.Lane
	unowned bool
	left    int64 // rows that may still be looked at; 0 for all: see narrow
}

// laneState is what NextDue tells of a lane; 0 is none.
type laneState struct {
	lane           int64
	delayed, retry int64 // when the next delayed event and the next retry are due
	pending        bool
}

func (c *claiming) run(ctx context.Context) error {
	if len(c.lanes) == 0 {
		return ctx.Err()
	}
	busy := c.left == 0 && c.store.floor.busy(c.lanes)
	states, err := c.look(ctx, 0, !busy)
	if err != nil {
		return err
	}
	anyDue := slices.ContainsFunc(states, func(l laneState) bool { return due(l.delayed, c.now) || due(l.retry, c.now) })
	if anyDue {
		if err = c.work(ctx, states); err != nil {
			return err
		}
	}
	if busy || anyDue || slices.ContainsFunc(states, func(l laneState) bool { return l.pending }) {
		if err = c.pending(ctx, states); err != nil {
			return err
		}
	}
	if err = c.large(ctx); err != nil {
		return err
	}
	if anyDue {
		if states, err = c.look(ctx, c.now, false); err != nil {
			return err
		}
	}
	for _, l := range states {
		for _, at := range []int64{l.delayed, l.retry} {
			if at != 0 && (c.next == 0 || at < c.next) {
				c.next = at
			}
		}
	}
	return nil
}

// work promotes what is due and reads the due queues.
func (c *claiming) work(ctx context.Context, states []laneState) error {
	var delayed []int64
	for _, l := range states {
		if due(l.delayed, c.now) {
			delayed = append(delayed, l.lane)
		}
	}
	if len(delayed) > 0 {
		if err := c.promote(ctx, delayed); err != nil {
			return err
		}
	}
	for _, l := range states {
		if due(l.retry, c.now) {
			if err := c.queues(ctx, l.lane); err != nil {
				return err
			}
		}
	}
	return nil
}

// due: 0 is none.
func due(at, now int64) bool { return at != 0 && at <= now }

// look reads the states of the lanes; delayed and retry are the next ones after a time.
func (c *claiming) look(ctx context.Context, after int64, pending bool) ([]laneState, error) {
	s, probe := c.store, "1"
	if pending {
		probe = s.sql.Get("AnyPending")
	}
	states, err := list(ctx, s.db, func(rows *sql.Rows) (l laneState, err error) {
		var delayed, retry, pending sql.NullInt64
		err = rows.Scan(&l.lane, &delayed, &retry, &pending, &c.unowned)
		l.delayed, l.retry, l.pending = delayed.Int64, retry.Int64, pending.Valid
		return l, err
	}, s.with("NextDue", ":lanes", numbers(c.lanes), ":pending", probe), after, after)
	if err != nil {
		return nil, fmt.Errorf("NextDue: %w", err)
	}
	return states, nil
}

// pending reads the head of each lane, and one row more, which tells that there is more, and for which there is no room.
func (c *claiming) pending(ctx context.Context, states []laneState) error {
	s := c.store
	lanes, most := c.choose(states)
	if len(lanes) == 0 {
		return nil
	}
	if err := s.raise(ctx, lanes); err != nil {
		return err
	}
	floors, seen := s.floor.begin(lanes)
	parts, part := make([]string, len(lanes)), s.sql.Get("LaneHead")
	for i, lane := range lanes {
		parts[i] = strings.NewReplacer(":lane", strconv.FormatInt(lane, 10), ":floor", strconv.FormatInt(floors[i], 10), ":most", strconv.Itoa(most)).
			Replace(part)
	}
	var firsts [convergo.Lanes]int64 // of the rows that were seen, whether or not there was room for them
	_, err := list(ctx, s.db, func(rows *sql.Rows) (_ struct{}, err error) {
		var (
			p  relay.Pending
			id int64
		)
		if p.Event, err = scanEvent(rows, &p.Seq, &p.Lane, &id, &p.Held); err != nil {
			return struct{}{}, err
		}
		if first := &firsts[p.Lane%convergo.Lanes]; *first == 0 || p.Seq < *first {
			*first = p.Seq
		}
		c.add(p, id)
		return struct{}{}, nil
	}, s.with("ClaimLanes", ":heads", strings.Join(parts, " UNION ALL ")))
	if err != nil {
		return fmt.Errorf("ClaimLanes: %w", err)
	}
	seen(firsts)
	return nil
}

// add takes what was read of an event. A payload is NULL when it, or the headers, are large.
func (c *claiming) add(p relay.Pending, id int64) {
	if p.Event.Payload == nil {
		p.Event = convergo.Event{}
		c.portion.AddLater(p, id)
		return
	}
	c.portion.Add(p)
}

// large reads the events that did not come with their rows, as far as they have room.
func (c *claiming) large(ctx context.Context) error {
	s := c.store
	return c.portion.Complete(func(ids []int64, tell func(id int64, e convergo.Event, sizes relay.Sizes)) error {
		_, err := list(ctx, s.db, func(rows *sql.Rows) (_ struct{}, err error) {
			var (
				id   int64
				size relay.Sizes // the columns of the other texts take no more than is legal
			)
			e, err := scanEvent(rows, &id, &size.Headers, &size.Payload)
			if err == nil {
				tell(id, e, size)
			}
			return struct{}{}, err
		}, s.sql.Get("EventSizes"), array(ids))
		if err != nil {
			return fmt.Errorf("EventSizes: %w", err)
		}
		return nil
	}, func(ids []int64, tell func(id int64, e convergo.Event)) error {
		_, err := list(ctx, s.db, func(rows *sql.Rows) (_ struct{}, err error) {
			var id int64
			e, err := scanEvent(rows, &id)
			if err == nil {
				tell(id, e)
			}
			return struct{}{}, err
		}, s.sql.Get("LargeEvents"), array(ids))
		if err != nil {
			return fmt.Errorf("LargeEvents: %w", err)
		}
		return nil
	})
}

// queues reads the due queues of a lane's blocked aggregates, up to perLane events.
func (c *claiming) queues(ctx context.Context, lane int64) error {
	aggregates, err := list(ctx, c.store.db, scanBytes, c.store.sql.Get("DueAggregates"), lane, c.now, c.perLane+1)
	if err != nil {
		return fmt.Errorf("DueAggregates: %w", err)
	}
	room := c.perLane
	if c.left > 0 {
		most := min(int(c.left)-1, room) // one is for the lanes
		room = most
		defer func() { c.left -= int64(most - room) }()
	}
	for _, a := range aggregates {
		if room == 0 {
			c.portion.More()
			break
		}
		if room, err = c.queue(ctx, convergo.Lane(lane), a, room); err != nil {
			return err
		}
	}
	return nil
}

// queue reads the waiting events of one aggregate, and returns the room that is left. One that has failed before comes
// alone, so that the others do not fail with it.
func (c *claiming) queue(ctx context.Context, lane convergo.Lane, aggregate []byte, room int) (int, error) {
	alone := false
	_, err := list(ctx, c.store.db, func(rows *sql.Rows) (_ struct{}, err error) {
		var (
			p  = relay.Pending{Lane: lane, Queued: true}
			id int64
		)
		if p.Event, err = scanEvent(rows, &p.Seq, &p.Attempts, &id); err != nil {
			return struct{}{}, err
		}
		if alone {
			return struct{}{}, stored.ErrEnough
		}
		if room == 0 {
			c.portion.More()
			return struct{}{}, stored.ErrEnough
		}
		c.add(p, id)
		room--
		alone = p.Attempts > 0
		return struct{}{}, nil
	}, c.store.sql.Get("ClaimQueue"), aggregate, room+1)
	if err != nil {
		return 0, fmt.Errorf("ClaimQueue: %w", err)
	}
	return room, nil
}

// promote makes due delayed events pending, those of a lane in order of their times.
//
//	relay A                               relay B, whose lease has ended
//	locks the due rows, in order          waits for the first of them
//	inserts pending rows, deletes them
//	commits                               finds them gone, promotes what is left
//
// So each becomes pending once, and of one lane's events no later one before an earlier one.
func (c *claiming) promote(ctx context.Context, lanes []int64) error {
	s, more := c.store, false
	err := s.update(ctx, func(ctx context.Context, tx *Tx) error {
		var (
			ids  []int64
			rows []string
		)
		for _, lane := range lanes {
			if len(ids) == promoteMost {
				break
			}
			found, err := list(ctx, tx, func(r *sql.Rows) (at [2]int64, err error) { return at, r.Scan(&at[0], &at[1]) },
				s.sql.Get("DueDelayed"), lane, c.now, promoteMost-len(ids))
			if err != nil {
				return fmt.Errorf("DueDelayed: %w", err)
			}
			for _, row := range found {
				ids = append(ids, row[0])
				rows = append(rows, "("+strconv.FormatInt(row[1], 10)+","+strconv.FormatInt(row[0], 10)+")")
			}
		}
		more = len(ids) == promoteMost
		if len(ids) == 0 {
			return nil
		}
		if _, err := s.execWith(ctx, tx, "PromoteDelayed", []string{":rows", strings.Join(rows, ",")}); err != nil {
			return err
		}
		slices.Sort(ids)
		_, err := s.exec(ctx, tx, "DeleteDelayed", array(ids))
		return err
	})
	if more {
		c.portion.More()
	}
	return err
}
