package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

// write is what another program does: it knows nothing of an event's rules.
func write(t *testing.T, store *memory.Store, events ...convergo.Event) {
	t.Helper()
	err := store.Update(context.Background(), func(ctx context.Context, tx *memory.Tx) error {
		for i := range events {
			events[i].Key, events[i].MessageID = key(events[i].Aggregate.ID, int(events[i].Version)), fmt.Sprint("m", i)
		}
		_, err := store.Insert(ctx, tx, events)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tooLarge(order string, n int) convergo.Event {
	e := event(order, n)
	e.Payload = make([]byte, convergo.MaxPayloadBytes+1)
	return e
}

func TestCaseB07AnEventThatIsTooLargeToBeReadDiesInItsTurnAndIsNeverSent(t *testing.T) {
	for _, policy := range []relay.Policy{relay.HoldAggregate, relay.SkipEvent} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			write(t, store, event("A", 1), tooLarge("A", 2), event("A", 3), event("B", 1), tooLarge("C", 1), tooLarge("C", 2), event("C", 3))
			var failed atomic.Bool
			b := &broker{answer: func(_ context.Context, e convergo.Event) error {
				if e.Aggregate.ID == "A" && e.Version == 1 && failed.CompareAndSwap(false, true) {
					return errors.New("not now")
				}
				if len(e.Payload) == 0 || len(e.Payload) > convergo.MaxPayloadBytes {
					t.Errorf("%s was sent with %d bytes", e.Key, len(e.Payload))
				}
				return nil
			}}
			var dead []relay.Failure
			var mu sync.Mutex // workers alert side by side
			r := start(store, b, relay.Config{OnDead: policy, Alert: func(f relay.Failure) {
				mu.Lock()
				defer mu.Unlock()
				if f.Event.Aggregate.ID == "A" && !b.copiesHave(key("A", 1)) {
					t.Error("A's second event died before its first was sent")
				}
				dead = append(dead, f)
			}})
			pass(time.Hour)
			stats := r.Stats()
			r.stop(t)
			wantDead, wantSent := 2, 2
			if policy == relay.SkipEvent {
				wantDead, wantSent = 3, 4
			}
			wantOnce(t, b, wantSent)
			if len(dead) != wantDead || stats.Dead != int64(wantDead) || stats.Outages != 0 {
				t.Errorf("%d are dead, want %d; %+v", len(dead), wantDead, stats)
			}
			for _, f := range dead {
				if f.Place != "relay.read" || !strings.Contains(f.Error, "524289") || !strings.Contains(f.Error, "524288") || f.Attempts != 0 {
					t.Errorf("%s died at %s after %d attempts: %s", f.Event.Key, f.Place, f.Attempts, f.Error)
				}
			}
		})
	}
}

func (b *broker) copiesHave(k convergo.Key) bool { return b.copies()[k] > 0 }

// What is too large says nothing about the broker, and must not stand between it and what can be sent.
func TestEventsThatAreTooLargeAreBuriedInAnOutageAndDoNotProlongIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var down atomic.Bool
		down.Store(true)
		b := &broker{answer: func(context.Context, convergo.Event) error {
			if down.Load() {
				return convergo.Unreachable(errors.New("no broker"))
			}
			return nil
		}}
		add(t, store, event("first", 1))
		var last, atOnce atomic.Int64
		r := start(store, b, relay.Config{Alert: func(relay.Failure) {
			if now := time.Now().UnixMilli(); now-last.Swap(now) < 100 {
				atOnce.Add(1)
			}
		}})
		until(t, time.Minute, "the outage", func() bool { return r.Stats().InOutage })
		var bad, good []convergo.Event
		for i := range 200 {
			bad, good = append(bad, tooLarge(fmt.Sprint("O-", i), 1)), append(good, event(fmt.Sprint("P-", i), 1))
		}
		write(t, store, bad...)
		pass(2 * time.Minute)
		stats := r.Stats()
		if n := atOnce.Load(); n < 10 || !stats.InOutage || stats.Sent != 0 {
			t.Errorf("after two minutes %d died right after another: %+v", n, stats)
		}
		write(t, store, good...)
		down.Store(false)
		until(t, 40*time.Second, "all that can be sent", b.has(201))
		until(t, 10*time.Second, "all the others", func() bool { return r.Stats().Dead == 200 })
		r.stop(t)
		wantOnce(t, b, 201)
	})
}
