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

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// restarting is a store that runs every function twice and rolls the first run back, as a database that locks rows does
// when it has to end a deadlock.
type restarting struct{ *store }

var errDeadlock = errors.New("deadlock")

func (r restarting) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	err := r.store.Store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		_ = fn(ctx, tx)
		return errDeadlock
	})
	if !errors.Is(err, errDeadlock) {
		return err
	}
	return r.store.Update(ctx, fn)
}

func TestATransactionThatIsRunAgainCountsAndAlertsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := restarting{newStore()}
		var letters letters
		src := newSource(event("O-1", 1), event("O-2", 1), event("O-2", 2), event("O-1", 1), event("O-3", 1))
		src.deliver(inbox.Delivery{Event: convergo.Event{Payload: []byte("x")}, Malformed: errWeather})
		tries := map[string]int{}
		c := inbox.New[*memory.Tx](s, s, src, inbox.Config{Consumer: "points", Alert: letters.alert, MaxAttempts: 3})
		c.Handle("Moved", func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			switch {
			case e.Aggregate.ID == "O-3":
				return convergo.Permanent(errWeather)
			case e.Key == event("O-2", 1).Key:
				if tries["O-2"]++; tries["O-2"] <= 4 { // both runs of two attempts
					return errWeather
				}
			}
			_, err := inbox.Once(ctx, s, tx, "points", "mail", e, func(_ context.Context, tx *memory.Tx) error {
				tx.Add("mail "+string(e.Key), 1)
				return nil
			})
			return errors.Join(err, s.effect(ctx, tx, e))
		})
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- c.Run(ctx) }()
		pass(time.Minute)
		cancel()
		same(t, "run", <-result, nil)
		same(t, "first order", s.log("O-1"), "[1]")
		same(t, "second order", s.log("O-2"), "[1 2]")
		got := c.Stats()
		same(t, "applied", got.Applied, 3)
		same(t, "duplicates", got.Duplicates, 1)
		same(t, "failed attempts", got.Failed, 2)
		same(t, "queued", got.Queued, 1)
		same(t, "dead", got.Dead, 2)
		same(t, "alerts", len(letters.all()), 2)
		same(t, "mail", s.number(t, "mail Moved:O-2:v1"), 1)
	})
}

// Two instances share a store, and every message comes to both of them: brokers do that when they rebalance.
func TestTwoInstancesDrainTheSameQueuesAndEachMessageIsAppliedOnceAndInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var sources [2]*source
		for i := range sources {
			sources[i] = newSource()
			for n := range 6 {
				for o := range 10 {
					sources[i].send(event(fmt.Sprint("O-", o), n+1))
				}
			}
		}
		var mu sync.Mutex
		failures := map[convergo.Key]int{}
		var letters letters
		for i := range sources {
			running(t, s, sources[i], inbox.Config{Alert: letters.alert, MaxAttempts: 4, OnDead: inbox.SkipEvent, PerQueue: 2},
				moved(func(_ context.Context, tx *memory.Tx, e convergo.Event) error {
					mu.Lock()
					failures[e.Key]++
					n := failures[e.Key]
					mu.Unlock()
					switch {
					case e.Version == 3:
						return errWeather // dead in the end
					case e.Version%2 == 0 && n <= 2:
						return errWeather
					}
					// The place is read in the transaction: what runs after the commits of two instances may come in any order.
					tx.Set("place of "+string(e.Key), tx.Add("applied of "+e.Aggregate.ID, 1))
					return nil
				}))
		}
		pass(time.Hour)
		for o := range 10 {
			var places []int
			for n := range 6 {
				places = append(places, s.number(t, "place of "+string(event(fmt.Sprint("O-", o), n+1).Key)))
			}
			same(t, "places of the six", places, "[1 2 0 3 4 5]")
			same(t, "applied in all", s.number(t, fmt.Sprint("applied of O-", o)), 5)
		}
		same(t, "dead letters", len(letters.all()), 10)
		for i, src := range sources {
			same(t, fmt.Sprint("unacknowledged by ", i), src.unacked(), 0)
		}
		mu.Lock()
		defer mu.Unlock()
		for o := range 10 { // four attempts in all, and not four of each instance
			same(t, "attempts at the dead one", failures[event(fmt.Sprint("O-", o), 3).Key], 4)
		}
	})
}

// The other instance buries the message between this one's attempt and its letter. With row locks that can be.
func TestAMessageThatAnotherInstanceHasDoneWithIsNotBuried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		var letters letters
		var once sync.Once
		racing := racingParking{store: s, before: func(ctx context.Context, tx *memory.Tx, e convergo.Event) {
			once.Do(func() {
				if _, err := s.Mark(ctx, tx, "points", e, false, time.Now()); err != nil {
					t.Error(err)
				}
			})
		}}
		src := newSource(event("O-1", 1), event("O-1", 2))
		c := inbox.New[*memory.Tx](s, racing, src, inbox.Config{Consumer: "points", Alert: letters.alert})
		c.Handle("Moved", func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if e.Version == 1 {
				return convergo.Permanent(errWeather)
			}
			return s.effect(ctx, tx, e)
		})
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- c.Run(ctx) }()
		pass(time.Minute)
		cancel()
		same(t, "run", <-result, nil)
		same(t, "letters", len(letters.all()), 0)
		same(t, "the next is not held up", s.log("O-1"), "[2]")
		same(t, "duplicates", c.Stats().Duplicates, 1)
	})
}

type racingParking struct {
	*store
	before func(ctx context.Context, tx *memory.Tx, e convergo.Event)
}

func (r racingParking) Bury(
	ctx context.Context, tx *memory.Tx, consumer string, f inbox.Failure, hold bool, now time.Time,
) (bool, error) {
	r.before(ctx, tx, f.Event)
	return r.store.Bury(ctx, tx, consumer, f, hold, now)
}

// A reader that stood still wakes up with old messages after its successor has gone on.
func TestAZombiesOldMessagesAreStaleForAllInstances(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		cfg := inbox.Config{RefuseStale: true}
		successor, zombie := newSource(event("O-1", 1), event("O-1", 2), event("O-1", 5)), newSource()
		running(t, s, successor, cfg, moved(s.effect))
		second, _ := running(t, s, zombie, cfg, moved(s.effect))
		settle()
		zombie.send(event("O-1", 2), event("O-1", 3), event("O-1", 4))
		settle()
		same(t, "applied", s.log("O-1"), "[1 2 5]")
		same(t, "stale at the zombie", second.Stats().Stale, 2)
		same(t, "duplicates at the zombie", second.Stats().Duplicates, 1)
	})
}

func TestOnceHasMarksOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		first, second := event("O-1", 1), event("O-2", 1)
		second.Key = first.Key + "#mail" // an event's key may look like this
		running(t, s, newSource(first, second), inbox.Config{}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			ran, err := inbox.Once(ctx, s, tx, "points", "mail", e, func(context.Context, *memory.Tx) error { return nil })
			if !ran {
				t.Errorf("%s: the action did not run", e.Key)
			}
			return errors.Join(err, s.effect(ctx, tx, e))
		}))
		settle()
		same(t, "the second order", s.log("O-2"), "[1]")
	})
}

func TestASecondRunOfARunningConsumerIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		c, stop := running(t, s, newSource(), inbox.Config{}, moved(s.effect))
		settle()
		if err := c.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "points") {
			t.Errorf("a second Run: %v", err)
		}
		same(t, "stop", stop(), nil)
	})
}

// dying is a process that handles messages until one kills it: its transaction is gone, nothing is recorded, and what it
// had in hand is delivered again. It returns when nothing is left to be done, or after most deaths.
func dying(t *testing.T, s *store, src *counting, cfg inbox.Config, most int, kills func(convergo.Event) bool) (deaths int) {
	t.Helper()
	for deaths = 0; deaths < most; deaths++ {
		c := inbox.New[*memory.Tx](s, s, src, cfg)
		c.Handle("Moved", func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if kills(e) {
				runtime.Goexit() // nothing recovers it, as nothing does a call of os.Exit
			}
			return s.effect(ctx, tx, e)
		})
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() { result <- c.Run(ctx) }()
		pass(5 * time.Minute)
		cancel()
		if err := <-result; err == nil {
			return deaths
		}
		src.redeliver()
	}
	return deaths
}

// counting is a source that counts deliveries of each message, unless it cannot.
type counting struct {
	*source
	blind bool
	times map[convergo.Key]int
}

func (c *counting) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	deliveries, err := c.source.Fetch(ctx, most)
	deliveries = slices.Clone(deliveries)
	for i := range deliveries {
		c.times[deliveries[i].Event.Key]++
		if !c.blind {
			deliveries[i].Attempt = c.times[deliveries[i].Event.Key]
		}
	}
	return deliveries, err
}

func TestAMessageThatKillsTheProcessIsFoundAndBuriedAndTheOthersAreApplied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := &counting{source: newSource(), times: map[convergo.Key]int{}}
		for o := range 20 {
			src.send(event(fmt.Sprint("O-", o), 1), event(fmt.Sprint("O-", o), 2))
		}
		poison := event("O-7", 1)
		var letters letters
		cfg := inbox.Config{Consumer: "points", Redeliveries: 4, Trials: 3, Alert: letters.alert}
		deaths := dying(t, s, src, cfg, 50, func(e convergo.Event) bool { return e.Key == poison.Key })
		same(t, "deaths", deaths, 4+3)
		for o := range 20 {
			want := "[1 2]"
			if o == 7 {
				want = "[]" // held for a person
			}
			same(t, fmt.Sprint("applied of ", o), s.log(fmt.Sprint("O-", o)), want)
		}
		dead := letters.all()
		if len(dead) != 1 || dead[0].Event.Key != poison.Key || dead[0].Place != "process" || !strings.Contains(dead[0].Error, "3 attempts") {
			t.Errorf("dead letters: %+v", dead)
		}
		same(t, "unacknowledged", src.unacked(), 0)
	})
}

func TestWithoutACountOfDeliveriesNobodyIsSuspected(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := &counting{source: newSource(event("O-1", 1), event("O-2", 1)), times: map[convergo.Key]int{}, blind: true}
		deaths := dying(t, s, src, inbox.Config{Consumer: "points"}, 30, func(e convergo.Event) bool { return e.Aggregate.ID == "O-1" })
		same(t, "deaths", deaths, 30)
		same(t, "unacknowledged", src.unacked(), 2)
	})
}

// An outage of the database raises the broker's count as well, also when it lasts through the attempts at suspects.
func TestAnOutageKillsNoMessageHoweverOftenItWasDelivered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		src := &counting{source: newSource(), times: map[convergo.Key]int{}}
		for o := range 10 {
			src.send(event(fmt.Sprint("O-", o), 1), event(fmt.Sprint("O-", o), 2))
		}
		var letters letters
		s.set(func(s *store) { s.down = convergo.Unreachable(errWeather) })
		var away atomic.Bool // its own database is away for longer
		away.Store(true)
		c, _ := running(t, s, src, inbox.Config{Alert: letters.alert}, moved(func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
			if away.Load() {
				return convergo.Unreachable(errWeather)
			}
			return s.effect(ctx, tx, e)
		}))
		pass(time.Hour)
		s.set(func(s *store) { s.down = nil })
		pass(12 * time.Hour)
		away.Store(false)
		pass(time.Hour)
		for o := range 10 {
			same(t, "applied", s.log(fmt.Sprint("O-", o)), "[1 2]")
		}
		same(t, "dead letters", len(letters.all()), 0)
		same(t, "dead", c.Stats().Dead, 0)
	})
}
