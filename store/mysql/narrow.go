package mysql

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// narrow is how many rows a claim looks at, when it cannot look at all that it was asked for in its time. InnoDB reads all of a
// value to tell its length: a hundred rows of another program with 20 MB each take longer than a relay waits for a claim, and each
// of its claims would fail. So one that is late is made again with few rows, and the ones after it with more and more. Of lanes that
// were not looked at nothing is said to the floors.
type narrow struct{ rows atomic.Int64 } // 0: all

const (
	narrowFirst = 16
	narrowLast  = 2048
)

// late makes the next claims narrow, or narrower; false when they cannot be.
func (n *narrow) late(rows int64) bool {
	less := int64(narrowFirst)
	if rows > 0 {
		less = max(min(rows/4, narrowFirst), 1)
	}
	n.rows.Store(less)
	return less != rows
}

// inTime makes the next claims wider.
func (n *narrow) inTime(rows int64) {
	if more := rows * 2; rows > 0 && more <= narrowLast {
		n.rows.CompareAndSwap(rows, more)
	} else if rows > 0 {
		n.rows.CompareAndSwap(rows, 0)
	}
}

// half is a context that has half of the time that ctx has left; for ever when that has.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(end)/2)
	}
	return context.WithCancel(ctx)
}

// choose are the lanes that are read, and how many rows of each: all and one more, or when the claim is narrow some of those in
// which there is anything, other ones at each claim.
func (c *claiming) choose(states []laneState) (lanes []int64, most int) {
	if c.left == 0 {
		return c.lanes, c.perLane + 1
	}
	c.portion.More()
	room := max(int(c.left), 1)
	for i := range states {
		l := states[(i+int(c.turn)*room)%len(states)]
		if (l.pending || due(l.delayed, c.now)) && len(lanes) < room {
			lanes = append(lanes, l.lane)
		}
	}
	if len(lanes) == 0 {
		return nil, 0
	}
	return lanes, min(max(room/len(lanes), 1), c.perLane)
}

// turnOf is a number that is another at each claim.
func (s *Store) turnOf() convergo.Lane { return convergo.Lane(s.claims.Add(1) % convergo.Lanes) }
