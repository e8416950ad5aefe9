package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

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

// Facts 3.2.
func TestAKeyUsedAgainForAnotherPayloadIsADeadLetterThatSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		other := event("O-1", 1)
		other.Payload = []byte("something else")
		var letters letters
		c, _ := running(t, s, newSource(event("O-1", 1), other, event("O-1", 2)), inbox.Config{Alert: letters.alert}, moved(s.effect))
		settle()
		dead := letters.all()
		if len(dead) != 1 || !strings.Contains(dead[0].Error, "another payload") {
			t.Fatalf("dead letters: %v", dead)
		}
		same(t, "the aggregate goes on", s.log("O-1"), "[1 2]")
		same(t, "duplicates", c.Stats().Duplicates, 0)
	})
}

// Facts 3.6: later messages of a blocked key wait behind it and come out in order, others flow.
func TestAFailingMessageHoldsUpItsAggregateOnlyAndTheOrderIsKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var sick atomic.Bool
		sick.Store(true)
		src := newSource(event("O-7", 1), event("O-8", 1), event("O-7", 2), event("O-8", 2))
		c, _ := running(t, s, src, inbox.Config{Backoff: convergo.Backoff{Base: 10 * time.Second, Jitter: convergo.NoJitter}},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				tx.Add("half done", 1)
				if sick.Load() && e.Aggregate.ID == "O-7" {
					return errWeather
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		same(t, "the other order", s.log("O-8"), "[1 2]")
		same(t, "the sick order", s.log("O-7"), "[]")
		same(t, "what a failing handler wrote", s.number(t, "half done"), 2)
		same(t, "all stored, all acknowledged", len(src.ackedKeys()), 4)
		sick.Store(false)
		src.send(event("O-7", 3))
		settle()
		same(t, "not before it is due", s.log("O-7"), "[]")
		pass(10 * time.Second)
		same(t, "in order", s.log("O-7"), "[1 2 3]")
		src.send(event("O-7", 4))
		settle()
		same(t, "free again", s.log("O-7"), "[1 2 3 4]")
		same(t, "failed", c.Stats().Failed, 1)
	})
}

func TestAPermanentErrorAndTheLastAttemptLeadToTheDeadLetters(t *testing.T) {
	for _, policy := range []inbox.Policy{inbox.HoldAggregate, inbox.SkipEvent} {
		bubble(t, func(t *testing.T) {
			s := newStore()
			var letters letters
			c, _ := running(t, s, newSource(event("now", 1), event("now", 2), event("later", 1), event("later", 2)),
				inbox.Config{MaxAttempts: 3, OnDead: policy, Alert: letters.alert},
				moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
					switch {
					case e.Version > 1:
						return s.effect(ctx, tx, e)
					case e.Aggregate.ID == "now":
						return convergo.Permanent(errWeather)
					}
					return errWeather
				}))
			settle()
			told := func() (told []string) {
				for _, f := range letters.all() {
					told = append(told, fmt.Sprintf("%s %d %s", f.Event.Key, f.Attempts, f.Error))
				}
				return told
			}
			same(t, "at once", told(), "[Moved:now:v1 1 bad weather]")
			pass(time.Minute)
			same(t, "after three attempts", told(), "[Moved:now:v1 1 bad weather Moved:later:v1 3 bad weather]")
			want := map[inbox.Policy]string{inbox.HoldAggregate: "[] []", inbox.SkipEvent: "[2] [2]"}[policy]
			same(t, "those behind", fmt.Sprint(s.log("now"), s.log("later")), want)
			same(t, "dead", c.Stats().Dead, 2)
		})
	}
}

// Another instance has read the same queue, buried its head and left the rest for a person.
func TestAQueueThatChangedSinceItWasReadIsReadAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1), event("O-1", 2))
		c, _ := running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if e.Version == 1 {
				return convergo.Permanent(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		settle()
		s.set(func(s *store) {
			s.oldDue = []inbox.Queue{{
				Aggregate: event("O-1", 1).Aggregate, Messages: []inbox.Queued{{Event: event("O-1", 1)}, {Event: event("O-1", 2)}},
			}}
		})
		c.Wake()
		pass(time.Minute)
		same(t, "held for a person", s.log("O-1"), "[]")
		same(t, "dead", c.Stats().Dead, 1)
	})
}

func TestAPanickingHandlerIsAnErrorWithThePlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var letters letters
		running(t, s, newSource(event("O-1", 1), event("O-2", 1)), inbox.Config{MaxAttempts: 1, Alert: letters.alert},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				if e.Aggregate.ID == "O-1" {
					var none map[string]int
					none["x"] = 1
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		dead := letters.all()
		if len(dead) != 1 || !strings.HasPrefix(dead[0].Place, "handler consumer_test.go:") || !strings.Contains(dead[0].Error, "nil map") {
			t.Fatalf("dead letters: %+v", dead)
		}
		same(t, "the others", s.log("O-2"), "[1]")
	})
}

func TestAMalformedMessageIsADeadLetterAtOnceAndOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource()
		bad := convergo.Event{Key: "Moved:O-1:v1", Type: "Mo\x00ved " + strings.Repeat("x", 200), Payload: []byte{0xff, 0}, Headers: map[string]string{"a b": "\x01"}}
		var letters letters
		c, _ := running(t, s, src, inbox.Config{Alert: letters.alert}, moved(s.effect))
		for range 2 {
			src.deliver(inbox.Delivery{Event: bad, Malformed: errors.New("header Convergo-Topic is missing")})
			settle()
		}
		src.send(event("O-1", 1)) // the true event of the key that the garbled copy claimed
		settle()
		dead := letters.all()
		if len(dead) != 1 || !strings.Contains(dead[0].Error, "Convergo-Topic is missing") {
			t.Fatalf("dead letters: %+v", dead)
		}
		if err := dead[0].Event.Validate(); err != nil {
			t.Errorf("the dead letter must be storable anywhere: %v", err)
		}
		same(t, "payload", dead[0].Event.Payload, []byte{0xff, 0})
		same(t, "the true event", s.log("O-1"), "[1]")
		same(t, "duplicates", c.Stats().Duplicates, 1)
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

// A message that spoils each transaction it is in, in a way that a savepoint does not contain.
func TestAMessageThatSpoilsItsTransactionIsFoundAndParked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.spoiled = func(_ context.Context, tx *memory.Tx) error {
			if tx.Get("Moved:bad:v1") == 1 {
				return errors.New("deferred constraint violated")
			}
			return nil
		}
		src := newSource(event("O-1", 1), event("bad", 1), event("O-2", 1), event("bad", 2))
		c, _ := running(t, s, src, inbox.Config{MaxAttempts: 2}, moved(s.effect))
		settle()
		same(t, "the others", fmt.Sprint(s.log("O-1"), s.log("O-2")), "[1] [1]")
		same(t, "unacknowledged", src.unacked(), 0)
		pass(time.Minute)
		same(t, "dead", c.Stats().Dead, 1)
		same(t, "behind it", s.log("bad"), "[]")
	})
}

func TestAHandlerThatHangsIsFoundByItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		c, _ := running(t, s, newSource(event("O-1", 1), event("slow", 1), event("O-2", 1)), inbox.Config{Timeout: time.Second, MaxAttempts: 2},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				if e.Aggregate.ID == "slow" {
					<-ctx.Done()
					return ctx.Err()
				}
				return s.effect(ctx, tx, e)
			}))
		pass(time.Minute)
		same(t, "the others", fmt.Sprint(s.log("O-1"), s.log("O-2")), "[1] [1]")
		same(t, "dead", c.Stats().Dead, 1)
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
		c, _ := running(t, s, src, inbox.Config{}, nil)
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
		if ran, err := inbox.Once(ctx, s, tx, "c", strings.Repeat("a", 255), e, nothing); ran || !errors.Is(err, convergo.ErrInvalid) {
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

// Whatever fails, however often and whenever messages arrive twice or late: each effect once, each aggregate in order.
func TestAnyMixOfFailuresKeepsOrderAndOnceness(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type plan struct{ orders, events, batch, perQueue int }
		p := plan{rapid.IntRange(1, 3).Draw(r, "orders"), rapid.IntRange(1, 6).Draw(r, "events"), rapid.IntRange(1, 5).Draw(r, "batch"), rapid.IntRange(1, 3).Draw(r, "per queue")}
		failures := map[convergo.Key]int{}
		var sent []convergo.Event
		for n := range p.events {
			for o := range p.orders {
				e := event(fmt.Sprint("O-", o), n+1)
				failures[e.Key] = rapid.IntRange(0, 3).Draw(r, "failures")
				sent = append(sent, e)
				if rapid.Bool().Draw(r, "twice") {
					sent = append(sent, e)
				}
			}
		}
		gaps := rapid.SliceOfN(rapid.IntRange(0, 3000), len(sent), len(sent)).Draw(r, "gaps")
		synctestRapid(t, func() {
			s, src := newStore(), newSource()
			var mu sync.Mutex
			_, stop := running(t, s, src, inbox.Config{Batch: p.batch, PerQueue: p.perQueue, Backoff: convergo.Backoff{Base: time.Second, Cap: 2 * time.Second}},
				moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
					mu.Lock()
					defer mu.Unlock()
					if failures[e.Key] > 0 {
						failures[e.Key]--
						return errWeather
					}
					return s.effect(ctx, tx, e)
				}))
			for i, e := range sent {
				pass(time.Duration(gaps[i]) * time.Millisecond)
				src.send(e)
			}
			pass(10 * time.Minute)
			for o := range p.orders {
				var want []string
				for n := range p.events {
					want = append(want, fmt.Sprint(n+1))
				}
				if got := s.log(fmt.Sprint("O-", o)); !slices.Equal(got, want) {
					r.Errorf("order %d: %v, want %v", o, got, want)
				}
			}
			if src.unacked() != 0 {
				r.Errorf("%d unacknowledged", src.unacked())
			}
			if err := stop(); err != nil {
				r.Errorf("stop: %v", err)
			}
		})
	})
}
