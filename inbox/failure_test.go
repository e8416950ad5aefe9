package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/memory"
)

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

// open are the consumers' dead letters that wait for a person.
func open(t *testing.T, s *store) []ops.DeadLetter {
	t.Helper()
	letters, err := s.DeadLetters(t.Context(), "", 100, "")
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

// The same while the first of the two still waits, or waits for a person: neither vanishes into the other.
func TestAKeyUsedAgainWhileItsMessageWaitsIsADeadLetterToo(t *testing.T) {
	for _, verdict := range []func(error) error{func(err error) error { return err }, convergo.Permanent} {
		bubble(t, func(t *testing.T) {
			s := newStore()
			var sick atomic.Bool
			sick.Store(true)
			other := event("O-1", 1)
			other.Payload = []byte("something else")
			src := newSource(event("O-1", 1), other, event("O-1", 2))
			running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				if sick.Load() {
					return verdict(errWeather)
				}
				return s.effect(ctx, tx, e)
			}))
			settle()
			sick.Store(false)
			for _, l := range open(t, s) {
				if err := s.RedriveLetter(t.Context(), l.ID, "ann", "", time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
			same(t, "applied", s.log("O-1"), "[1 2]")
			dead := open(t, s)
			if len(dead) != 1 || !strings.Contains(dead[0].Error, "another payload") || string(dead[0].Event.Payload) != "something else" {
				t.Errorf("dead letters: %+v", dead)
			}
			same(t, "unacknowledged", src.unacked(), 0)
		})
	}
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

// Facts 3.6: a redrive lets the dead one go first, then those behind it, in order, before newer ones.
func TestARedrivenLetterGoesFirstAndTheRestFollowsInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1), event("O-1", 2), event("O-2", 1))
		var cured atomic.Bool
		c, _ := running(t, s, src, inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if e.Key == "Moved:O-1:v1" && !cured.Load() {
				return convergo.Permanent(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		pass(time.Hour)
		src.send(event("O-1", 3))
		pass(time.Hour)
		same(t, "held", fmt.Sprint(s.log("O-1"), s.log("O-2")), "[] [1]")
		cured.Store(true)
		dead, err := s.DeadLetters(t.Context(), "points", 10, "")
		if err != nil || len(dead) != 1 {
			t.Fatalf("dead letters: %v %v", dead, err)
		}
		same(t, "redrive", s.RedriveLetter(t.Context(), dead[0].ID, "ann", "", time.Now()), nil)
		src.send(event("O-1", 4))
		c.Wake()
		settle()
		same(t, "in order", s.log("O-1"), "[1 2 3 4]")
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

func TestADeadLetterThatIsDeliveredAgainDoesNotWaitBehindItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		c, _ := running(t, s, src, inbox.Config{}, moved(func(context.Context, *memory.Tx, convergo.Event) error {
			return convergo.Permanent(errWeather)
		}))
		settle()
		src.send(event("O-1", 1), event("O-1", 2)) // the first again, as after a lost ack or a replay
		settle()
		backlog, err := s.Backlog(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "dead letters", backlog.InboxDead.Count, int64(1))
		same(t, "waiting behind it", backlog.InboxWait.Count, int64(1))
		same(t, "duplicates", c.Stats().Duplicates, int64(1))
		same(t, "unacknowledged", src.unacked(), 0)
	})
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
			s.oldDue = []convergo.Aggregate{event("O-1", 1).Aggregate}
		})
		c.Wake()
		pass(time.Minute)
		same(t, "held for a person", s.log("O-1"), "[]")
		same(t, "dead", c.Stats().Dead, 1)
	})
}

// The queue that was read is gone: another instance has worked it off, or a person has given it up.
func TestAQueueThatIsGoneSinceItWasReadIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		c, _ := running(t, s, newSource(), inbox.Config{}, moved(s.effect))
		settle()
		s.set(func(s *store) {
			s.oldDue = []convergo.Aggregate{event("O-1", 1).Aggregate}
		})
		c.Wake()
		pass(time.Minute)
		same(t, "applied", s.log("O-1"), "[]")
	})
}

func TestAPanickingHandlerIsAnErrorWithThePlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var letters letters
		running(t, s, newSource(event("O-1", 1), event("O-2", 1)), inbox.Config{MaxAttempts: 1, Alert: letters.alert},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				if e.Aggregate.ID == "O-1" {
					panic("an order that no handler foresaw")
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		dead := letters.all()
		if len(dead) != 1 || !strings.HasPrefix(dead[0].Place, "handler failure_test.go:") || !strings.Contains(dead[0].Error, "foresaw") {
			t.Fatalf("dead letters: %+v", dead)
		}
		same(t, "the others", s.log("O-2"), "[1]")
	})
}

func TestAMalformedMessageIsADeadLetterAtOnceAndOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource()
		bad := convergo.Event{
			Key: "Moved:O-1:v1", Type: "Mo\x00ved " + strings.Repeat("x", 200), Payload: []byte{0xff, 0},
			Headers: map[string]string{"a b": "\x01"},
		}
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

// Its key and aggregate are made up: a handler that got it would do the true event's effect a second time under a wrong name.
func TestAMalformedMessageNeverReachesAHandlerHoweverOftenItIsRedriven(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, src := newStore(), newSource(event("O-1", 1))
		c, _ := running(t, s, src, inbox.Config{}, moved(s.effect))
		garbled := event("O-1", 1)
		garbled.Version = 0
		src.deliver(inbox.Delivery{Event: garbled, Malformed: errors.New("header Convergo-Aggregate-Version is not a number")})
		unknown := garbled
		unknown.Type = ""
		src.deliver(inbox.Delivery{Event: unknown, Malformed: errors.New("type is empty")})
		settle()
		for range 2 {
			for _, l := range open(t, s) {
				if err := s.RedriveLetter(t.Context(), l.ID, "ann", "", time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
		}
		same(t, "handled", c.Stats().Applied, 1)
		same(t, "effects", s.log("O-1"), "[1]")
		dead := open(t, s)
		if len(dead) != 2 || !strings.Contains(dead[0].Error, "discard") {
			t.Errorf("dead letters: %+v", dead)
		}
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

// Whatever fails, however often and whenever messages arrive twice or late: each effect once, each aggregate in order.
func TestAnyMixOfFailuresKeepsOrderAndOnceness(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type plan struct{ orders, events, batch, perQueue int }
		p := plan{
			rapid.IntRange(1, 3).Draw(r, "orders"), rapid.IntRange(1, 6).Draw(r, "events"),
			rapid.IntRange(1, 5).Draw(r, "batch"), rapid.IntRange(1, 3).Draw(r, "per queue"),
		}
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
			cfg := inbox.Config{Batch: p.batch, PerQueue: p.perQueue, Backoff: convergo.Backoff{Base: time.Second, Cap: 2 * time.Second}}
			_, stop := running(t, s, src, cfg,
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

// One attempt is one run of the failing handler; the others' first run is undone with it, and they need no attempt for that.
func TestAFailureSpendsOneAttemptAndTheOthersOfItsBatchNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var mu sync.Mutex
		runs := map[string]int{}
		ran := func() string {
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprint(runs)
		}
		src := newSource(event("O-1", 1), event("O-2", 1), event("O-3", 1))
		c, _ := running(t, s, src, inbox.Config{Backoff: convergo.Backoff{Base: 10 * time.Second, Jitter: convergo.NoJitter}},
			moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
				tx.Add("written", 1)
				mu.Lock()
				defer mu.Unlock()
				if runs[e.Aggregate.ID]++; e.Aggregate.ID == "O-2" && runs["O-2"] == 1 {
					return errWeather
				}
				return s.effect(ctx, tx, e)
			}))
		settle()
		same(t, "runs", ran(), "map[O-1:2 O-2:1 O-3:1]")
		same(t, "written", s.number(t, "written"), 2)
		same(t, "failed attempts", c.Stats().Failed, 1)
		same(t, "applied", c.Stats().Applied, 2)
		pass(10 * time.Second)
		same(t, "runs after the back-off", ran(), "map[O-1:2 O-2:2 O-3:1]")
		same(t, "written", s.number(t, "written"), 3)
		same(t, "the order that had failed", s.log("O-2"), "[1]")
	})
}
