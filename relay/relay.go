package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// Relay carries the events of one store to one broker. Any number of relays, in any number of processes, may share a
// store: each lane has one of them at a time.
//
// What it promises: every committed event is published at least once; the events of an aggregate in the order in which
// they were written, also across failures, other relays and restarts; a duplicate only when a relay or its store died
// between the broker's confirmation and the settlement, at most Config.Batch of them per worker.
//
// What it cannot promise: a relay that stands still (SIGSTOP, a stopped virtual machine) for longer than its lease looks at
// the monotonic clock before each call of Publish, with a tenth of the term in hand, and publishes no more; but what stood
// inside of Publish at that time may go out when it wakes up, after its successor's events. That is one call per worker, at
// most Config.Batch events, all of them sent again by the successor: late copies. A consumer knows them by their keys, and
// by their versions when one has no mark of them any more (inbox.Config.RefuseStale).
type Relay struct {
	store     Store
	publisher Publisher
	cfg       Config
	clock     func() time.Time // with a monotonic reading: leases are trusted by it, and all waiting is counted on it
	wake      chan struct{}
	back      chan struct{}
	running   atomic.Bool
	calls     atomic.Int64 // of Publish that have not returned yet, those that were given up included
	answered  atomic.Int64 // calls of Publish in which the broker answered for an event
	suspects  suspects
	logs      outages

	mu    sync.Mutex
	stats Stats
}

// New returns a relay; Run starts it. The publisher is called from Config.Workers goroutines at a time.
func New(store Store, publisher Publisher, cfg Config) *Relay {
	return &Relay{
		store: store, publisher: publisher, cfg: cfg.withDefaults(), clock: time.Now, wake: make(chan struct{}, 1),
		back: make(chan struct{}, 1),
	}
}

// Wake tells the relay that there may be new events. It never blocks, costs nothing when the relay is busy, and is a
// hint: without it events are found by the next poll.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// BrokerBack tells the relay that the broker, which may have been away, is connected again: the next probe of an outage is due
// at once, and pauses between probes are short again; of the events of each subject that wait for a receiver that is away one is
// tried. It never blocks and is a hint: without it the next probe finds out.
func (r *Relay) BrokerBack() {
	select {
	case r.back <- struct{}{}:
	default:
	}
}

// Stats is a snapshot of the counters.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Run relays until ctx ends, then finishes the batches in flight (for Config.ShutdownTimeout at most), gives its leases
// back and returns nil. Failures of the store and of the broker never end it: they are logged, shown in Stats and
// retried. Its only error is being called while it runs.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("relay: Run was called while the relay runs; make a second relay with New")
	}
	defer r.running.Store(false)
	s := r.newSession(ctx)
	s.run()
	return nil
}

// newSession starts a life of the relay. The owner's name is never used again: with a name that outlives the process,
// a relay could take its own abandoned work for work in progress.
func (r *Relay) newSession(ctx context.Context) *session {
	hard, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{
		Relay: r, ctx: ctx, hard: hard, giveUp: giveUp,
		owner:   r.cfg.Name + "-" + rand.Text(),
		began:   r.clock(),
		hands:   newHands(),
		news:    make(chan func(), r.cfg.Workers+2),
		workers: make([]worker, r.cfg.Workers),
		perLane: r.cfg.leastPerLane(),
		pace:    convergo.Backoff{Base: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second},
	}
	s.leaseAt = s.began
	return s
}

func (r *Relay) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// suspects are the aggregates whose last publish gave no answer: it hung, or the publisher panicked. Which event of the
// batch was to blame is unknown, so they are tried again apart from the others, few at a time. Losing the list (at a
// restart, or when it grows too long) costs time, nothing else.
type suspects struct {
	mu  sync.Mutex
	set map[convergo.Aggregate]int64 // Relay.answered when it last hung alone; never when it has not
}

const never = -1

func (s *suspects) add(a convergo.Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.set[a]; !known {
		s.put(a, never)
	}
}

func (s *suspects) put(a convergo.Aggregate, answered int64) {
	const most = 10_000
	if s.set == nil || len(s.set) >= most {
		s.set = map[convergo.Aggregate]int64{}
	}
	s.set[a] = answered
}

func (s *suspects) has(a convergo.Aggregate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, suspect := s.set[a]
	return suspect
}

// convict notes that a hung alone when the broker had answered so many calls, and tells whether the broker had answered
// others since a last hung alone: then it is not the broker that gives no answer.
func (s *suspects) convict(a convergo.Aggregate, answered int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.set[a]
	s.put(a, answered)
	return known && before != never && before < answered
}

func (s *suspects) clear(a convergo.Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.set, a)
}

// split divides events into groups that are published one after another: first those above suspicion, then the suspects
// in groups of 1, 2, 4, 8, 16, 16 … aggregates. All events of an aggregate stay in one group and in order.
func (s *suspects) split(events []Pending) [][]Pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.set) == 0 {
		return [][]Pending{events}
	}
	var trusted []Pending
	var order []convergo.Aggregate
	apart := map[convergo.Aggregate][]Pending{}
	for _, p := range events {
		a := p.Event.Aggregate
		if _, suspect := s.set[a]; !suspect {
			trusted = append(trusted, p)
			continue
		}
		if apart[a] == nil {
			order = append(order, a)
		}
		apart[a] = append(apart[a], p)
	}
	var groups [][]Pending
	if len(trusted) > 0 {
		groups = append(groups, trusted)
	}
	for size := 1; len(order) > 0; size = min(size*2, 16) {
		n := min(size, len(order))
		var group []Pending
		for _, a := range order[:n] {
			group = append(group, apart[a]...)
		}
		groups = append(groups, group)
		order = order[n:]
	}
	return groups
}
