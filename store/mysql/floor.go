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
}

const (
	floorAge   = 2 * time.Second
	sweepEvery = time.Second
)

// begin returns the seq above which a look at the lanes may start, 0 for a sweep, and what is to be called with what it saw.
func (f *floor) begin(lanes []int64) (low int64, seen func([]laneState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.time()
	sweep := false
	for i, n := range lanes {
		l := &f.lanes[n]
		if now.Sub(l.swept) >= sweepEvery {
			sweep = true
		}
		if i == 0 || l.low < low {
			low = l.low
		}
	}
	if sweep {
		low = 0
	}
	return low, func(states []laneState) { f.seen(states, sweep, now) }
}

func (f *floor) time() time.Time {
	if f.now != nil {
		return f.now()
	}
	return time.Now()
}

// seen takes in where the lanes began at a time.
func (f *floor) seen(states []laneState, sweep bool, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range states {
		l := &f.lanes[s.lane]
		if sweep {
			l.swept = at
		}
		begins := l.last // with nothing pending: behind the last row that was there
		if s.first != 0 {
			begins = s.first - 1
			l.last = max(l.last, s.first)
		}
		if begins < l.low { // a late one: until it is gone the lane begins there
			l.low = begins
		}
		if begins < l.next || l.since.IsZero() {
			l.next, l.since = begins, at
		}
		if at.Sub(l.since) >= floorAge {
			l.low, l.next, l.since = max(l.low, l.next), begins, at
		}
	}
}
