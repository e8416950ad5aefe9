package outside_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
)

func TestCallsOfAGroupAreMadeOneAfterAnother(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.before = func(key string, attempt int) error {
			if key == "A-1" && attempt < 3 {
				return errTimeout
			}
			return nil
		}
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls,
			outside.Call{Kind: "refund", Key: "A-1", Group: "A"}, outside.Call{Kind: "refund", Key: "A-2", Group: "A"},
			outside.Call{Kind: "refund", Key: "A-3", Group: "A"}, outside.Call{Kind: "refund", Key: "B-1", Group: "B"})
		synctest.Wait()
		s.want("the other group", s.number("done B-1"), 1)
		pass(time.Minute)
		var order []string
		for _, heard := range s.channel.calls {
			if strings.HasPrefix(heard, "do A") && !slices.Contains(order, heard) {
				order = append(order, heard)
			}
		}
		s.want("order", order, "[do A-1 do A-2 do A-3]")
		s.want("A-2 waited", strings.LastIndex(s.channel.heard(), "do A-1") < strings.Index(s.channel.heard(), "do A-2"), true)
		s.want("done", calls.Stats().Done, 4)
	})
}

func TestTheNextOfAGroupFollowsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls,
			outside.Call{Kind: "refund", Key: "A-1", Group: "A"}, outside.Call{Kind: "refund", Key: "A-2", Group: "A"},
			outside.Call{Kind: "refund", Key: "A-3", Group: "A"})
		synctest.Wait() // no time has passed: nobody waited for a poll
		s.want("heard", s.channel.heard(), "do A-1, do A-2, do A-3")
	})
}

func TestACallIsNotMadeBeforeItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		calls, _ := s.open(outside.Config{}, s.handler())
		later := refund
		later.NotBefore = time.Now().Add(time.Hour)
		s.schedule(calls, later)
		pass(time.Hour - time.Second)
		s.want("heard", s.channel.heard(), "")
		pass(2 * time.Second)
		s.want("heard", s.channel.heard(), "do RF-1")
	})
}

func TestNoMoreCallsThanWorkersAreMadeAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		h := s.handler()
		var running, most atomic.Int64
		do := h.Do
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			<-time.After(time.Second)
			return do(ctx, c)
		}
		calls, _ := s.open(outside.Config{Workers: 3, Lease: 4 * time.Second}, h)
		var list []outside.Call
		for i := range 20 {
			list = append(list, outside.Call{Kind: "refund", Key: convergo.Key(fmt.Sprint("RF-", i))})
		}
		s.schedule(calls, list...)
		pass(8 * time.Second) // 7 rounds of 3; no lease is spent in a queue
		s.want("at a time", most.Load(), 3)
		s.want("stats", calls.Stats(), outside.Stats{Claimed: 20, Made: 20, Done: 20})
	})
}
