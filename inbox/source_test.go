package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// source is a broker's subscription in which every step can be seen: what is delivered, acknowledged and returned.
type source struct {
	mu      sync.Mutex
	wake    chan struct{}
	pending []inbox.Delivery // to be delivered, in order
	out     []inbox.Delivery // delivered, neither acknowledged nor returned
	acked   []convergo.Key
	onAck   func(convergo.Event) error
	broken  error // what Fetch answers
}

func newSource(events ...convergo.Event) *source {
	s := &source{wake: make(chan struct{}, 1)}
	s.send(events...)
	return s
}

func (s *source) send(events ...convergo.Event) {
	for _, e := range events {
		s.deliver(inbox.Delivery{Event: e})
	}
}

func (s *source) deliver(d inbox.Delivery) {
	e := d.Event
	d.Ack = func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.onAck != nil {
			if err := s.onAck(e); err != nil {
				return err
			}
		}
		s.acked = append(s.acked, e.Key)
		s.drop(e.Key)
		return nil
	}
	d.Return = func(context.Context, time.Duration) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range s.out {
			if o.Event.Key == e.Key {
				s.pending = append(s.pending, o)
				s.drop(e.Key)
				break
			}
		}
		s.signal()
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, d)
	s.signal()
}

func (s *source) drop(key convergo.Key) {
	if i := slices.IndexFunc(s.out, func(d inbox.Delivery) bool { return d.Event.Key == key }); i >= 0 {
		s.out = slices.Delete(s.out, i, i+1)
	}
}

// redeliver gives back everything that was not acknowledged, as a broker does when its consumer has died.
func (s *source) redeliver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.out, s.pending...)
	s.out = nil
	s.signal()
}

func (s *source) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		s.mu.Lock()
		if s.broken != nil {
			defer s.mu.Unlock()
			return nil, s.broken
		}
		if n := min(most, len(s.pending)); n > 0 {
			defer s.mu.Unlock()
			batch := slices.Clone(s.pending[:n])
			s.pending = slices.Clone(s.pending[n:])
			s.out = append(s.out, batch...)
			return batch, nil
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *source) ackedKeys() []convergo.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acked)
}

// held counts what a consumer has neither acknowledged nor returned.
func (s *source) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.out)
}

func (s *source) unacked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) + len(s.out)
}

// event n of an order.
func event(order string, n int) convergo.Event {
	return convergo.Event{
		MessageID: fmt.Sprintf("m-%s-%d", order, n), Key: convergo.Key(fmt.Sprintf("Moved:%s:v%d", order, n)), Type: "Moved", Topic: "order",
		Aggregate: convergo.Aggregate{Type: "order", ID: order}, Version: int64(n), Payload: fmt.Appendf(nil, "%s %d", order, n),
	}
}

// store is the memory store with faults.
type store struct {
	*memory.Store
	mu       sync.Mutex
	down     error                                          // every write transaction fails with it
	spoiled  func(ctx context.Context, tx *memory.Tx) error // asked before each commit
	buryFail error                                          // every Bury fails with it
	parkFail error                                          // every Fail fails with it
	applied  map[string][]string                            // effects seen after a commit
	oldDue   []convergo.Aggregate                           // what the next Due answers
	calls    int                                            // of Update and Due
}

func newStore() *store { return &store{Store: memory.New(), applied: map[string][]string{}} }

func (s *store) set(change func(*store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *store) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	s.mu.Lock()
	s.calls++
	down, spoiled := s.down, s.spoiled
	s.mu.Unlock()
	if down != nil {
		return down
	}
	return s.Store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		if spoiled != nil {
			return spoiled(ctx, tx)
		}
		return nil
	})
}

func (s *store) Due(ctx context.Context, consumer string, limit int, now time.Time) ([]convergo.Aggregate, time.Time, error) {
	s.mu.Lock()
	s.calls++
	down, old := s.down, s.oldDue
	s.oldDue = nil
	s.mu.Unlock()
	if down != nil {
		return nil, time.Time{}, down
	}
	if old != nil {
		return old, time.Time{}, nil
	}
	return s.Store.Due(ctx, consumer, limit, now)
}

func (s *store) Bury(ctx context.Context, tx *memory.Tx, consumer string, f inbox.Failure, hold bool, now time.Time) (bool, error) {
	s.mu.Lock()
	fail := s.buryFail
	s.mu.Unlock()
	if fail != nil {
		return false, fail
	}
	return s.Store.Bury(ctx, tx, consumer, f, hold, now)
}

func (s *store) Fail(ctx context.Context, tx *memory.Tx, consumer string, f inbox.Failure, now time.Time) error {
	s.mu.Lock()
	fail := s.parkFail
	s.mu.Unlock()
	if fail != nil {
		return fail
	}
	return s.Store.Fail(ctx, tx, consumer, f, now)
}

func (s *store) storeCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// effects appends the event's version to its order's log, after the commit only, and counts it in the store.
func (s *store) effect(_ context.Context, tx *memory.Tx, e convergo.Event) error {
	tx.Add(string(e.Key), 1)
	tx.AfterCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.applied[e.Aggregate.ID] = append(s.applied[e.Aggregate.ID], fmt.Sprint(e.Version))
	})
	return nil
}

func (s *store) log(order string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.applied[order])
}

func (s *store) number(t *testing.T, key string) (n int) {
	t.Helper()
	err := s.View(t.Context(), func(_ context.Context, tx *memory.Tx) error { n = tx.Get(key); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// letters collects dead letters from a consumer's alerts.
type letters struct {
	mu   sync.Mutex
	list []inbox.Failure
}

func (l *letters) alert(_ string, f inbox.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
}

func (l *letters) all() []inbox.Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// running starts a consumer inside a synctest bubble and returns how to stop it.
func running(
	t *testing.T, s *store, src inbox.Source, cfg inbox.Config, handlers map[string]inbox.Handler[*memory.Tx],
) (*inbox.Consumer[*memory.Tx], func() error) {
	t.Helper()
	if cfg.Consumer == "" {
		cfg.Consumer = "points"
	}
	c := inbox.New(s, s, src, cfg)
	for eventType, h := range handlers {
		c.Handle(eventType, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- c.Run(ctx) }()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-result
	}
	t.Cleanup(func() { _ = stop() })
	return c, stop
}

func moved(h inbox.Handler[*memory.Tx]) map[string]inbox.Handler[*memory.Tx] {
	return map[string]inbox.Handler[*memory.Tx]{"Moved": h}
}

// bubble runs f with a fake clock.
func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

// synctestRapid is bubble inside a rapid check.
func synctestRapid(t *testing.T, f func()) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { f() })
}

func settle() { synctest.Wait() }

// pass lets d go by on the fake clock and waits until everybody is idle again.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var errWeather = errors.New("bad weather")
