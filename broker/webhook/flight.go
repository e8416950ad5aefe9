package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// flight is one request on its way. Whoever made it waits for a while; then it goes on behind him, and what it came to is kept until
// the event is tried again.
type flight struct {
	began  time.Time // by the system's clock
	done   chan struct{}
	err    error // when done
	cancel context.CancelCauseFunc
}

func (f *flight) landed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// sending is an event and an endpoint.
type sending struct {
	event    convergo.Digest
	endpoint string
}

// shelf keeps something for events and endpoints. It forgets the oldest when it is full.
type shelf[T any] struct {
	mu    sync.Mutex
	most  int
	held  map[sending]T
	order []sending
}

// of is what is kept. An empty shelf costs no digest.
func (s *shelf[T]) of(e convergo.Event, endpoint string) (item T, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
		return item, false
	}
	item, found = s.held[sending{identity(e), endpoint}]
	return item, found
}

func (s *shelf[T]) put(e convergo.Event, endpoint string, change func(T) T) {
	at := sending{identity(e), endpoint}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[sending]T{}
	}
	old, known := s.held[at]
	if !known {
		s.order = append(s.order, at)
	}
	s.held[at] = change(old)
	for len(s.held) > s.most {
		delete(s.held, s.order[0])
		s.order = s.order[1:]
	}
	if len(s.order) > 2*s.most {
		s.tidy()
	}
}

// tidy takes out of the order what was dropped: it must push nothing out that is still held.
func (s *shelf[T]) tidy() {
	order := make([]sending, 0, len(s.held))
	seen := make(map[sending]bool, len(s.held))
	for _, at := range slices.Backward(s.order) {
		if _, held := s.held[at]; held && !seen[at] {
			seen[at] = true
			order = append(order, at)
		}
	}
	slices.Reverse(order)
	s.order = order
}

func (s *shelf[T]) drop(e convergo.Event, endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
		return
	}
	delete(s.held, sending{identity(e), endpoint})
	if len(s.held) == 0 {
		s.order = nil
	}
}

// patience is how long the requests of a call are waited for. They end before the call does, so that an endpoint which does not
// answer is told from a call that is over. With a single endpoint nobody else could go on meanwhile.
func (b *Broker) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := b.cfg.Timeout + time.Second
	if b.enabled > 1 {
		limit = b.cfg.Patience
	}
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*4/5)
	}
	return context.WithTimeout(ctx, limit)
}

var (
	errOver   = errors.New("the call is over")
	errClosed = errors.New("the broker is closed")
)

// deliver makes one attempt at one endpoint, or takes the answer to one that was made before. patient ends before ctx.
func (b *Broker) deliver(ctx, patient context.Context, e *endpoint, event convergo.Event) error {
	if f, found := b.flights.of(event, e.Name); found {
		if !f.landed() {
			return e.onItsWay(b.cfg.Now(), f)
		}
		b.flights.drop(event, e.Name)
		if !errors.Is(f.err, errClosed) && !errors.Is(f.err, errOver) {
			return f.err
		}
	}
	if err := e.state(b.cfg.Now()); err != nil {
		return err
	}
	if patient.Err() != nil {
		return b.waited(ctx, e, nil, time.Now())
	}
	began := time.Now()
	if e.quiet() {
		var give context.CancelFunc
		patient, give = context.WithCancel(patient)
		give()
	}
	if !e.slot(patient) {
		return b.waited(ctx, e, nil, began)
	}
	probe, err := e.admit(b.cfg.Now())
	if err != nil {
		<-e.slots
		return err
	}
	if probe && b.enabled > 1 {
		var cancel context.CancelFunc
		patient, cancel = context.WithTimeout(patient, b.cfg.Patience/8) // it was down: nobody waits for it
		defer cancel()
	}
	f := b.fly(e, event)
	select {
	case <-f.done:
		return f.err
	case <-patient.Done():
	}
	if ctx.Err() != nil { // the lease may be gone, and another relay send this event: nothing of ours may come later
		f.cancel(errOver)
		<-f.done
		return f.err
	}
	b.flights.put(event, e.Name, func(*flight) *flight { return f })
	if f.landed() {
		b.flights.drop(event, e.Name)
		return f.err
	}
	return b.waited(ctx, e, f, began)
}

// slot takes one, and gives up when patient ends. It may have ended before: then nobody waits, and one that is free is taken.
func (e *endpoint) slot(patient context.Context) bool {
	select {
	case e.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case e.slots <- struct{}{}:
		return true
	case <-patient.Done():
		return false
	}
}

// fly begins a request. Its slot is the caller's, and is free when it has ended.
func (b *Broker) fly(e *endpoint, event convergo.Event) *flight {
	ctx, cancel := context.WithCancelCause(b.life)
	f := &flight{began: time.Now(), done: make(chan struct{}), cancel: cancel}
	b.flying.Add(1)
	go func() {
		defer b.flying.Done()
		defer cancel(nil)
		f.err = b.request(ctx, e, event)
		e.landed()
		<-e.slots
		close(f.done)
	}()
	return f
}

// waited is the answer for an event whose endpoint was waited for in vain; f is its own request, if it has one.
func (b *Broker) waited(ctx context.Context, e *endpoint, f *flight, began time.Time) error {
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("endpoint %s: not sent: %w", e.Name, err))
	}
	if waited := time.Since(began); waited >= b.cfg.Patience/2 && e.hush(began) && waited >= min(b.cfg.Timeout, enough) {
		return b.down(e, 0, fmt.Errorf("no answer in %v", waited.Round(time.Second)))
	}
	return e.onItsWay(b.cfg.Now(), f)
}

// enough time for an endpoint that is well.
const enough = 5 * time.Second
