package memory_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
)

var (
	_ outbox.Store[*memory.Tx]      = (*memory.Store)(nil)
	_ relay.Store                   = (*memory.Store)(nil)
	_ inbox.Store[*memory.Tx]       = (*memory.Store)(nil)
	_ inbox.Parking[*memory.Tx]     = (*memory.Store)(nil)
	_ inbox.Notes[*memory.Tx]       = (*memory.Store)(nil)
	_ idempotency.Store[*memory.Tx] = (*memory.Store)(nil)
	_ outside.Store[*memory.Tx]     = memory.Calls{}
	_ ops.Store                     = (*memory.Store)(nil)
	_ convergo.AfterCommit          = (*memory.Tx)(nil)
)

func TestAnUpdateInsideAnUpdateOfTheSameStoreIsAnErrorAndNotADeadlock(t *testing.T) {
	s := memory.New()
	err := s.Update(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		return s.Update(ctx, func(context.Context, *memory.Tx) error { return nil })
	})
	if err == nil {
		t.Fatal("the inner Update succeeded")
	}
}

func TestATransactionIsRefusedAfterItsEnd(t *testing.T) {
	s := memory.New()
	var kept *memory.Tx
	if err := s.Update(t.Context(), func(_ context.Context, tx *memory.Tx) error { kept = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	e := convergo.Event{Key: "k", Aggregate: convergo.Aggregate{Type: "order", ID: "1"}}
	if _, err := s.Insert(t.Context(), kept, []convergo.Event{e}); !errors.Is(err, memory.ErrTxDone) {
		t.Fatalf("Insert after the end: %v, want ErrTxDone", err)
	}
}

func TestAViewKeepsItsSnapshotWhileOthersCommit(t *testing.T) {
	s := memory.New()
	err := s.View(t.Context(), func(ctx context.Context, before *memory.Tx) error {
		err := s.Update(ctx, func(_ context.Context, tx *memory.Tx) error { tx.Set("n", 1); return nil })
		if got := before.Get("n"); got != 0 {
			t.Errorf("the view sees %d", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWakeUpsComeOnceACommit(t *testing.T) {
	s := memory.New()
	woken := 0
	s.OnEvents(func() { woken++ })
	add := func(fail error, keys ...convergo.Key) {
		_ = s.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			for _, k := range keys {
				e := convergo.Event{Key: k, Aggregate: convergo.Aggregate{Type: "order", ID: "1"}}
				if _, err := s.Insert(ctx, tx, []convergo.Event{e}); err != nil {
					t.Error(err)
				}
			}
			return fail
		})
	}
	add(nil, "a", "b")
	add(errors.New("no"), "c")
	add(nil, "a")
	if woken != 1 {
		t.Fatalf("woken %d times, want once: one commit made events pending", woken)
	}
}

func TestLeasesExpireByTheClockOfSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		take := func(owner string) int {
			leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Term: 30 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return len(leases)
		}
		take("killed")
		<-time.After(29 * time.Second)
		if n := take("b"); n != 0 {
			t.Fatalf("%d lanes were taken before the term had passed", n)
		}
		<-time.After(time.Second)
		if n := take("b"); n != convergo.Lanes {
			t.Fatalf("%d lanes were taken after the term, want all", n)
		}
	})
}

func TestATableIsAnOrderedMapWhoseOldVersionsStay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table, model := memory.NewIntTable(), map[int]int{}
	for step := range 20_000 {
		k := random.IntN(500)
		if random.IntN(3) == 0 {
			table = table.Del(k)
			delete(model, k)
		} else {
			table = table.Put(k, step)
			model[k] = step
		}
		if step%1000 != 0 {
			continue
		}
		old, before := table, table.Keys(0)
		table.Put(1000, 1).Del(k)
		if !slices.Equal(old.Keys(0), before) || !table.Balanced() || len(before) != len(model) {
			t.Fatalf("step %d: an old version changed, or the tree lost its balance or size", step)
		}
		if low := table.Keys(250); len(low) > 0 && low[0] < 250 || !slices.IsSorted(before) {
			t.Fatalf("step %d: keys out of order or below the bound", step)
		}
	}
}
