package outside_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/sqlite"
)

// On a real database, with leases that expire by its clock: workers die at random points, the other side times out after
// or before it has done what it was asked. In the end each key has one effect and one record.
func TestOnSQLiteDyingWorkersLeaveOneEffectAndOneRecordPerKey(t *testing.T) {
	const keys = 30
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payment.db"), sqlite.Options{Name: "payment", Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	update := func(fn func(ctx context.Context, tx convergo.Tx) error) {
		t.Helper()
		if err := db.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(3, 4))
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n) == 0
	}
	other := newChannel()
	handler := outside.Handler[convergo.Tx]{
		Do: func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			if ctx.Err() != nil || chance(4) {
				return nil, errTimeout
			}
			other.mu.Lock()
			other.effects[string(c.Key)]++ // it does not deduplicate: asking first is all that prevents a second effect
			other.mu.Unlock()
			if chance(4) {
				return nil, errTimeout
			}
			return []byte("did " + string(c.Key)), nil
		},
		Query: other.Query,
		Done: func(ctx context.Context, tx convergo.Tx, c outside.Claimed, _ []byte) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO done (call_key) VALUES (?)", string(c.Key))
			return err
		},
	}
	open := func(probe convergo.Probe) *outside.Calls[convergo.Tx] {
		calls := outside.New(db.Calls(), outside.Config{
			Lease: 400 * time.Millisecond, Poll: 20 * time.Millisecond, Workers: 4, Probe: probe,
			Backoff: convergo.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond},
		})
		calls.Handle("refund", handler)
		return calls
	}
	update(func(ctx context.Context, tx convergo.Tx) error {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE done (id INTEGER PRIMARY KEY AUTOINCREMENT, call_key TEXT NOT NULL)"); err != nil {
			return err
		}
		calls := open(nil)
		for i := range keys {
			call := outside.Call{Kind: "refund", Key: convergo.Key(fmt.Sprint("RF-", i)), Group: fmt.Sprint("G-", i%10)}
			if fresh, err := calls.Schedule(ctx, tx, call); err != nil || !fresh {
				return fmt.Errorf("%s: fresh %v, %w", call.Key, fresh, err)
			}
		}
		return nil
	})
	done := func() (rows, distinct int) {
		update(func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(DISTINCT call_key) FROM done").Scan(&rows, &distinct)
		})
		return rows, distinct
	}
	ctx, stop := context.WithCancel(t.Context())
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			_ = open(func(string) {
				if chance(8) {
					runtime.Goexit()
				}
			}).Run(ctx)
		})
	}
	defer both.Wait()
	defer stop()
	for deadline := time.Now().Add(30 * time.Second); ; {
		rows, distinct := done()
		if rows != distinct {
			t.Fatalf("%d records of %d keys", rows, distinct)
		}
		if rows == keys {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d keys are done", rows, keys)
		}
		<-time.After(10 * time.Millisecond)
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	for key, n := range other.effects {
		if n != 1 {
			t.Errorf("%s has %d effects", key, n)
		}
	}
}
