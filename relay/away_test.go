package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// stock is the n-th event of a topic that has another receiver.
func stock(n int) convergo.Event {
	e := event("S-1", n)
	e.Topic, e.Type, e.Aggregate.Type = "stock", "StockChanged", "sku"
	return e
}

// waiting is a store with two events of each of n orders, a receiver of theirs that is away, and the broker between them.
func waiting(t *testing.T, n int) (*memory.Store, *door, *broker) {
	t.Helper()
	store, d := memory.New(), &door{}
	d.away.Store(true)
	many(t, store, n)
	return store, d, &broker{answer: d.answer}
}

// many writes one event of each of n orders, and then a second one.
func many(t *testing.T, store *memory.Store, n int) {
	t.Helper()
	for v := 1; v <= 2; v++ {
		for from := 0; from < n; from += 1000 {
			var events []convergo.Event
			for o := from; o < min(from+1000, n); o++ {
				events = append(events, event(fmt.Sprintf("O-%d", o), v))
			}
			add(t, store, events...)
		}
	}
}

// door is a receiver of orders that may be away, and counts who is turned away.
type door struct {
	away    atomic.Bool
	refused atomic.Int64
	again   atomic.Int64 // those of refused that had been before
	known   sync.Map
}

func (d *door) answer(_ context.Context, e convergo.Event) error {
	if e.Topic == "order" && d.away.Load() {
		d.refused.Add(1)
		if _, before := d.known.LoadOrStore(e.Key, true); before {
			d.again.Add(1)
		}
		return errAway
	}
	return nil
}

func TestHoweverManyAggregatesWaitForAReceiverFewOfThemAreTried(t *testing.T) {
	for _, n := range []int{1, 100, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, d, b := waiting(t, n)
				r := start(store, b, relay.Config{})
				until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= int64(n) })
				for minute := 1; minute <= 10; minute++ {
					before := d.refused.Load()
					pass(30 * time.Second)
					add(t, store, stock(minute)) // another receiver's events go on
					if took := until(t, time.Minute, "the other receiver's event", b.has(minute)); took > time.Second {
						t.Errorf("minute %d: it took %v", minute, took)
					}
					pass(30 * time.Second)
					tried, most := d.refused.Load()-before, int64(150)
					if minute > 2 {
						most = 30
					}
					if tried > most {
						t.Errorf("minute %d: %d failed publishes, want %d at most", minute, tried, most)
					}
				}
				d.away.Store(false)
				if took := until(t, 10*time.Minute, "all events", b.has(2*n+10)); took > 90*time.Second {
					t.Errorf("all came %v after the receiver was back", took)
				}
				pass(time.Hour)
				wantOnce(t, b, 2*n+10)
				if s := r.Stats(); s.Dead != 0 || s.InOutage {
					t.Errorf("%+v", s)
				}
				r.stop(t)
			})
		})
	}
}

// The receiver is back and away again, in turns: each time few are released in vain.
func TestAReceiverThatComesAndGoesIsNotRunOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store, d := memory.New(), &door{}
		d.away.Store(true)
		var taken atomic.Int64
		var stays atomic.Bool
		b := &broker{answer: func(ctx context.Context, e convergo.Event) error {
			err := d.answer(ctx, e)
			if err == nil && e.Topic == "order" && taken.Add(1)%50 == 0 && !stays.Load() { // takes fifty and is away for a while
				d.away.Store(true)
			}
			return err
		}}
		many(t, store, n)
		r := start(store, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		for range 20 {
			before := d.refused.Load()
			pass(2 * time.Minute)
			open := d.again.Load()
			d.away.Store(false)
			took := until(t, time.Minute, "it took fifty", d.away.Load)
			pass(100 * time.Millisecond)
			// Two were released for each that came through, and sixteen at first. One more may have been due just now.
			if vain := d.again.Load() - open; vain > 16+50+1 {
				t.Errorf("%d were released in vain when it had taken 50", vain)
			}
			pass(time.Minute - took)
			if tried := d.refused.Load() - before; tried > 300 {
				t.Errorf("%d failed publishes in three minutes", tried)
			}
		}
		if got := taken.Load(); got < 20*50 {
			t.Errorf("it took %d events of the %d for which it was there", got, 20*50)
		}
		stays.Store(true)
		d.away.Store(false)
		until(t, 5*time.Minute, "all events", b.has(2*n))
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// What a relay knows of receivers dies with it. The places in the line do not: the next relay tries no more, and lets all go when one
// comes through.
func TestARelayThatIsStartedAnewTriesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store, d, b := waiting(t, n)
		r := start(store, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		pass(5 * time.Minute)
		for range 10 {
			before := d.refused.Load()
			r.stop(t)
			r = start(store, b, relay.Config{})
			pass(time.Minute)
			if tried := d.refused.Load() - before; tried > 60 {
				t.Errorf("%d failed publishes in the minute after a start", tried)
			}
		}
		r.stop(t)
		d.away.Store(false)
		r = start(store, b, relay.Config{})
		if took := until(t, 10*time.Minute, "all events", b.has(2*n)); took > 90*time.Second {
			t.Errorf("all came %v after the start", took)
		}
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// An event that comes while the others wait is tried: it finds out that the receiver is back.
func TestAnEventThatComesThroughLetsThoseThatWaitFollow(t *testing.T) { isNoticedSoon(t, false) }

// So does one that is tried on the news that the broker is connected again.
func TestTheNewsThatTheBrokerIsBackHasOneTriedThatWaits(t *testing.T) { isNoticedSoon(t, true) }

func isNoticedSoon(t *testing.T, byNews bool) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		want := 2 * n
		store, d, b := waiting(t, n)
		r := start(store, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		pass(time.Hour)
		d.away.Store(false)
		if byNews {
			r.BrokerBack()
		} else {
			add(t, store, event("new", 1))
			want++
		}
		if took := until(t, time.Minute, "all events", b.has(want)); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		wantOnce(t, b, want)
		r.stop(t)
	})
}

// The receiver named a time: nobody asks before, and not everybody then.
func TestATimeThatTheReceiverNamedIsKeptByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store := memory.New()
		open := time.Now().Add(time.Hour)
		var asked, early atomic.Int64
		b := &broker{answer: func(context.Context, convergo.Event) error {
			asked.Add(1)
			if asked.Load() > n && time.Now().Before(open) {
				early.Add(1)
			}
			return convergo.Unavailable(told{errors.New("asked for an hour"), open})
		}}
		many(t, store, n)
		r := start(store, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return asked.Load() >= n })
		pass(time.Until(open) - time.Second)
		if early.Load() > 0 {
			t.Errorf("asked %d times before the time", early.Load())
		}
		before := asked.Load()
		pass(time.Minute)
		if tried := asked.Load() - before; tried == 0 || tried > 300 {
			t.Errorf("%d tries in the minute after", tried)
		}
		r.stop(t)
	})
}

type told struct {
	error
	at time.Time
}

func (t told) RetryAt() time.Time { return t.at }

func TestTheStoreFailsWhileOthersAreReleasedAndTheyFollowLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		store, d, b := waiting(t, n)
		door := &faulty{Store: store}
		r := start(door, b, relay.Config{})
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		pass(10 * time.Minute)
		door.failWith(func(method string) error {
			if method == "Hasten" {
				return errDown
			}
			return nil
		})
		d.away.Store(false)
		pass(time.Minute)
		door.failWith(nil)
		if took := until(t, time.Minute, "all events", b.has(2*n)); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// Relays share the lanes and know nothing of each other. One that joins, or takes over, goes on where the places are.
func TestEachOfSeveralRelaysLetsItsOwnFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		store, d, b := waiting(t, n)
		relays := []*running{start(store, b, relay.Config{Name: "first"})}
		until(t, time.Minute, "each was tried once", func() bool { return d.refused.Load() >= n })
		pass(10 * time.Minute)
		for i := range 3 {
			relays = append(relays, start(store, b, relay.Config{Name: fmt.Sprint("joins-", i)}))
		}
		pass(5 * time.Minute)
		before := d.refused.Load()
		pass(10 * time.Minute)
		if tried := d.refused.Load() - before; tried > 10*4*10 {
			t.Errorf("%d failed publishes of four relays in ten minutes", tried)
		}
		relays[0].stop(t)
		d.away.Store(false)
		if took := until(t, 10*time.Minute, "all events", b.has(2*n)); took > 2*time.Minute {
			t.Errorf("all came %v after the receiver was back", took)
		}
		wantOnce(t, b, 2*n)
		for _, r := range relays[1:] {
			r.stop(t)
		}
	})
}

// slow takes sixteen events at a time and answers each after a while, however often it is asked.
type slow struct {
	mu       sync.Mutex
	sent     map[convergo.Key]time.Time
	underway int
}

type sent struct{ error }

func (sent) Underway() bool { return true }

func (s *slow) answer(_ context.Context, e convergo.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, was := s.sent[e.Key]
	switch {
	case was && time.Since(at) >= 1500*time.Millisecond:
		s.underway--
		return nil
	case was:
	case s.underway == 16:
		return errAway
	default:
		s.sent[e.Key] = time.Now()
		s.underway++
	}
	return convergo.Unavailable(sent{errors.New("not answered yet")})
}

// A receiver that is slow and well is no receiver that is away: what it was sent is asked for soon, and its answers let the others follow.
func TestASlowReceiverGetsEventsAsFastAsItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		store := memory.New()
		b := &broker{answer: (&slow{sent: map[convergo.Key]time.Time{}}).answer}
		many(t, store, n)
		r := start(store, b, relay.Config{})
		if took := until(t, time.Hour, "all events", b.has(2*n)); took > 150*time.Second {
			t.Errorf("it took %v, and 94 s are the least", took)
		}
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}

// A receiver that comes back after hours and takes five events a second, turning away the rest, gets about so many: that the events are
// old does not say that it is not there.
func TestAReceiverThatTakesAFewASecondIsNotAskedSeldomBecauseItsEventsAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		store, d, b := waiting(t, n)
		var mu sync.Mutex
		second, taken := time.Now(), 0
		b.answer = func(ctx context.Context, e convergo.Event) error {
			if d.answer(ctx, e) != nil {
				return errAway
			}
			mu.Lock()
			defer mu.Unlock()
			if time.Since(second) >= time.Second {
				second, taken = time.Now(), 0
			}
			if taken++; taken > 5 {
				return errAway
			}
			return nil
		}
		r := start(store, b, relay.Config{})
		pass(5 * time.Hour)
		d.away.Store(false)
		if took := until(t, 10*time.Hour, "all events", b.has(2*n)); took > 15*time.Minute {
			t.Errorf("it took %v, and 200 s are the least", took)
		}
		wantOnce(t, b, 2*n)
		r.stop(t)
	})
}
