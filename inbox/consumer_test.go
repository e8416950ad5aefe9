package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

func TestCaseB19EachConsumerAppliesAnEventOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		e := event("O-1", 1)
		for _, consumer := range []string{"stock", "points"} {
			src := newSource(e, e)
			_, stop := running(t, s, src, inbox.Config{Consumer: consumer}, moved(func(_ context.Context, tx *memory.Tx, _ convergo.Event) error {
				tx.Add(consumer, 1)
				return nil
			}))
			settle()
			same(t, "acknowledged", len(src.ackedKeys()), 2)
			same(t, "stop", stop(), nil)
		}
		same(t, "stock", s.number(t, "stock"), 1)
		same(t, "points", s.number(t, "points"), 1)
	})
}

func TestCaseB19AnEmptyKeyIsRefusedByNameAndNotFoldedIntoAnotherMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		one, two := event("O-1", 1), event("O-1", 2)
		one.Key, two.Key = "", ""
		var letters letters
		c, _ := running(t, s, newSource(one, two, event("O-1", 3)), inbox.Config{Alert: letters.alert}, moved(s.effect))
		settle()
		dead := letters.all()
		if len(dead) != 2 || dead[0].Event.Key == dead[1].Event.Key {
			t.Fatalf("two bodies with an empty key must be two dead letters, got %v", dead)
		}
		for _, f := range dead {
			if !strings.Contains(f.Error, "key is empty") || f.Event.Key.Validate() != nil {
				t.Errorf("dead letter %q says %q", f.Event.Key, f.Error)
			}
		}
		same(t, "payload is kept", string(dead[0].Event.Payload), "O-1 1")
		same(t, "the good message", s.log("O-1"), "[3]")
		same(t, "dead", c.Stats().Dead, 2)
	})
}

// TestCaseB22ACrashBetweenAnyTwoStepsLeavesEachEffectOnce kills the consumer at every point of its flow and starts a new
// one, as facts 3.1 asks: nothing is lost, nothing is done twice.
func TestCaseB22ACrashBetweenAnyTwoStepsLeavesEachEffectOnce(t *testing.T) {
	for _, point := range []string{"inbox.fetched", "inbox.handled", "inbox.committed", "inbox.acked", "handler"} {
		t.Run(point, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				src := newSource(event("O-1", 1), event("O-2", 1), event("O-1", 2))
				var dead atomic.Bool
				die := func(at string) {
					if at == point && dead.CompareAndSwap(false, true) {
						runtime.Goexit()
					}
				}
				handler := func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
					err := s.effect(ctx, tx, e)
					die("handler")
					return err
				}
				_, stop := running(t, s, src, inbox.Config{Probe: die}, moved(handler))
				settle()
				if err := stop(); !errors.Is(err, inbox.ErrStopped) {
					t.Fatalf("the consumer did not die: %v", err)
				}
				src.redeliver()
				running(t, s, src, inbox.Config{}, moved(handler))
				settle()
				same(t, "O-1", s.log("O-1"), "[1 2]")
				same(t, "O-2", s.log("O-2"), "[1]")
				same(t, "unacknowledged", src.unacked(), 0)
			})
		})
	}
}

func TestCaseB24AcksFollowTheCommitOfWhatTheyAcknowledge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource(event("O-1", 1), event("bad", 1), event("O-2", 1), event("bad", 2), event("worse", 1))
		src.onAck = func(e convergo.Event) error {
			stored := false
			err := s.View(context.Background(), func(ctx context.Context, tx *memory.Tx) error {
				blocked, err := s.Blocked(ctx, tx, "points", []convergo.Aggregate{e.Aggregate})
				stored = tx.Get(string(e.Key)) == 1 || blocked[e.Aggregate]
				return err
			})
			if err != nil || !stored {
				t.Errorf("%s acknowledged before it was stored (%v)", e.Key, err)
			}
			return nil
		}
		running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			switch e.Aggregate.ID {
			case "bad":
				return errWeather
			case "worse":
				return convergo.Permanent(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		settle()
		same(t, "acknowledged in order", src.ackedKeys(), "[Moved:O-1:v1 Moved:bad:v1 Moved:O-2:v1 Moved:bad:v2 Moved:worse:v1]")
	})
}

func TestCaseB25NothingIsAcknowledgedWhileTheStoreIsDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.down = errors.New("connection refused")
		src := newSource(event("O-1", 1), event("O-2", 1))
		c, _ := running(t, s, src, inbox.Config{}, moved(s.effect))
		pass(2 * time.Second)
		same(t, "acknowledged", len(src.ackedKeys()), 0)
		same(t, "held by the consumer", src.held(), 0)
		if n := s.storeCalls(); n > 60 {
			t.Errorf("%d store calls in 2 s of outage: no pause", n)
		}
		s.set(func(s *store) { s.down = nil })
		pass(5 * time.Second)
		same(t, "O-1", s.log("O-1"), "[1]")
		same(t, "O-2", s.log("O-2"), "[1]")
		same(t, "unacknowledged", src.unacked(), 0)
		same(t, "attempts spent", c.Stats().Failed, 0)
	})
}

func TestCaseB25AMessageWhoseDeadLetterCannotBeWrittenIsNotAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.buryFail, s.parkFail = errors.New("value too long"), errors.New("value too long")
		src := newSource(event("bad", 1), event("O-1", 1), event("bad", 2), event("O-2", 1))
		running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if e.Key == "Moved:bad:v1" {
				return convergo.Permanent(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		settle()
		same(t, "acknowledged: the others, but none of the stuck aggregate", src.ackedKeys(), "[Moved:O-1:v1 Moved:O-2:v1]")
		s.set(func(s *store) { s.buryFail, s.parkFail = nil, nil })
		pass(5 * time.Second)
		same(t, "unacknowledged", src.unacked(), 0)
		same(t, "behind the dead letter", s.log("bad"), "[]")
	})
}

func TestAHandlersOutageFailsTheBatchAndSpendsNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource(event("O-1", 1), event("O-2", 1))
		var out atomic.Bool
		out.Store(true)
		c, _ := running(t, s, src, inbox.Config{MaxAttempts: 1}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if out.Load() && e.Aggregate.ID == "O-2" {
				return convergo.Unreachable(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		pass(time.Second)
		same(t, "acknowledged", len(src.ackedKeys()), 0)
		out.Store(false)
		pass(5 * time.Second)
		same(t, "effects", fmt.Sprint(s.log("O-1"), s.log("O-2")), "[1] [1]")
		same(t, "dead", c.Stats().Dead, 0)
	})
}

func TestTheSourcesOutageIsWaitedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		src.broken = errWeather
		running(t, s, src, inbox.Config{}, moved(s.effect))
		pass(3 * time.Second)
		src.mu.Lock()
		src.broken = nil
		src.mu.Unlock()
		pass(3 * time.Second)
		same(t, "effect", s.log("O-1"), "[1]")
	})
}

func TestALostAckLeadsToADuplicateThatChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		src.onAck = func(convergo.Event) error { return errWeather }
		c, _ := running(t, s, src, inbox.Config{}, moved(s.effect))
		settle()
		same(t, "ack errors", c.Stats().AckErrors, 1)
		src.mu.Lock()
		src.onAck = nil
		src.mu.Unlock()
		src.redeliver()
		settle()
		same(t, "effects", s.number(t, "Moved:O-1:v1"), 1)
		same(t, "duplicates", c.Stats().Duplicates, 1)
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

// domain.md row 24: an event that comes before what it is about is not marked as processed and dropped.
func TestReport24AnEventThatComesTooEarlyIsAppliedWhenItsTimeHasCome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if tx.Get("order row") == 0 {
				return errors.New("order O-1 not found")
			}
			return s.effect(ctx, tx, e)
		}))
		pass(5 * time.Second)
		same(t, "too early", s.log("O-1"), "[]")
		if err := s.Update(t.Context(), func(_ context.Context, tx *memory.Tx) error { tx.Set("order row", 1); return nil }); err != nil {
			t.Fatal(err)
		}
		src.send(event("O-1", 1))
		pass(time.Minute)
		same(t, "in time", s.number(t, "Moved:O-1:v1"), 1)
	})
}

// Facts 3.7: the compensation overtakes the action. The tombstone is the handler's; the inbox makes it atomic.
func TestACompensationBeforeItsActionLeavesATombstone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		hold, release := event("O-1", 1), event("O-1", 2)
		release.Type = "Released"
		running(t, s, newSource(release, hold, release), inbox.Config{}, map[string]inbox.Handler[*memory.Tx]{
			"Moved": func(_ context.Context, tx *memory.Tx, _ convergo.Event) error {
				if tx.Get("tombstone") == 0 {
					tx.Add("held", 1)
				}
				return nil
			},
			"Released": func(_ context.Context, tx *memory.Tx, _ convergo.Event) error {
				tx.Add("tombstone", 1)
				tx.Set("held", 0)
				return nil
			},
		})
		settle()
		same(t, "held", s.number(t, "held"), 0)
		same(t, "tombstones", s.number(t, "tombstone"), 1)
	})
}

func TestStaleEventsAreDroppedOnlyWhenAskedFor(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			s := newStore()
			c, _ := running(t, s, newSource(event("O-1", 2), event("O-1", 1), event("O-1", 3)), inbox.Config{RefuseStale: refuse}, moved(s.effect))
			settle()
			want, stale := "[2 1 3]", 0
			if refuse {
				want, stale = "[2 3]", 1
			}
			same(t, "applied", s.log("O-1"), want)
			same(t, "stale", c.Stats().Stale, stale)
		})
	}
}

func TestAnEventWithoutAHandlerIsAcknowledgedAndCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		c, _ := running(t, s, src, inbox.Config{}, map[string]inbox.Handler[*memory.Tx]{
			"OrderPayed": func(context.Context, *memory.Tx, convergo.Event) error { return nil },
		})
		settle()
		same(t, "ignored", c.Stats().Ignored, 1)
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

func TestOneActionOfSeveralHappensOnceWhateverLeadsToIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		again := event("O-1", 1) // the same business event under the key of a replay that an operator made by hand
		var ran []bool
		handler := func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			e.Key, e.Payload = "Paid:O-1", []byte("paid")
			for _, action := range []string{"points", "mail"} {
				once, err := inbox.Once(ctx, s, tx, "points", action, e, func(_ context.Context, tx *memory.Tx) error {
					tx.Add(action, 1)
					if action == "mail" && tx.Get("mail fails") == 0 {
						return errWeather
					}
					return nil
				})
				if err != nil && action != "mail" {
					return err
				}
				ran = append(ran, once)
			}
			tx.Set("mail fails", 1)
			return nil
		}
		again.Key = "Moved:O-1:v1:again"
		running(t, s, newSource(event("O-1", 1), again), inbox.Config{}, moved(handler))
		settle()
		same(t, "ran", ran, "[true false false true]")
		same(t, "points", s.number(t, "points"), 1)
		same(t, "mail: the failed try left nothing", s.number(t, "mail"), 1)
	})
}

func TestOnceRefusesAnotherPayloadAndAnUnusableKey(t *testing.T) {
	s := newStore()
	e := event("O-1", 1)
	nothing := func(context.Context, *memory.Tx) error { return nil }
	err := s.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		if ran, err := inbox.Once(ctx, s, tx, "c", "a", e, nothing); !ran || err != nil {
			t.Errorf("first: %v %v", ran, err)
		}
		e.Payload = []byte("other")
		if ran, err := inbox.Once(ctx, s, tx, "c", "a", e, nothing); ran || convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("other payload: %v %v", ran, err)
		}
		if ran, err := inbox.Once(ctx, s, tx, "c", strings.Repeat("a", 256), e, nothing); ran || !errors.Is(err, convergo.ErrInvalid) {
			t.Errorf("long action: %v %v", ran, err)
		}
		return nil
	})
	same(t, "transaction", err, nil)
}

func TestAnIdleConsumerAsksTheStoreAtMostOnceASecond(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		running(t, s, newSource(), inbox.Config{}, moved(s.effect))
		pass(10 * time.Minute)
		if n := s.storeCalls(); n > 600 {
			t.Errorf("%d store calls in 600 idle seconds", n)
		}
	})
}

func TestABatchIsOneTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource()
		for i := range 250 {
			src.send(event(fmt.Sprintf("O-%d", i), 1))
		}
		commits := 0
		c, _ := running(t, s, src, inbox.Config{Probe: func(point string) {
			if point == "inbox.committed" {
				commits++
			}
		}}, moved(s.effect))
		settle()
		same(t, "applied", c.Stats().Applied, 250)
		same(t, "commits", commits, 3)
	})
}

func TestStoppingFinishesWhatHasBegun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		begun, goOn := make(chan struct{}), make(chan struct{})
		_, stop := running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			close(begun)
			<-goOn
			return s.effect(ctx, tx, e)
		}))
		<-begun
		var stopped sync.WaitGroup
		stopped.Go(func() { same(t, "stop", stop(), nil) })
		settle()
		close(goOn)
		stopped.Wait()
		same(t, "effect", s.log("O-1"), "[1]")
		same(t, "unacknowledged", src.unacked(), 0)
	})
}
