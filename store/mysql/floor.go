package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// floor remembers, for each lane, a seq up to which no row is pending. Rows that were settled stay in the index, marked as deleted,
// for as long as any transaction of the server may still see them; a claim that starts at the lane's beginning walks over all
// of them each time. The floor lets it begin behind them.
//
// A seq is given out before its transaction commits, so a row may appear below what is gone already, and the next event of its
// aggregate, whose writer has waited for that transaction, right after it and above. A floor between the two would turn them round.
// So the floor rises only over what is settled:
//
//  1. It trails: it wants to be where the lane began floorAge ago. Every seq below that was given out before, and between that and
//     the row's insertion lies a part of one statement.
//  2. Before it rises, empty reads the piece of the lane that it rises over, once, with locks and without waiting. A row of an open
//     transaction is locked: the floor stays. A row that has committed meanwhile is there: the floor stays. With neither, whoever had
//     a seq in that piece has ended, and nothing can appear there any more.
//
// A sweep from the very beginning, every sweepEvery, finds what a floor has passed over all the same: a statement that stood still for
// longer than floorAge in its middle, a server that was set back. That event is late, not lost.
type floor struct {
	mu    sync.Mutex
	lanes [convergo.Lanes]laneFloor
	now   func() time.Time // of the monotonic clock; nil is time.Now
}

type laneFloor struct {
	low   int64     // no row is pending up to this, or will be
	ready int64     // what low becomes once empty has looked
	asked time.Time // when it last did
	next  int64     // what ready becomes once it is old enough
	since time.Time // of next
	last  int64     // the highest seq that was ever seen to be the first
	swept time.Time // when all of the lane was looked at
	busy  bool      // something was pending when it was last looked at
}

const (
	floorAge   = 2 * time.Second
	sweepEvery = time.Second
)

// begin returns for each of the lanes the seq above which a look may start, 0 for a sweep, and what is to be called with the first
// seq that was pending in each lane, 0 for none.
func (f *floor) begin(lanes []int64) (low []int64, seen func(firsts [convergo.Lanes]int64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, sweeps := f.time(), make([]bool, len(lanes))
	low = make([]int64, len(lanes))
	for i, n := range lanes {
		if l := &f.lanes[n]; now.Sub(l.swept) < sweepEvery {
			low[i] = l.low
		} else {
			sweeps[i] = true
		}
	}
	return low, func(firsts [convergo.Lanes]int64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, n := range lanes {
			f.lanes[n].seen(firsts[n], sweeps[i], now)
		}
	}
}

// busy tells whether one of the lanes had something pending when it was last looked at.
func (f *floor) busy(lanes []int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range lanes {
		if f.lanes[n].busy {
			return true
		}
	}
	return false
}

func (f *floor) time() time.Time {
	if f.now != nil {
		return f.now()
	}
	return time.Now()
}

// seen takes in where the lane began at a time.
func (l *laneFloor) seen(first int64, sweep bool, at time.Time) {
	if sweep {
		l.swept = at
	}
	l.busy = first != 0
	begins := l.last // with nothing pending: behind the last row that was there
	if first != 0 {
		begins = first - 1
		l.last = max(l.last, first)
	}
	l.low, l.ready = min(l.low, begins), min(l.ready, begins) // a late one: until it is gone the lane begins there
	if begins < l.next || l.since.IsZero() {
		l.next, l.since = begins, at
	}
	if at.Sub(l.since) >= floorAge {
		l.ready, l.next, l.since = max(l.ready, l.next), begins, at
	}
}

// piece is a part of a lane.
type piece struct{ lane, above, upTo int64 }

// wanted are the pieces over which the lanes' floors want to rise; each is told once every sweepEvery.
func (f *floor) wanted(lanes []int64) (pieces []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.time()
	for _, n := range lanes {
		if l := &f.lanes[n]; l.ready > l.low && now.Sub(l.asked) >= sweepEvery {
			l.asked = now
			pieces = append(pieces, piece{n, l.low, l.ready})
		}
	}
	return pieces
}

// rise takes in that the pieces are empty and stay so.
func (f *floor) rise(pieces []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range pieces {
		if l := &f.lanes[p.lane]; l.low == p.above {
			l.low = p.upTo
		}
	}
}

// raise lets the floors of the lanes rise as far as they may. All in one look; when something is in the way, each alone.
func (s *Store) raise(ctx context.Context, lanes []int64) error {
	if s.opts.ReadOnly {
		return nil
	}
	pieces := s.floor.wanted(lanes)
	if len(pieces) == 0 {
		return nil
	}
	all, err := s.empty(ctx, pieces)
	if all {
		s.floor.rise(pieces)
	}
	if err != nil || all || len(pieces) == 1 {
		return err
	}
	for i := range pieces {
		one, err := s.empty(ctx, pieces[i:i+1])
		if err != nil {
			return err
		}
		if one {
			s.floor.rise(pieces[i : i+1])
		}
	}
	return nil
}

// empty tells whether no row is in the pieces, and none of an open transaction.
func (s *Store) empty(ctx context.Context, pieces []piece) (bool, error) {
	parts := make([]string, len(pieces))
	for i, p := range pieces {
		parts[i] = fmt.Sprintf("lane = %d AND seq > %d AND seq <= %d", p.lane, p.above, p.upTo)
	}
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	found, err := list(ctx, tx, scanID, s.with("AnyBelow", ":pieces", strings.Join(parts, " OR ")))
	if number := numberOf(err); number == numberNoWait || number == numberLockWait {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("AnyBelow: %w", err)
	}
	return len(found) == 0, nil
}
