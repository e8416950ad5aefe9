package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

// The whole way on a real database and the real clock: three relays, a broker that fails at random, relays that leave
// and come while events are written.
func TestOrderHoldsOnSQLiteWhileRelaysComeAndGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := &broker{answer: func(context.Context, convergo.Event) error {
		if rand.IntN(5) == 0 {
			return errors.New("again")
		}
		return nil
	}}
	cfg := relay.Config{
		Batch: 32, Lease: 3 * time.Second, Poll: 20 * time.Millisecond, MaxAttempts: 1000,
		Backoff: convergo.Backoff{Base: 2 * time.Millisecond, Cap: 50 * time.Millisecond},
	}
	relays := []*running{start(store, b, cfg), start(store, b, cfg), start(store, b, cfg)}
	box := outbox.New(store, outbox.Config{})
	const orderCount, each = 40, 12
	for v := 1; v <= each; v++ {
		err := store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			for o := range orderCount {
				if err := box.Add(ctx, tx, event(fmt.Sprintf("O-%d", o), v)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if v%4 == 0 {
			relays[v/4-1].stop(t)
			relays[v/4-1] = start(store, b, cfg)
		}
	}
	for !b.has(orderCount * each)() {
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d events arrived", len(b.keys()), orderCount*each)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, r := range relays {
		r.stop(t)
		if s := r.Stats(); s.LeaseLosses != 0 {
			t.Errorf("%+v", s)
		}
	}
	wantOnce(t, b, orderCount*each)
}
