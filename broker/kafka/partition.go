package kafka

import (
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partition is what a source knows of one partition that the group has given to it. The source's lock guards it. Another
// assignment of the same partition is another value.
type partition struct {
	topic   string // in Kafka
	name    string // for the inbox
	number  int32
	leaving bool // nothing more is handed out
	gone    bool // another instance has it, or may have
	held    bool // the client was asked not to read on

	next      int64 // the offset that comes next, -1 when unknown
	epoch     int32 // of the leader that the last record came from
	committed int64 // the position that the group knows, -1 when it knows none

	ready []*kgo.Record     // read and not handed out yet, in order
	out   map[int64]*flight // handed out and not acknowledged
	again map[int64]*flight // to be handed out again, each when it is due; nothing newer before
}

// flight is a record that was handed out.
type flight struct {
	record  *kgo.Record
	attempt int
	due     time.Time // when it is handed out again
}

func newPartition(topic string, number int32) *partition {
	p := &partition{topic: topic, number: number}
	p.restart()
	return p
}

// restart forgets where reading stands.
func (p *partition) restart() {
	p.next, p.committed = -1, -1
	p.ready, p.out, p.again = nil, map[int64]*flight{}, map[int64]*flight{}
}

// add keeps a record that was read. It returns how many are missing between it and the one before, -1 when the log has begun
// anew.
func (p *partition) add(r *kgo.Record) (missing int64) {
	switch {
	case p.next >= 0 && r.Offset < p.next:
		p.restart()
		missing = -1
	case p.next >= 0:
		missing = r.Offset - p.next
	}
	p.next, p.epoch = r.Offset+1, r.LeaderEpoch
	p.ready = append(p.ready, r)
	return missing
}

// position is what may be committed: everything before it is done with. A record that was read and not acknowledged, handed
// out or not, holds it back, whatever was acknowledged behind it. It is -1 when nothing was read yet.
func (p *partition) position() int64 {
	lowest := p.next
	if len(p.ready) > 0 {
		lowest = p.ready[0].Offset
	}
	for _, open := range []map[int64]*flight{p.out, p.again} {
		for offset := range open {
			lowest = min(lowest, offset)
		}
	}
	return lowest
}

// leave ends handing out: what was read and not handed out is as if it had not been read.
func (p *partition) leave() {
	if len(p.ready) > 0 {
		p.next = p.ready[0].Offset
	}
	p.leaving, p.ready = true, nil
}

// expire moves what was handed out and not acknowledged in time to again.
func (p *partition) expire(now time.Time) {
	for offset, f := range p.out {
		if !f.due.After(now) {
			delete(p.out, offset)
			p.again[offset] = f
		}
	}
}

// busy tells whether the partition has deliveries out whose time is not over.
func (p *partition) busy(now time.Time) bool {
	for _, f := range p.out {
		if f.due.After(now) {
			return true
		}
	}
	return false
}

// due is the records to be handed out again now, in order; the first that is not due yet holds up those behind it.
func (p *partition) due(now time.Time, most int) (flights []*flight, wait time.Duration) {
	for _, offset := range slices.Sorted(maps.Keys(p.again)) {
		f := p.again[offset]
		if left := f.due.Sub(now); left > 0 {
			return flights, left
		}
		if len(flights) == most {
			break
		}
		flights = append(flights, f)
	}
	return flights, 0
}

// nextExpiry is the time until the first unacknowledged record is handed out again; 0 when nothing is out.
func (p *partition) nextExpiry(now time.Time) (wait time.Duration) {
	for _, f := range p.out {
		if left := max(f.due.Sub(now), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}
