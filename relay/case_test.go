package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

func TestCaseB03TwentyRelaysSendEachEventOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		orders(t, store, 300, 3)
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(3 * time.Second) }}
		var relays []*running
		for range 20 {
			r := start(store, b, relay.Config{})
			r.Wake()
			relays = append(relays, r)
		}
		until(t, time.Minute, "900 events", b.has(900))
		pass(time.Minute)
		wantOnce(t, b, 900)
		var sent int64
		for _, r := range relays {
			sent += r.Stats().Sent
			if n := r.Stats().Lanes; n > 4 {
				t.Errorf("a relay of 20 holds %d lanes, its fair share is 4", n)
			}
			r.stop(t)
		}
		if sent != 900 {
			t.Errorf("the relays settled %d events, want 900", sent)
		}
	})
}

func TestCaseB06AnOutageSpendsNoAttemptsAndProbesOneEventAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		orders(t, store, 200, 1)
		var down atomic.Bool
		down.Store(true)
		b := &broker{answer: func(context.Context, convergo.Event) error {
			if down.Load() {
				return convergo.Unreachable(errors.New("connection refused"))
			}
			return nil
		}}
		r := start(store, b, relay.Config{MaxAttempts: 10})
		pass(time.Second / 2)
		begun := len(b.callSizes())
		pass(30 * time.Minute)
		probes := b.callSizes()[begun:]
		for _, size := range probes {
			if size != 1 {
				t.Errorf("a probe sent %d events, want 1", size)
			}
		}
		if least, most := 60, 90; len(probes) < least || len(probes) > most {
			t.Errorf("%d probes in 30 minutes, want %d to %d (one per interval of 24 to 30 s)", len(probes), least, most)
		}
		if s := r.Stats(); !s.InOutage || s.Outages != 1 || s.Dead != 0 || s.Failed != 0 || s.LastError == "" {
			t.Errorf("during the outage: %+v", s)
		}
		down.Store(false)
		took := until(t, 31*time.Second, "the backlog", b.has(200))
		t.Logf("%d probes; the backlog was through %v after the broker came back", len(probes), took)
		wantOnce(t, b, 200)
		r.stop(t)
		if s := r.Stats(); s.InOutage || s.Dead != 0 || s.Failed != 0 || s.Sent != 200 {
			t.Errorf("after the outage: %+v", s)
		}
	})
}

func TestCaseB07AnOversizeEventIsDeadAfterOneAttemptAndItsNeighboursAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		large := event("m-2", 1)
		large.Payload = make([]byte, 1200)
		small := []convergo.Event{event("m-1", 1), event("m-3", 1)}
		add(t, store, small[0], large, small[1])
		var attempts atomic.Int64
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			if n := len(e.Payload); n > 1000 {
				attempts.Add(1)
				return convergo.Permanent(fmt.Errorf("%d > 1000", n))
			}
			return nil
		}}
		var dead []relay.Failure
		r := start(store, b, relay.Config{Alert: func(f relay.Failure) { dead = append(dead, f) }})
		until(t, 100*time.Millisecond, "the neighbours", b.has(2))
		pass(time.Hour)
		r.stop(t)
		wantOnce(t, b, 2)
		if len(dead) != 1 || dead[0].Event.Key != key("m-2", 1) || !strings.Contains(dead[0].Error, "1200 > 1000") {
			t.Errorf("dead: %+v, want m-2 because 1200 > 1000", dead)
		}
		if attempts.Load() != 1 {
			t.Errorf("%d attempts at the oversize event, want 1", attempts.Load())
		}
	})
}

func TestCaseB08AShutdownBetweenConfirmationAndSettlementSendsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		orders(t, store, 50, 1)
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(100 * time.Millisecond) }}
		var confirmed atomic.Int64
		seventeenth := make(chan struct{})
		probe := func(point string) {
			if point == "relay.published" && confirmed.Add(1) == 17 {
				close(seventeenth)
				<-time.After(time.Millisecond) // the context is cancelled before the settlement begins
			}
		}
		r := start(store, b, relay.Config{Batch: 1, Workers: 1, Probe: probe})
		began := time.Now()
		<-seventeenth
		r.cancel()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 17*100*time.Millisecond+time.Second {
			t.Errorf("the relay stopped after %v", took)
		}
		if n := len(b.keys()); n < 17 || n == 50 {
			t.Fatalf("%d events before the stop, want 17 or a few more", n)
		}
		second := start(store, b, relay.Config{})
		until(t, 10*time.Second, "all 50", b.has(50))
		pass(time.Minute)
		second.stop(t)
		wantOnce(t, b, 50)
	})
}

// B11: order O-7 has three events, O-8 has one.
func b11(t *testing.T) *memory.Store {
	store := memory.New()
	add(t, store, event("O-7", 1), event("O-7", 2), event("O-7", 3), event("O-8", 1))
	return store
}

func TestCaseB11ARetryIsNotOvertakenAndOthersDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, failures := b11(t), 0
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			if e.Key == key("O-7", 1) && failures < 2 {
				failures++
				return errors.New("timed out")
			}
			return nil
		}}
		r := start(store, b, relay.Config{Workers: 4, Batch: 10})
		until(t, 100*time.Millisecond, "O-8", b.has(1))
		if got := b.keys(); len(got) != 1 || got[0] != key("O-8", 1) {
			t.Errorf("at first came %v, want O-8 only", got)
		}
		until(t, 10*time.Second, "all", b.has(4))
		r.stop(t)
		wantOnce(t, b, 4)
		if s := r.Stats(); s.Failed != 2 {
			t.Errorf("%d failed attempts, want 2: those behind the failed one spend none", s.Failed)
		}
	})
}

func TestCaseB11APoisonEventHoldsItsAggregateOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := b11(t)
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			if e.Key == key("O-7", 1) {
				return convergo.Permanent(errors.New("poison"))
			}
			return nil
		}}
		r := start(store, b, relay.Config{Workers: 4, Batch: 10})
		pass(time.Hour)
		add(t, store, event("O-7", 4), event("O-8", 2)) // later ones meet a held aggregate
		pass(time.Hour)
		r.stop(t)
		if got := fmt.Sprint(b.keys()); got != fmt.Sprint([]convergo.Key{key("O-8", 1), key("O-8", 2)}) {
			t.Errorf("came %v, want O-8 only: O-7 waits for a person", got)
		}
		if s := r.Stats(); s.Dead != 1 || s.Failed != 0 {
			t.Errorf("%+v, want one dead event and no other failure", s)
		}
	})
}

func TestCaseB11APoisonEventIsSkippedWhenItsTopicOrTheRelaySaysSo(t *testing.T) {
	for name, cfg := range map[string]relay.Config{
		"topic": {Topics: map[string]relay.TopicPolicy{"order": {MaxAttempts: 3, OnDead: relay.SkipEvent}}},
		"relay": {MaxAttempts: 3, OnDead: relay.SkipEvent},
	} {
		t.Run(name, func(t *testing.T) { poisonIsSkipped(t, cfg) })
	}
}

func poisonIsSkipped(t *testing.T, cfg relay.Config) {
	synctest.Test(t, func(t *testing.T) {
		store := b11(t)
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			if e.Key == key("O-7", 1) {
				return errors.New("poison, but nobody says so")
			}
			return nil
		}}
		r := start(store, b, cfg)
		until(t, 10*time.Second, "the three others", b.has(3))
		r.stop(t)
		wantOnce(t, b, 3)
		if s := r.Stats(); s.Dead != 1 || s.Failed != 2 {
			t.Errorf("%+v, want dead after three attempts", s)
		}
	})
}

func TestCaseB11AHangDelaysOthersByOneTimeoutAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := b11(t)
		hangs := 0
		b := &broker{}
		b.before = func(_ context.Context, events []convergo.Event) {
			for _, e := range events {
				if e.Key == key("O-7", 1) && hangs < 2 {
					hangs++
					<-time.After(time.Minute) // whatever its context says
				}
			}
		}
		r := start(store, b, relay.Config{Workers: 4, Batch: 10})
		until(t, 15*time.Second, "O-8", func() bool { return b.copies()[key("O-8", 1)] > 0 })
		until(t, 2*time.Minute, "O-7's last", func() bool { return b.copies()[key("O-7", 3)] > 0 })
		pass(2 * time.Minute)
		r.stop(t)
		// The two calls that were given up come to their end after a minute and send the first event again: late copies are
		// what a consumer's inbox is for. The order of first arrivals stands.
		if where := b.inversion(); where != "" {
			t.Error(where)
		}
		if n := len(b.copies()); n != 4 {
			t.Errorf("%d of 4 events arrived", n)
		}
	})
}

func TestCaseB13WhatAKilledRelayHeldGoesOnElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 30 * time.Second
		store := memory.New()
		doomed := event("O-last", 1)
		doomed.MaxAttempts = 1 // its next attempt is its last
		add(t, store, event("O-1", 1), event("O-2", 1), event("O-3", 1), event("O-4", 1), doomed, event("O-last", 2))

		killed := kill(t, store, lease)
		b := &broker{answer: func(_ context.Context, e convergo.Event) error {
			if e.Key == key("O-last", 1) {
				return errors.New("fails again")
			}
			return nil
		}}
		second := start(store, b, relay.Config{Lease: lease, Topics: map[string]relay.TopicPolicy{"order": {OnDead: relay.SkipEvent}}})
		took := until(t, lease*3/2, "the four others and the one behind the dead one", b.has(5))
		t.Logf("taken over after %v", took)
		second.stop(t)
		killed()
		wantOnce(t, b, 5)
		if s := second.Stats(); s.Dead != 1 {
			t.Errorf("%+v, want one dead", s)
		}
	})
}

// kill starts a relay and, while its first batches are being published, takes it away from the store and the broker: it
// finishes nothing and gives nothing back, as after SIGKILL. It returns a function that removes the corpse.
func kill(t *testing.T, store relay.Store, lease time.Duration) (bury func()) {
	t.Helper()
	dead := &faulty{Store: store}
	publishing := make(chan struct{}, 16)
	burial := make(chan struct{})
	corpse := start(dead, &broker{before: func(context.Context, []convergo.Event) {
		publishing <- struct{}{}
		<-burial
	}, answer: func(context.Context, convergo.Event) error { return errors.New("killed") }}, relay.Config{Lease: lease})
	<-publishing
	dead.failWith(func(string) error { return errDown })
	return func() {
		corpse.cancel()
		close(burial)
		<-corpse.done
	}
}
