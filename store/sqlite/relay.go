package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// promoteMost is how many delayed events one claim makes pending; the rest follow with the next claim.
const promoteMost = 1000

// Claim implements relay.Store. With nothing to do it is one statement, else two. Nothing it reads grows with what is not claimed.
func (s *Store) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	c := claiming{
		store: s, perLane: max(perLane, 1), now: convergo.Micros(now),
		portion: relay.NewPortion(perLane, convergo.Lane(s.claims.Add(1)%convergo.Lanes)),
	}
	for _, l := range leases {
		if l.Lane < convergo.Lanes {
			c.lanes |= 1 << l.Lane
		}
	}
	if err := c.run(ctx); err != nil {
		return relay.Claim{}, fmt.Errorf("sqlite store %s: claim: %w", s.opts.Name, err)
	}
	events, more := c.portion.Claim()
	return relay.Claim{Events: events, More: more, NextDue: convergo.FromMicros(c.next), Unowned: c.unowned}, nil
}

type claiming struct {
	store   *Store
	lanes   int64 // one bit a lane: there are as many as an integer has
	perLane int
	now     int64
	found   bool // the last call of due saw pending events
	portion *relay.Portion
	next    int64
	unowned bool
}

func (c *claiming) run(ctx context.Context) error {
	if c.lanes == 0 {
		return ctx.Err()
	}
	var delayed, retry int64
	err := c.store.reader(ctx, func(conn *cachingConn) (err error) {
		if delayed, retry, err = c.due(conn, 0); err != nil || due(delayed, c.now) || due(retry, c.now) || !c.found {
			return err
		}
		if err = c.pending(conn); err != nil {
			return err
		}
		return c.large(conn)
	})
	if err != nil {
		return err
	}
	if due(delayed, c.now) {
		if err = c.promote(ctx); err != nil {
			return err
		}
	}
	if due(delayed, c.now) || due(retry, c.now) {
		// Queues and lanes out of one snapshot: an aggregate must not look blocked in one and free in the other.
		err = c.store.snapshot(ctx, func(conn *cachingConn) (err error) {
			if err = c.queues(conn); err != nil {
				return err
			}
			if err = c.pending(conn); err != nil {
				return err
			}
			if err = c.large(conn); err != nil {
				return err
			}
			if delayed, retry, err = c.due(conn, c.now); err != nil {
				return err
			}
			if left, _, err := c.due(conn, 0); err != nil || due(left, c.now) { // more were due than one claim promotes
				c.portion.More()
				return err
			}
			return nil
		})
	}
	if c.next = delayed; c.next == 0 || retry != 0 && retry < c.next {
		c.next = retry
	}
	return err
}

// due: 0 is none.
func due(at, now int64) bool { return at != 0 && at <= now }

// due reads when the next delayed event and the next retry after a time are due.
func (c *claiming) due(conn *cachingConn, after int64) (delayed, retry int64, err error) {
	err = conn.each(context.Background(), c.store.sql.Get("NextDue"), func(v []driver.Value) error {
		delayed, retry, c.found, c.unowned = integer(v[0]), integer(v[1]), integer(v[2]) == 1, integer(v[3]) == 1
		return nil
	}, c.lanes, after)
	return delayed, retry, err
}

// pending reads the head of each lane.
func (c *claiming) pending(conn *cachingConn) error {
	return conn.each(context.Background(), c.store.sql.Get("ClaimLanes"), func(v []driver.Value) error {
		seq, flags := integer(v[0]), integer(v[1])
		p := relay.Pending{Seq: seq, Lane: convergo.Lane(flags >> 2), Held: flags&2 != 0}
		if flags&1 != 0 {
			c.portion.More()
		}
		if id, large := v[7].(int64); large {
			c.portion.AddLater(p, id)
			return nil
		}
		var ok bool
		if p.Event, ok = eventOfTexts(v[2:]); !ok {
			var err error
			if p.Event, err = c.one(conn, seq); err != nil {
				return err
			}
		}
		c.portion.Add(p)
		return nil
	}, c.lanes, int64(c.perLane))
}

// one reads an event column by column: a foreign writer has put the texts' separator into one of them. The relay will find
// out what is wrong with it.
func (c *claiming) one(conn *cachingConn, seq int64) (event convergo.Event, err error) {
	err = conn.each(context.Background(), c.store.sql.Get("ClaimOne"), func(v []driver.Value) error {
		event, err = eventOf(v)
		return err
	}, seq)
	return event, err
}

// queues reads the due queues of blocked aggregates, up to perLane events a lane.
func (c *claiming) queues(conn *cachingConn) error {
	var lanes []int64
	err := conn.each(context.Background(), c.store.sql.Get("DueLanes"), func(v []driver.Value) error {
		lanes = append(lanes, integer(v[0]))
		return nil
	}, c.lanes, c.now)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		var aggregates [][]byte
		err = conn.each(context.Background(), c.store.sql.Get("DueAggregates"), func(v []driver.Value) error {
			aggregates = append(aggregates, bytesOf(v[0]))
			return nil
		}, lane, c.now, int64(c.perLane+1))
		if err != nil {
			return err
		}
		room := c.perLane
		for _, a := range aggregates {
			if room == 0 {
				c.portion.More()
				break
			}
			if room, err = c.queue(conn, convergo.Lane(lane), a, room); err != nil {
				return err
			}
		}
	}
	return nil
}

// queue reads the waiting events of one aggregate, and returns the room that is left. One that has failed before comes
// alone, so that the others do not fail with it.
func (c *claiming) queue(conn *cachingConn, lane convergo.Lane, aggregate []byte, room int) (int, error) {
	alone := false
	err := conn.each(context.Background(), c.store.sql.Get("ClaimQueue"), func(v []driver.Value) error {
		if alone {
			return nil
		}
		if room == 0 {
			c.portion.More()
			return nil
		}
		p := relay.Pending{Seq: integer(v[0]), Lane: lane, Attempts: int(integer(v[1])), Queued: true}
		room--
		alone = p.Attempts > 0
		if v[3] == nil {
			c.portion.AddLater(p, integer(v[2]))
			return nil
		}
		var err error
		p.Event, err = eventOf(v[4:])
		c.portion.Add(p)
		return err
	}, aggregate, int64(room+1))
	return room, err
}

// large reads the events that were not read with their rows, as far as they have room.
func (c *claiming) large(conn *cachingConn) error {
	rows := func(name string, ids []int64, row func(v []driver.Value) error) error {
		return conn.each(context.Background(), c.store.sql.Get(name), row, idList(ids))
	}
	return c.portion.Complete(func(ids []int64, tell func(id int64, e convergo.Event, sizes relay.Sizes)) error {
		return rows("EventSizes", ids, func(v []driver.Value) error {
			e, err := eventOf(v[1 : 1+eventColumns])
			size := v[1+eventColumns:]
			tell(integer(v[0]), e, relay.Sizes{
				Topic: integer(size[0]), Type: integer(size[1]), AggregateType: integer(size[2]), AggregateID: integer(size[3]),
				MessageID: integer(size[4]), Key: integer(size[5]), Headers: integer(size[6]), Payload: integer(size[7]),
			})
			return err
		})
	}, func(ids []int64, tell func(id int64, e convergo.Event)) error {
		return rows("LargeEvents", ids, func(v []driver.Value) error {
			e, err := eventOf(v[1:])
			tell(integer(v[0]), e)
			return err
		})
	})
}

// promote makes due delayed events pending, those of a lane in order of their times.
func (c *claiming) promote(ctx context.Context) error {
	return c.store.update(ctx, func(ctx context.Context, tx *Tx) error {
		var ids []byte
		found, err := list(ctx, tx, func(rows *sql.Rows) (id int64, err error) { return id, rows.Scan(&id) },
			c.store.sql.Get("DueDelayed"), c.lanes, c.now, promoteMost)
		if err != nil {
			return fmt.Errorf("DueDelayed: %w", err)
		}
		for _, id := range found {
			ids = appendID(ids, id)
		}
		if len(ids) == 0 {
			return nil
		}
		if _, err = c.store.exec(ctx, tx, "PromoteDelayed", string(ids)); err != nil {
			return err
		}
		_, err = c.store.exec(ctx, tx, "DeleteDelayed", string(ids))
		return err
	})
}
