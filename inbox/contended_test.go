package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// errContended is what Update answers when the database has had it begin again too often.
var errContended = convergo.Unreachable(fmt.Errorf("asked to begin again 5 times: %w", convergo.ErrContended))

// A handler that always meets somebody, or its own second connection, must not keep its partition for ever, with nobody told.
func TestAMessageWhoseTransactionIsAlwaysGivenUpLetsTheOthersGoAndIsFoundInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var letters letters
		src := newSource(event("O-7", 1), event("O-8", 1), event("O-7", 2), event("O-8", 2), event("O-9", 1))
		c, _ := running(t, s, src, inbox.Config{MaxAttempts: 3, Alert: letters.alert},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				if e.Aggregate.ID == "O-7" && e.Version == 1 {
					return errContended
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		same(t, "the others, at once", fmt.Sprint(s.log("O-8"), s.log("O-9")), "[1 2] [1]")
		same(t, "attempts at first", c.Stats().Failed, 0)
		pass(10 * time.Minute)
		dead := letters.all()
		if len(dead) != 1 || dead[0].Attempts != 3 || !strings.Contains(dead[0].Error, "begin again") {
			t.Fatalf("dead letters: %v", dead)
		}
		same(t, "behind it nothing went by", s.log("O-7"), "[]")
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

func TestAQueueWhoseHeadIsAlwaysGivenUpDoesNotHoldUpTheOtherQueues(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var sick atomic.Bool
		sick.Store(true)
		src := newSource(event("O-7", 1), event("O-7", 2), event("O-8", 1), event("O-8", 2))
		c, _ := running(t, s, src, inbox.Config{Backoff: convergo.Backoff{Base: 10 * time.Second, Jitter: convergo.NoJitter}},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				switch {
				case sick.Load():
					return errWeather
				case e.Aggregate.ID == "O-7" && e.Version == 1:
					return errContended
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		same(t, "both wait", c.Stats().Failed, 2)
		sick.Store(false)
		pass(11 * time.Second)
		same(t, "the queue behind", s.log("O-8"), "[1 2]")
		same(t, "attempts that were not its own fault", c.Stats().Failed, 2)
		pass(time.Hour)
		same(t, "found", c.Stats().Failed > 3, true)
		same(t, "kept", s.log("O-7"), "[]")
	})
}

// What is contended now and then comes through without an attempt, whether it is new, waits, or is suspected.
func TestWhatIsContendedForAWhileSpendsNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var runs atomic.Int64
		src := newSource()
		suspect := inbox.Delivery{Event: event("O-6", 1), Attempt: 11}
		src.deliver(suspect)
		src.send(event("O-7", 1))
		unlucky := func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if runs.Add(1) <= 8 {
				return errContended
			}
			return s.effect(ctx, tx, e)
		}
		c, _ := running(t, s, src, inbox.Config{MaxAttempts: 1, Trials: 1}, moved(unlucky))
		pass(10 * time.Minute)
		same(t, "applied", fmt.Sprint(s.log("O-6"), s.log("O-7")), "[1] [1]")
		same(t, "dead", c.Stats().Dead, 0)
		same(t, "unacknowledged", src.unacked(), 0)
	})
}
