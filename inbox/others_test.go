package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

// typed is event n of an order, of another type.
func typed(eventType, order string, n int) convergo.Event {
	e := event(order, n)
	e.Type, e.Key = eventType, convergo.KeyFor(eventType, order, int64(n))
	return e
}

// versions are two versions of one consumer: the newer handles a type more.
func versions(s *store) (older, newer map[string]inbox.Handler[*memory.Tx]) {
	return moved(s.effect), map[string]inbox.Handler[*memory.Tx]{"Moved": s.effect, "Painted": s.effect}
}

func TestAnEventThatOnlyANewerInstanceHandlesIsKeptForItInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		older, newer := versions(s)
		src := newSource()
		fresh, stop := running(t, s, newSource(), inbox.Config{}, newer)
		settle()
		old, _ := running(t, s, src, inbox.Config{}, older)
		src.send(event("O-1", 1), typed("Painted", "O-1", 2), event("O-1", 3), event("O-2", 1), typed("Unheard", "O-2", 2), event("O-2", 3))
		settle()
		same(t, "an order with nothing new in it", s.log("O-2"), "[1 3]")
		same(t, "ignored: a type that nobody handles", old.Stats().Ignored, 1)
		pass(3 * time.Second) // the newer one looks for queues
		same(t, "in order", s.log("O-1"), "[1 2 3]")
		same(t, "of the newer", fresh.Stats().Applied >= 1, true)
		same(t, "unacknowledged", src.unacked(), 0)
		same(t, "attempts", old.Stats().Failed+fresh.Stats().Failed, 0)

		// The newer ones are away for a while.
		same(t, "stop", stop(), nil)
		src.send(typed("Painted", "O-1", 4), event("O-1", 5))
		pass(time.Hour)
		same(t, "kept", s.log("O-1"), "[1 2 3]")
		same(t, "attempts at what it cannot handle", old.Stats().Failed, 0)
		_, stop = running(t, s, newSource(), inbox.Config{}, newer)
		pass(3 * time.Second)
		same(t, "taken up", s.log("O-1"), "[1 2 3 4 5]")
		same(t, "stop again", stop(), nil)
	})
}

func TestAnOldInstanceLeavesQueuesThatItCannotWorkOffAloneAndDoesNotSpin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		older, newer := versions(s)
		_, stop := running(t, s, newSource(), inbox.Config{}, newer)
		settle()
		same(t, "stop", stop(), nil)
		src := newSource()
		var sick sync.Map
		sick.Store("O-own", true)
		older["Moved"] = func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if _, ill := sick.LoadAndDelete(e.Aggregate.ID); ill {
				return errWeather
			}
			return s.effect(ctx, tx, e)
		}
		running(t, s, src, inbox.Config{Backoff: convergo.Backoff{Base: 20 * time.Second, Jitter: convergo.NoJitter}}, older)
		for o := range 300 { // more than one look of the retry loop takes
			src.send(typed("Painted", fmt.Sprint("O-", o), 1), event(fmt.Sprint("O-", o), 2))
		}
		src.send(event("O-own", 1), event("O-own", 2))
		pass(10 * time.Second)
		before := s.storeCalls()
		pass(time.Minute)
		calls := s.storeCalls() - before
		// A look every two seconds, and each queue once in ten seconds.
		if most := 60 + 300*8; calls > most {
			t.Errorf("%d calls of the store in a minute, want at most %d", calls, most)
		}
		same(t, "its own queue is not held up by them", s.log("O-own"), "[1 2]")
		same(t, "unacknowledged", src.unacked(), 0)
		running(t, s, newSource(), inbox.Config{}, newer)
		pass(10 * time.Second)
		for o := range 300 {
			same(t, "taken up", s.log(fmt.Sprint("O-", o)), "[1 2]")
		}
	})
}

// A version that was taken back has left very many queues: what is due behind all of them is worked off all the same.
func TestManyQueuesForAnotherInstanceHoldUpNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const many = 5000
		s := newStore()
		older, newer := versions(s)
		_, stop := running(t, s, newSource(), inbox.Config{}, newer)
		settle()
		same(t, "stop", stop(), nil)
		var sick atomic.Bool
		sick.Store(true)
		older["Moved"] = func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if sick.Load() {
				return errWeather
			}
			return s.effect(ctx, tx, e)
		}
		src := newSource()
		running(t, s, src, inbox.Config{Backoff: convergo.Backoff{Base: time.Minute, Jitter: convergo.NoJitter}}, older)
		for o := range many {
			src.send(typed("Painted", fmt.Sprint("O-", o), 1))
		}
		src.send(event("O-own", 1))
		pass(50 * time.Second)
		same(t, "all are stored", src.unacked(), 0)
		sick.Store(false)
		pass(15 * time.Second)
		same(t, "its own", s.log("O-own"), "[1]")
	})
}

func TestWhatNobodyHandlesAnyMoreIsIgnoredWhenItsTimeIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		older, newer := versions(s)
		_, stop := running(t, s, newSource(), inbox.Config{}, newer)
		pass(50 * time.Hour) // it says again and again that it is there
		same(t, "stop", stop(), nil)
		src := newSource()
		running(t, s, src, inbox.Config{}, older)
		src.send(typed("Painted", "O-1", 1), event("O-1", 2))
		pass(20 * time.Hour)
		same(t, "kept", s.log("O-1"), "[]")
		pass(5 * time.Hour)
		same(t, "the rest goes on", s.log("O-1"), "[2]")
		src.send(typed("Painted", "O-1", 3), event("O-1", 4))
		settle()
		same(t, "ignored at once", s.log("O-1"), "[2 4]")
	})
}

func TestAnEventThatWasHandledByTheNewerInstanceDoesNotBlockTheOlder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		older, newer := versions(s)
		first := newSource(typed("Painted", "O-1", 1))
		running(t, s, first, inbox.Config{}, newer)
		settle()
		same(t, "applied", s.log("O-1"), "[1]")
		src := newSource(typed("Painted", "O-1", 1), event("O-1", 2)) // delivered again, as after a rebalance
		old, _ := running(t, s, src, inbox.Config{}, older)
		settle()
		same(t, "the next goes on at once", s.log("O-1"), "[1 2]")
		same(t, "duplicates", old.Stats().Duplicates, 1)
	})
}

func TestEventsOfTypesThatNobodyHandlesNeedNoTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := newSource()
		c, _ := running(t, s, src, inbox.Config{Poll: time.Hour}, moved(s.effect))
		src.send(typed("Unheard", "O-1", 1))
		settle()
		before := s.storeCalls()
		for n := 2; n <= 101; n++ {
			src.send(typed("Unheard", "O-1", n))
			settle()
		}
		same(t, "transactions", s.storeCalls()-before, 0)
		same(t, "ignored", c.Stats().Ignored, 101)
		same(t, "unacknowledged", src.unacked(), 0)
		running(t, s, newSource(), inbox.Config{}, map[string]inbox.Handler[*memory.Tx]{"Unheard": s.effect})
		pass(time.Second) // and it is seen when somebody comes who does
		src.send(typed("Unheard", "O-1", 102))
		pass(3 * time.Second)
		same(t, "applied by the other", s.log("O-1"), "[102]")
	})
}

func TestNothingIsTakenBeforeTheTypesAreRegistered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.set(func(s *store) { s.down = convergo.Unreachable(errWeather) })
		src := newSource(event("O-1", 1))
		var log testlog.Lines
		c, _ := running(t, s, src, inbox.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, moved(s.effect))
		pass(8 * time.Minute)
		same(t, "fetched", c.Stats().Fetched, 0)
		said := strings.Count(log.String(), "cannot be registered")
		same(t, "said again and again, and not each time", said > 6 && said < 10, true)
		s.set(func(s *store) { s.down = nil })
		pass(time.Minute)
		same(t, "applied", s.log("O-1"), "[1]")
	})
}
