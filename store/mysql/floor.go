package mysql

import (
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// floor remembers, for each lane, a seq up to which no row is pending. Rows that were settled stay in the index, marked as deleted,
// for as long as any transaction of the server may still see them; a claim that starts at the lane's beginning walks over all
// of them each time. The floor lets it begin behind them.
//
// A seq is given out before its transaction commits, so a row may appear below what is gone already. The floor therefore
// trails: it is where the lane began floorAge ago. And what a transaction of more than floorAge leaves below it is found by a
// sweep from the very beginning, every sweepEvery. That delays such an event, not its aggregate's order: a later event of the same
// aggregate has waited for the same transaction.
type floor struct {
	mu    sync.Mutex
	lanes [convergo.Lanes]laneFloor
	now   func() time.Time // of the monotonic clock; nil is time.Now
}

type laneFloor struct {
	low   int64     // no row is pending up to this
	next  int64     // what low becomes once it is old enough
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
	l.low = min(l.low, begins) // a late one: until it is gone the lane begins there
	if begins < l.next || l.since.IsZero() {
		l.next, l.since = begins, at
	}
	if at.Sub(l.since) >= floorAge {
		l.low, l.next, l.since = max(l.low, l.next), begins, at
	}
}
