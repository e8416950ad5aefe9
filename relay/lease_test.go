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

// The first relay's renewal gives half of its lanes to the second one, and the answer that says so is lost. Its old leases
// look good to it for many seconds more.
func TestARelayThatDoesNotKnowWhichLanesItGaveAwayWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New()
		var losing atomic.Bool
		store := &faulty{Store: inner, lose: func(relay.LeaseRequest) bool { return losing.Load() }}
		b := &broker{before: func(context.Context, []convergo.Event) { <-time.After(50 * time.Millisecond) }}
		first := start(store, b, relay.Config{Poll: 50 * time.Millisecond})
		pass(time.Second)
		second := start(inner, b, relay.Config{Poll: 50 * time.Millisecond})
		losing.Store(true)
		for v := 1; v <= 60; v++ {
			add(t, inner, events200(v)...)
			pass(200 * time.Millisecond)
		}
		losing.Store(false)
		until(t, time.Minute, "all events", b.has(60*200))
		pass(time.Minute)
		wantOnce(t, b, 60*200)
		if a, z := first.Stats().Lanes, second.Stats().Lanes; a != 32 || z != 32 {
			t.Errorf("the relays hold %d and %d lanes, want 32 each", a, z)
		}
		first.stop(t)
		second.stop(t)
	})
}

func events200(version int) (events []convergo.Event) {
	for o := range 200 {
		events = append(events, event(fmt.Sprintf("O-%d", o), version))
	}
	return events
}
