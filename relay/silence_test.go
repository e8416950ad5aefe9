package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// mute is a publisher that gives no answer for what silent names; with deaf it does not even heed its context.
func mute(b *broker, deaf bool, silent func(convergo.Event) bool) relay.Publisher {
	return publisherFunc(func(ctx context.Context, events []convergo.Event) []error {
		for _, e := range events {
			if !silent(e) {
				continue
			}
			<-ctx.Done()
			if deaf {
				<-time.After(time.Hour)
			}
			return repeat(ctx.Err(), len(events))
		}
		return b.Publish(ctx, events)
	})
}

func TestCaseB06ABrokerThatFallsSilentSpendsNoAttempts(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("deaf publisher ", deaf), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, b := memory.New(), &broker{}
				var down atomic.Bool
				down.Store(true)
				var calls atomic.Int64
				r := start(store, mute(b, deaf, func(convergo.Event) bool {
					if down.Load() {
						calls.Add(1)
					}
					return down.Load()
				}), relay.Config{MaxAttempts: 3, Backoff: convergo.Backoff{Base: time.Second}})
				store.OnEvents(r.Wake)
				orders(t, store, 100, 2)
				pass(30 * time.Minute)
				if s := r.Stats(); s.Failed != 0 || s.Dead != 0 || !s.InOutage {
					t.Errorf("after half an hour of silence: %+v, want an outage, and no attempt spent", s)
				}
				if n := calls.Load(); n > 70 { // 10 s of waiting and 30 s between two, and some more at first
					t.Errorf("%d calls of a silent broker in half an hour", n)
				}
				down.Store(false)
				until(t, 3*time.Minute, "everything, by itself", b.has(200))
				r.stop(t)
				wantOnce(t, b, 200)
				if s := r.Stats(); s.Failed != 0 || s.Dead != 0 {
					t.Errorf("%+v, want no attempt spent", s)
				}
				pass(2 * time.Hour)
			})
		})
	}
}

// One event makes the broker hang, and there is other traffic: it is found, dies, and nobody else spends an attempt.
func TestAnEventThatHangsTheBrokerDiesAloneWhileTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		poison := key("O-3", 1)
		r := start(store, mute(b, false, func(e convergo.Event) bool { return e.Key == poison }),
			relay.Config{MaxAttempts: 5, Alert: func(f relay.Failure) {
				if f.Event.Key != poison {
					t.Errorf("%s is dead", f.Event.Key)
				}
			}})
		store.OnEvents(r.Wake)
		orders(t, store, 60, 1)
		const more = 120
		for n := range more { // one every ten seconds
			add(t, store, event(fmt.Sprint("later-", n), 1))
			pass(10 * time.Second)
		}
		if n := len(b.copies()); n < 59+more-3 {
			t.Errorf("%d of the others arrived by the time that the last was written, want all but the last few", n)
		}
		until(t, time.Minute, "all others", b.has(59+more))
		r.stop(t)
		wantOnce(t, b, 59+more)
		if s := r.Stats(); s.Dead != 1 || s.Failed != 4 {
			t.Errorf("%+v, want one dead event after five attempts, and no other attempts", s)
		}
	})
}

// A hung event is alone in the world, so nobody can tell that it is not the broker. What is written later must not wait longer
// than one timeout for it.
func TestTrafficThatComesDuringASilenceIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, b := memory.New(), &broker{}
		poison := key("O-3", 1)
		r := start(store, mute(b, false, func(e convergo.Event) bool { return e.Key == poison }), relay.Config{})
		store.OnEvents(r.Wake)
		add(t, store, event("O-3", 1))
		pass(20 * time.Minute) // by now probes are half a minute apart
		for n := range 20 {
			add(t, store, event(fmt.Sprint("later-", n), 1))
			until(t, 12*time.Second, "an event that came later", b.has(n+1))
			pass(7 * time.Second)
		}
		r.stop(t)
	})
}
