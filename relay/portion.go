package relay

import (
	"cmp"
	"slices"

	"github.com/convergo/convergo"
)

const (
	// MaxClaimBytes is how much of events one claim holds in memory: payloads, headers and the other texts. One event more is
	// there while it is read.
	MaxClaimBytes = 32 << 20
	// InlineBytes is up to what length of its payload, and of its texts together, an event is read with its row. A larger one
	// is read when it is known to have room.
	InlineBytes = 16 * 1024
)

// Portion puts a claim together within MaxClaimBytes, for a store that reads its rows one by one. The store adds every row that
// it finds, due queues first. What has no room is let go of again, from the rear of whatever lane takes the most. So what is
// left of a lane, and of the due queues of a lane, is its beginning without a gap. Every lane keeps its first event, unless
// those alone are too much: then the lanes take turns.
type Portion struct {
	budget  int64
	perLane int32
	turn    convergo.Lane
	events  []Pending
	notes   []note                     // by events
	streams [2 * convergo.Lanes]stream // the lanes, then their queues
	total   int64
	kept    int32
	more    bool
	mixed   bool // rows did not come in the order of lanes and positions
	waiting bool // some events are to be read later
}

// note is what a portion knows of an event. Those of a stream are a list, from its rear to its front.
type note struct {
	id     int64 // of an event that is to be read later
	size   int32
	before int32 // the one before it in its stream, plus one; 0 for none, dropped for one that was let go of
}

const dropped = -1

type stream struct {
	bytes int64
	rear  int32 // its last event, plus one
	count int32
	cut   bool  // at something of it was let go of, and nothing behind it may be in the claim
	at    int64 // Seq; of lanes
}

// NewPortion is an empty one, of up to perLane events of each lane. turn is another lane at each claim.
func NewPortion(perLane int, turn convergo.Lane) *Portion {
	return &Portion{budget: MaxClaimBytes, perLane: int32(min(max(perLane, 1), 1<<30)), turn: turn % convergo.Lanes}
}

// Add adds an event that was read.
func (p *Portion) Add(e Pending) { p.add(e, 0, bytesOf(&e)) }

// AddLater adds an event of which only the row of its queue or lane was read, and its id.
func (p *Portion) AddLater(e Pending, id int64) {
	p.waiting = true
	p.add(e, id, InlineBytes)
}

// More notes that there is more.
func (p *Portion) More() { p.more = true }

// bytesOf is how much of an event counts.
func bytesOf(p *Pending) int32 {
	e := &p.Event
	n := len(e.Payload) + len(e.Key) + len(e.MessageID) + len(e.Topic) + len(e.Type) + len(e.Aggregate.Type) + len(e.Aggregate.ID)
	for name, value := range e.Headers {
		n += len(name) + len(value)
	}
	return int32(min(n, 1<<30))
}

func (p *Portion) streamOf(e *Pending) *stream {
	at := int(e.Lane % convergo.Lanes)
	if e.Queued {
		at += convergo.Lanes
	}
	return &p.streams[at]
}

func (p *Portion) add(e Pending, id int64, size int32) {
	s := p.streamOf(&e)
	if s.cut && (e.Queued || e.Seq >= s.at) {
		p.more = true
		return
	}
	if n := len(p.events); n > 0 && !e.Queued {
		last := &p.events[n-1]
		p.mixed = p.mixed || !last.Queued && inLane(last, &e) > 0
	}
	if n := len(p.events); n == cap(p.events) { // by itself it would grow more often, and copy more
		more := max(n, min(3*n, 1024), 16)
		p.events, p.notes = slices.Grow(p.events, more), slices.Grow(p.notes, more)
	}
	p.events, p.notes = append(p.events, e), append(p.notes, note{id: id, size: size})
	this := int32(len(p.events))
	link := &s.rear
	for !e.Queued && *link > 0 && p.events[*link-1].Seq > e.Seq {
		link = &p.notes[*link-1].before
	}
	p.notes[this-1].before, *link = *link, this
	s.count++
	s.bytes += int64(size)
	p.total += int64(size)
	p.kept++
	if !e.Queued && s.count > p.perLane {
		p.shorten(s)
	}
	p.fit()
}

func inLane(a, b *Pending) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq)) }

// fit lets go of events until the rest has room.
func (p *Portion) fit() {
	for p.total > p.budget && p.kept > 1 {
		p.shorten(p.largest())
	}
}

// largest is the stream that is shortened next: the one with the most bytes of those that have a second event. When none has,
// the one whose turn is farthest off. Queues and lanes come first in turn: queues are older, but where many large events wait for a
// receiver that is away some of them are always due. (Two claims each, for two workers may claim in turn.)
func (p *Portion) largest() *stream {
	var most, last *stream
	for i := range 2 * convergo.Lanes {
		kind, lane := (1+i/convergo.Lanes+int(p.turn)/2)%2, (int(p.turn)+i)%convergo.Lanes
		s := &p.streams[kind*convergo.Lanes+lane]
		if s.count > 0 {
			last = s
		}
		if s.count > 1 && (most == nil || s.bytes > most.bytes) {
			most = s
		}
	}
	if most == nil {
		return last
	}
	return most
}

// shorten lets go of the stream's last event. From there on nothing of it is taken.
func (p *Portion) shorten(s *stream) {
	p.more = true
	s.cut, s.at = true, p.events[s.rear-1].Seq
	p.drop(s, &s.rear)
}

// drop takes an event out of its stream. link is what leads to it.
func (p *Portion) drop(s *stream, link *int32) {
	i := *link - 1
	n := &p.notes[i]
	*link = n.before
	s.count--
	s.bytes -= int64(n.size)
	p.total -= int64(n.size)
	p.kept--
	p.events[i], p.notes[i] = Pending{}, note{before: dropped}
}

// Complete reads the events that were added with AddLater, as far as they have room. measure tells the sizes of those with the
// ids; event is all of the event but its payload and headers. read reads what is left of them. Of an event that is too large
// to be read the claim has what event has, and Pending.Malformed. One of which measure or read tells nothing is not in the claim.
func (p *Portion) Complete(
	measure func(ids []int64, tell func(id int64, event convergo.Event, sizes Sizes)) error,
	read func(ids []int64, tell func(id int64, event convergo.Event)) error,
) error {
	if !p.waiting {
		return nil
	}
	ids, places := p.unread()
	if len(ids) == 0 {
		return nil
	}
	known := make(map[int64]bool, len(ids))
	err := measure(ids, func(id int64, event convergo.Event, sizes Sizes) {
		known[id] = true
		malformed := sizes.Check(id)
		for _, i := range places[id] {
			e, n := &p.events[i], &p.notes[i]
			size := int32(min(sizes.sum(), 1<<30))
			if malformed != nil {
				e.Event, e.Malformed, n.id = sizes.without(id, event), malformed, 0
				size = bytesOf(e)
			}
			grows := int64(size - n.size)
			n.size = size
			p.streamOf(e).bytes += grows
			p.total += grows
		}
	})
	if err != nil {
		return err
	}
	p.forget(ids, places, known)
	p.fit()
	if ids, places = p.unread(); len(ids) == 0 {
		return nil
	}
	clear(known)
	err = read(ids, func(id int64, event convergo.Event) {
		known[id] = true
		for _, i := range places[id] {
			p.events[i].Event = event
		}
	})
	p.forget(ids, places, known)
	return err
}

// unread are the events that are to be read later, and where they are.
func (p *Portion) unread() (ids []int64, places map[int64][]int) {
	places = map[int64][]int{}
	for i, n := range p.notes {
		if n.id != 0 && n.before != dropped {
			if places[n.id] == nil {
				ids = append(ids, n.id)
			}
			places[n.id] = append(places[n.id], i)
		}
	}
	slices.Sort(ids)
	return ids, places
}

// forget takes out those that nothing is known of: the event is gone, or was sent since its row was seen.
func (p *Portion) forget(ids []int64, places map[int64][]int, known map[int64]bool) {
	for _, id := range ids {
		if known[id] {
			continue
		}
		for _, i := range places[id] {
			s := p.streamOf(&p.events[i])
			link := &s.rear
			for int(*link-1) != i {
				link = &p.notes[*link-1].before
			}
			p.drop(s, link)
		}
	}
}

// Claim is what was put together: the queues in the order in which they came, then the lanes.
func (p *Portion) Claim() (events []Pending, more bool) {
	if int(p.kept) < len(p.events) {
		left := p.events[:0]
		for i := range p.events {
			if p.notes[i].before != dropped {
				left = append(left, p.events[i])
			}
		}
		clear(p.events[len(left):])
		p.events = left
	}
	for i := range p.events {
		e := &p.events[i]
		if len(e.Event.Headers) == 1 && e.Malformed == nil {
			e.Malformed = unreadable(e.Event.Headers)
		}
		if e.Malformed == nil {
			e.Malformed = convergo.Permanent(e.Event.ValidateTimes())
		}
	}
	if p.mixed {
		first := max(slices.IndexFunc(p.events, func(e Pending) bool { return !e.Queued }), 0)
		slices.SortFunc(p.events[first:], func(a, b Pending) int { return inLane(&a, &b) })
	}
	return p.events, p.more
}
