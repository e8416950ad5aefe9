package outside_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/memory"
)

// restarting is a store that runs every function twice and rolls the first run back, as a database that locks rows does
// when it has to end a deadlock.
type restarting struct{ *shop }

var errDeadlock = errors.New("deadlock")

func (r restarting) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	err := r.shop.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		_ = fn(ctx, tx)
		return errDeadlock
	})
	if !errors.Is(err, errDeadlock) {
		return err
	}
	return r.shop.Update(ctx, fn)
}

func TestAnOutcomeWhoseTransactionIsRunAgainIsRecordedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		calls := outside.New[*memory.Tx](restarting{s}, outside.Config{})
		h := s.handler()
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			if c.Key == "RF-no" {
				return nil, convergo.Permanent(errors.New("no such payment"))
			}
			return s.channel.Do(ctx, c)
		}
		calls.Handle("refund", h)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- calls.Run(ctx) }()
		s.schedule(calls, refund, outside.Call{Kind: "refund", Key: "RF-no"})
		pass(time.Minute)
		cancel()
		s.want("run", <-ended, nil)
		s.want("done", s.number("done RF-1"), 1)
		s.want("refused", s.number("refused RF-no"), 1)
		s.want("heard", s.channel.heard(), "do RF-1")
		got := calls.Stats()
		s.want("counts", fmt.Sprint(got.Done, got.Refused, got.Retried, got.Lost, got.Outages), "1 1 0 0 0")
	})
}

// Three instances on one database; those that die leave calls under leases behind.
func TestInstancesNeverMakeTwoCallsOfAGroupAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		var mu sync.Mutex
		under := map[string]convergo.Key{}
		var order []string
		h := s.handler()
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			mu.Lock()
			if other, two := under[c.Group]; two {
				t.Errorf("group %s: %s is called while %s is", c.Group, c.Key, other)
			}
			under[c.Group] = c.Key
			order = append(order, string(c.Key))
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			delete(under, c.Group)
			mu.Unlock()
			return s.channel.Do(ctx, c)
		}
		var instances []*outside.Calls[*memory.Tx]
		for range 3 {
			calls, _ := s.open(outside.Config{Workers: 2}, h)
			instances = append(instances, calls)
		}
		const groups, each = 4, 5
		for n := range each {
			for g := range groups {
				s.schedule(instances[(n+g)%3], outside.Call{Kind: "refund", Key: convergo.Key(fmt.Sprintf("%c-%d", 'A'+g, n)), Group: string(rune('A' + g))})
			}
		}
		pass(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		s.want("calls", len(order), groups*each)
		for g := range groups {
			var own []string
			for _, key := range order {
				if strings.HasPrefix(key, string(rune('A'+g))) {
					own = append(own, key[2:])
				}
			}
			s.want(fmt.Sprintf("order of group %c", 'A'+g), own, "[0 1 2 3 4]")
		}
	})
}

func TestASecondRunOfRunningCallsIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		calls, stop := s.open(outside.Config{Name: "payment"}, s.handler())
		synctest.Wait()
		if err := calls.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "payment") {
			t.Errorf("a second Run: %v", err)
		}
		stop()
	})
}
