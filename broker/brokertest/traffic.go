package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// line is a publisher with aggregates of its own. It does as a relay does: what was not confirmed is published again, with the
// later events of its aggregate.
type line struct {
	mu   sync.Mutex
	done map[string]int64 // by aggregate: the last version that was confirmed
}

// newLine has so many aggregates, whose ids begin with name.
func newLine(name string, aggregates int) *line {
	l := &line{done: map[string]int64{}}
	for a := range aggregates {
		l.done[fmt.Sprint(name, "-", a)] = 0
	}
	return l
}

func (l *line) confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, last := range l.done {
		n += int(last)
	}
	return n
}

// next is the next two events of each aggregate.
func (l *line) next() []convergo.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var events []convergo.Event
	for id, last := range l.done {
		events = append(events, series(id, last+1, last+2)...)
	}
	return events
}

// run publishes at a measured pace until ctx ends. A call that is under way then is finished.
func (l *line) run(ctx context.Context, t *testing.T, b Broker) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil {
		l.publish(t, b, l.next())
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
}

func runAll(ctx context.Context, t *testing.T, lines []*line, b Broker) {
	var running sync.WaitGroup
	for _, l := range lines {
		running.Go(func() { l.run(ctx, t, b) })
	}
	running.Wait()
}

// begin runs work until the returned function is called, which waits for its end; the test's end does so too.
func begin(t *testing.T, work func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); work(ctx) }()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end
}

func (l *line) publish(t *testing.T, b Broker, events []convergo.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	errs := b.Publish(ctx, events)
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := map[string]bool{}
	for i, e := range events {
		switch id := e.Aggregate.ID; {
		case errs[i] != nil:
			failed[id] = true
			if convergo.VerdictOf(errs[i]) == convergo.Park {
				t.Errorf("%s: a fault of the server is taken for the message's: %v", e.Key, errs[i])
			}
		case failed[id]:
			t.Errorf("%s is confirmed although an earlier event of its aggregate failed", e.Key)
		default:
			l.done[id] = e.Version
		}
	}
}

// received is what all instances of one consumer got, in one order.
type received struct {
	mu       sync.Mutex
	last     map[string]int64     // by aggregate: the last version that came for the first time
	times    map[convergo.Key]int // how often each came
	by       map[string]int       // how many each instance got
	outOfRow []string             // events that came before an earlier one of their aggregate
}

func (r *received) take(instance string, deliveries []inbox.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.times == nil {
		r.last, r.times, r.by = map[string]int64{}, map[convergo.Key]int{}, map[string]int{}
	}
	for _, d := range deliveries {
		r.by[instance]++
		r.times[d.Event.Key]++
		if r.times[d.Event.Key] > 1 {
			continue
		}
		id := d.Event.Aggregate.ID
		if d.Event.Version != r.last[id]+1 {
			r.outOfRow = append(r.outOfRow, fmt.Sprintf("%s came to %s after version %d", d.Event.Key, instance, r.last[id]))
		}
		r.last[id] = max(r.last[id], d.Event.Version)
	}
}

// all tells whether each of the events came.
func (r *received) all(events []convergo.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		if r.times[e.Key] == 0 {
			return false
		}
	}
	return true
}

// read fetches, notes and acknowledges until ctx ends, whatever happens to the server.
func (r *received) read(ctx context.Context, instance string, s inbox.Source) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		got, err := s.Fetch(ctx, 16)
		if err != nil {
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			continue
		}
		r.take(instance, got)
		for _, d := range got {
			_ = d.Ack(ctx) // one that fails leads to a redelivery
		}
	}
}

func (r *received) count(instance string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[instance]
}

// has waits until everything that the lines have confirmed has come. The lines have ended. What came is not looked at again: those who
// receive wait for whoever looks.
func (r *received) has(t *testing.T, lines []*line, within time.Duration) {
	t.Helper()
	var missing []convergo.Key
	for _, l := range lines {
		for id, last := range l.done {
			for v := int64(1); v <= last; v++ {
				missing = append(missing, paid(id, v).Key)
			}
		}
	}
	all := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		missing = slices.DeleteFunc(missing, func(key convergo.Key) bool { return r.times[key] > 0 })
		return len(missing) == 0
	}
	if !waitFor(t, within, all) {
		t.Fatalf("%d confirmed events have not come within %s, for example %s", len(missing), within, missing[0])
	}
}

// inOrder checks that no event came, for the first time, before an earlier one of its aggregate.
func (r *received) inOrder(t *testing.T, g Guarantees) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !g.OrderedPerAggregate || len(r.outOfRow) == 0 {
		return
	}
	t.Errorf("%d of %d events came out of order, the first: %s", len(r.outOfRow), len(r.times), r.outOfRow[0])
}

// forget makes what comes from now on count alone; the order is remembered.
func (r *received) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.by)
}

// repeats is how many events came more than once.
func (r *received) repeats() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, times := range r.times {
		if times > 1 {
			n++
		}
	}
	return n
}

// eventually waits until the condition holds and fails the test when it does not in time.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	if !waitFor(t, within, holds) {
		t.Fatalf("not within %s: %s", within, what)
	}
}

func waitFor(t *testing.T, within time.Duration, holds func() bool) bool {
	t.Helper()
	end := time.NewTimer(within)
	defer end.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if holds() {
			return true
		}
		select {
		case <-end.C:
			return holds()
		case <-look.C:
		}
	}
}
