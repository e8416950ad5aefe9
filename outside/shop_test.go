package outside_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/memory"
)

var errTimeout = errors.New("no answer in time")

// channel is the other side: it does what it is asked once per key and can be asked what it did.
type channel struct {
	mu      sync.Mutex
	effects map[string]int                      // times that the effect of a key really happened
	calls   []string                            // "do K" and "ask K" in order
	do      func(key string, attempt int) error // after the effect; its error is what the caller sees
	before  func(key string, attempt int) error // before the effect: it does not happen
	ask     func(key string) error
	tries   map[string]int
}

func newChannel() *channel { return &channel{effects: map[string]int{}, tries: map[string]int{}} }

func (c *channel) Do(_ context.Context, call outside.Claimed) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "do "+string(call.Key))
	c.tries[string(call.Key)]++
	if c.before != nil {
		if err := c.before(string(call.Key), c.tries[string(call.Key)]); err != nil {
			return nil, err
		}
	}
	if c.effects[string(call.Key)] == 0 { // it deduplicates by the key
		c.effects[string(call.Key)]++
	}
	if c.do != nil {
		if err := c.do(string(call.Key), c.tries[string(call.Key)]); err != nil {
			return nil, err
		}
	}
	return []byte("did " + string(call.Key)), nil
}

func (c *channel) Query(_ context.Context, call outside.Claimed) ([]byte, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, "ask "+string(call.Key))
	if c.ask != nil {
		if err := c.ask(string(call.Key)); err != nil {
			return nil, false, err
		}
	}
	if c.effects[string(call.Key)] == 0 {
		return nil, false, nil
	}
	return []byte("did " + string(call.Key)), true, nil
}

func (c *channel) heard() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.calls, ", ")
}

// shop is a store, the other side, and what became of the calls.
type shop struct {
	memory.Calls
	t        *testing.T
	channel  *channel
	mu       sync.Mutex
	down     error // every Update fails with it
	refuse   error // every Claim fails with it
	claims   int
	doneFail atomic.Int64 // how many more times Done fails after having written
}

func newShop(t *testing.T) *shop {
	return &shop{Calls: memory.New().Calls(), t: t, channel: newChannel()}
}

func (s *shop) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down != nil {
		return down
	}
	return s.Calls.Update(ctx, fn)
}

func (s *shop) Claim(
	ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time,
) ([]outside.Claimed, time.Time, error) {
	s.mu.Lock()
	s.claims++
	refuse := s.refuse
	s.mu.Unlock()
	if refuse != nil {
		return nil, time.Time{}, refuse
	}
	return s.Calls.Claim(ctx, kinds, lease, limit, now)
}

func (s *shop) set(change func(*shop)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *shop) handler() outside.Handler[*memory.Tx] {
	return outside.Handler[*memory.Tx]{
		Do: s.channel.Do, Query: s.channel.Query,
		Done: func(_ context.Context, tx *memory.Tx, c outside.Claimed, result []byte) error {
			tx.Add("done "+string(c.Key), 1)
			if s.doneFail.Load() > 0 {
				s.doneFail.Add(-1)
				return errors.New("constraint violated")
			}
			if string(result) != "did "+string(c.Key) {
				return fmt.Errorf("result %q", result)
			}
			return nil
		},
		Refused: func(_ context.Context, tx *memory.Tx, c outside.Claimed, cause error) error {
			tx.Add("refused "+string(c.Key), 1)
			if errors.Is(cause, outside.ErrGaveUp) {
				tx.Add("given up "+string(c.Key), 1)
			}
			return nil
		},
	}
}

func (s *shop) open(cfg outside.Config, h outside.Handler[*memory.Tx]) (calls *outside.Calls[*memory.Tx], stop func()) {
	calls = outside.New[*memory.Tx](s, cfg)
	calls.Handle("refund", h)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- calls.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return calls, stop
}

func (s *shop) schedule(calls *outside.Calls[*memory.Tx], list ...outside.Call) {
	s.t.Helper()
	err := s.Calls.Update(s.t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		for _, call := range list {
			if _, err := calls.Schedule(ctx, tx, call); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) number(key string) (n int) {
	s.t.Helper()
	if err := s.View(s.t.Context(), func(_ context.Context, tx *memory.Tx) error { n = tx.Get(key); return nil }); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *shop) want(what string, got, want any) {
	s.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var refund = outside.Call{Kind: "refund", Key: "RF-1", Payload: []byte("600")}

func bubble(t *testing.T, f func(t *testing.T, s *shop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newShop(t)) })
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
