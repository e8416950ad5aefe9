package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// floors lets a claim start where its lane's first live row is. Rows that were sent stay in the index as dead entries until
// vacuum removes them, and it may not while any snapshot older than their removal is open: a claim that started at the lane's
// beginning would walk over all of them (149 times the pages, measured). A floor must never pass over a row that becomes
// visible late: presence means pending.
//
// What is known of a lane is a pair: a snapshot C, and a floor F below which C shows no row. A row below F that a later
// snapshot D shows was written by a transaction that D sees and C does not; call the lowest number of such transactions v.
//
//  1. A transaction gets its number with its first write. It draws a seq only after that: an event's row is
//     inserted before its pending one, by InsertEvent and by the trigger, PromoteDelayed deletes first, LockReplays asks for a number.
//  2. A mark (S, Y) says: the sequence stood at S before the transaction Y, one of our own settlements, got its number.
//     Numbers grow, so a transaction above Y got its number after Y, and draws seqs above S.
//  3. So with the last mark whose Y is below v, nothing that D shows and C does not has a seq of S or less: the claim starts
//     at F or at S+1, whichever is lower. With no such mark it starts at the beginning.
//
// A transaction that stays open for long is in C's list and in D's, so it is no v and costs nothing; when it commits it is
// one, and the next claim goes back to where it began. Nothing is known at first, after a lane changed hands, and when
// another server may have answered, or the sequence was set back: then claims start at the beginning.
//
// Delayed events have a floor too, a time: a claim has found none that was due at it or before. One that is written with a time
// that has passed, or passes before its commit, is below. Writers of this process say so; for others the floors are laid down
// once a second. Such an event is that much later, never lost.
type floors struct {
	mu      sync.Mutex
	life    int64     // grows with each reset: what began before it is not noted
	started time.Time // of the server process
	seq     int64     // where the sequence stood at the last claim
	seqAt   int64     // xmax of that claim's snapshot
	lanes   [convergo.Lanes]laneFloor
	marks   []mark // both numbers grow

	due  [convergo.Lanes]int64 // of delayed events
	laid time.Time             // when those were 0 for the last time
}

// layDown is how often the floors of delayed events are laid down.
const layDown = time.Second

type laneFloor struct {
	token int64 // of the lease under which it was found
	floor int64
	empty bool // the snapshot showed no row at all
	seen  *snapshot
}

type mark struct{ seq, xid int64 }

// mostMarks bounds the memory; with the oldest gone, a transaction that was open for longer makes a claim start at the beginning.
const mostMarks = 4096

// snapshot is PostgreSQL's: which transactions it does not see although they are below xmax.
type snapshot struct {
	xmax int64
	open []int64 // ascending
}

// parseSnapshot reads "xmin:xmax:open,open,…".
func parseSnapshot(text string) (*snapshot, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("snapshot %.80q is not xmin:xmax:list", text)
	}
	xmax, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	s := &snapshot{xmax: xmax}
	for part := range strings.SplitSeq(parts[2], ",") {
		if part == "" {
			continue
		}
		xid, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("snapshot: %w", err)
		}
		s.open = append(s.open, xid)
	}
	slices.Sort(s.open)
	return s, nil
}

// firstNew is the lowest number of a transaction that the later snapshot may see and this one does not; 0 when there is none.
func (s *snapshot) firstNew(later *snapshot) int64 {
	for _, xid := range s.open {
		if _, still := slices.BinarySearch(later.open, xid); !still {
			return xid
		}
	}
	for xid := s.xmax; xid < later.xmax; xid++ {
		if _, open := slices.BinarySearch(later.open, xid); !open {
			return xid
		}
	}
	return 0
}

// forget has the next claims start at the beginning.
func (f *floors) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reset()
}

func (f *floors) reset() {
	f.lanes = [convergo.Lanes]laneFloor{}
	f.marks, f.seq, f.seqAt = nil, 0, 0
	f.due = [convergo.Lanes]int64{}
	f.life++
}

// delayed are the floors of delayed events in the lanes.
func (f *floors) delayed(lanes []int16) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.laid) > layDown {
		f.due, f.laid = [convergo.Lanes]int64{}, time.Now()
	}
	list := make([]int64, len(lanes))
	for i, lane := range lanes {
		list[i] = f.due[lane]
	}
	return list
}

// noneDue notes that a claim has found none in the lanes that was due at the time, looking from these floors on.
func (f *floors) noneDue(lanes []int16, from []int64, at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, lane := range lanes {
		if f.due[lane] == from[i] { // else a writer has lowered it meanwhile
			f.due[lane] = max(f.due[lane], at)
		}
	}
}

// wrote lowers a floor below an event's time.
func (f *floors) wrote(lane convergo.Lane, deliver int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due[lane] = min(f.due[lane], deliver-1)
}

// look notes what a claim's snapshot shows, and returns where it starts in each lane; lanes in which there can be nothing are
// left out. life is for found.
func (f *floors) look(leases []relay.Lease, now *snapshot, seq int64, started time.Time) (lanes []int16, starts []int64, life int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A sequence that stands lower than before was set back by a person: TRUNCATE … RESTART IDENTITY, a restored copy.
	if !started.Equal(f.started) || seq < f.seq && now.xmax > f.seqAt {
		f.reset()
		f.started = started
	}
	if seq >= f.seq {
		f.seq, f.seqAt = seq, now.xmax
	}
	from := map[*snapshot]int64{} // -1: nothing new
	for _, l := range leases {
		known := &f.lanes[l.Lane]
		if known.seen == nil || known.token != l.Token || known.seen.xmax > now.xmax {
			lanes, starts = append(lanes, int16(l.Lane)), append(starts, 0)
			continue
		}
		start, done := from[known.seen]
		if !done {
			start = f.since(known.seen.firstNew(now))
			from[known.seen] = start
		}
		if start < 0 && known.empty {
			continue
		}
		if start < 0 || start > known.floor {
			start = known.floor
		}
		lanes, starts = append(lanes, int16(l.Lane)), append(starts, start)
	}
	return lanes, starts, f.life
}

// since is where rows of the transaction, and of all above it, begin: -1 for none.
func (f *floors) since(xid int64) int64 {
	if xid == 0 {
		return -1
	}
	i, _ := slices.BinarySearchFunc(f.marks, xid, func(m mark, xid int64) int { return int(min(max(m.xid-xid, -1), 1)) })
	if i == 0 {
		return 0
	}
	return f.marks[i-1].seq + 1
}

// found notes the first row that the snapshot showed in each lane, 0 for none.
func (f *floors) found(leases []relay.Lease, now *snapshot, life int64, first *[convergo.Lanes]int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if life != f.life {
		return
	}
	for _, l := range leases {
		known := laneFloor{token: l.Token, floor: first[l.Lane], seen: now}
		if known.floor == 0 {
			known.floor, known.empty = f.seq+1, true
		}
		f.lanes[l.Lane] = known
	}
}

// stand is where the sequence stood at the last claim: for mark, asked for before a settlement.
func (f *floors) stand() (seq, life int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq, f.life
}

// mark notes that the sequence stood at seq before the transaction got its number.
func (f *floors) mark(seq, life, xid int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.marks); seq == 0 || life != f.life || n > 0 && (f.marks[n-1].xid >= xid || f.marks[n-1].seq > seq) {
		return
	}
	if len(f.marks) == mostMarks {
		f.marks = append(f.marks[:0], f.marks[mostMarks/2:]...)
	}
	f.marks = append(f.marks, mark{seq, xid})
}
