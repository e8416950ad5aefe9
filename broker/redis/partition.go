package redis

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reader is the one name under which every instance reads: the lease says who may, so that a new holder finds in one list
// what the last one left.
const reader = "convergo"

// partition is what a source knows of one partition of a topic. The source's lock guards it.
type partition struct {
	topic         string
	number        int
	stream, lease string // keys

	value   string    // of the lease; "" while another instance reads
	trusted time.Time // until when the lease stands in any case, on this process's monotonic clock
	leaving bool      // nothing new is handed out; it is given back when nothing is out
	cursor  string    // where the takeover of unacknowledged entries goes on; "" when that is done
	after   string    // the last entry that the group has read, as far as known; "" when not

	ready []readied          // read and not handed out yet, in order; dropped with the lease, for the next holder takes them over
	out   map[string]*flight // handed out and not acknowledged
	again map[string]*flight // to be handed out again, each when it is due; nothing newer before
}

// flight is an entry that was handed out.
type flight struct {
	due time.Time // when it is handed out again
}

// readied is an entry that was read and not handed out yet.
type readied struct {
	entry
	attempt int // deliveries that the server has counted, this one included
}

// take makes the partition this source's.
func (p *partition) take(value string, trusted time.Time) {
	p.value, p.trusted, p.leaving = value, trusted, false
	p.cursor, p.after, p.ready = "0-0", "", nil
	p.out, p.again = map[string]*flight{}, map[string]*flight{}
}

// drop forgets all: another instance reads now, or nobody.
func (p *partition) drop() { p.take("", time.Time{}) }

// uncertain makes the next look begin with what is unacknowledged: entries may have been read whose answer never came.
func (p *partition) uncertain() { p.cursor, p.ready = "0-0", nil }

// expire moves what was handed out and not acknowledged in time to again.
func (p *partition) expire(now time.Time) {
	for id, f := range p.out {
		if !f.due.After(now) {
			delete(p.out, id)
			p.again[id] = f
		}
	}
}

// due is the entries to be handed out again now, in order; the first that is not due yet holds up those behind it.
func (p *partition) due(now time.Time, most int) (ids []string, wait time.Duration) {
	all := make([]string, 0, len(p.again))
	for id := range p.again {
		all = append(all, id)
	}
	slices.SortFunc(all, compareIDs)
	for i, id := range all {
		if left := p.again[id].due.Sub(now); left > 0 {
			return all[:min(i, most)], left
		}
	}
	return all[:min(len(all), most)], 0
}

// nextExpiry is the time until the first unacknowledged entry is handed out again; 0 when nothing is out.
func (p *partition) nextExpiry(now time.Time) (wait time.Duration) {
	for _, f := range p.out {
		if left := max(f.due.Sub(now), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// compareIDs orders entry ids "milliseconds-number".
func compareIDs(a, b string) int {
	aTime, aNumber := parseID(a)
	bTime, bNumber := parseID(b)
	return cmp.Or(cmp.Compare(aTime, bTime), cmp.Compare(aNumber, bNumber))
}

func parseID(id string) (ms, number uint64) {
	left, right, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(left, 10, 64) // the server made it
	number, _ = strconv.ParseUint(right, 10, 64)
	return ms, number
}
