package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Relay carries the events of one store to one broker. Any number of relays, in any number of processes, may share a
// store: each lane has one of them at a time.
type Relay struct {
	store     Store
	publisher Publisher
	cfg       Config
	clock     func() time.Time // with a monotonic reading; leases are trusted by it
	wake      chan struct{}
	running   atomic.Bool
	abandoned atomic.Int64 // calls of Publish that were given up and have not returned yet

	mu    sync.Mutex
	stats Stats
}

// New returns a relay; Run starts it.
func New(store Store, publisher Publisher, cfg Config) *Relay {
	return &Relay{
		store: store, publisher: publisher, cfg: cfg.withDefaults(), clock: time.Now, wake: make(chan struct{}, 1),
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

// Stats is a snapshot of the counters.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Run relays until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
