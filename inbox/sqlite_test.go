package inbox_test

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
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/sqlite"
)

// The whole of it on a real database: every second message fails at its first attempts, the consumer dies again and
// again at random points, the broker delivers again what was not acknowledged. Each effect once, each order in order.
func TestOnSQLiteCrashesAndFailuresLeaveEachEffectOnceAndInOrder(t *testing.T) {
	const orders, events = 12, 8
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "points.db"), sqlite.Options{Name: "points", Relaxed: true})
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
	update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE effect_log (id INTEGER PRIMARY KEY AUTOINCREMENT, order_no TEXT NOT NULL, version INTEGER NOT NULL)")
		return err
	})
	src := newSource()
	for n := range events {
		for o := range orders {
			e := event(fmt.Sprint("O-", o), n+1)
			src.send(e)
			if (n+o)%3 == 0 {
				src.send(e)
			}
		}
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n) == 0
	}
	attempts := map[convergo.Key]int{}
	handler := func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
		mu.Lock()
		attempts[e.Key]++
		n := attempts[e.Key]
		mu.Unlock()
		_, err := tx.ExecContext(ctx, "INSERT INTO effect_log (order_no, version) VALUES (?, ?)", e.Aggregate.ID, e.Version)
		if err == nil && n < 3 && e.Version%2 == 0 {
			return errWeather
		}
		return err
	}
	done := func() (n int) {
		update(func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM effect_log").Scan(&n)
		})
		return n
	}
	deadline := time.Now().Add(30 * time.Second)
	for lives := 0; done() < orders*events || src.unacked() > 0; lives++ {
		if time.Now().After(deadline) {
			t.Fatalf("after %d lives %d of %d effects, %d messages unacknowledged", lives, done(), orders*events, src.unacked())
		}
		c := inbox.New(db, db, src, inbox.Config{
			Consumer: "points", Batch: 10, Backoff: convergo.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond},
			Probe: func(string) {
				if chance(12) {
					runtime.Goexit()
				}
			},
		})
		c.Handle("Moved", handler)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_ = c.Run(ctx) // it ends by dying or by its time
		cancel()
		src.redeliver()
	}
	update(func(ctx context.Context, tx convergo.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT order_no, version FROM effect_log ORDER BY id")
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		last := map[string]int{}
		for rows.Next() {
			var order string
			var version int
			if err := rows.Scan(&order, &version); err != nil {
				return err
			}
			if version != last[order]+1 {
				t.Errorf("%s: version %d after %d", order, version, last[order])
			}
			last[order] = version
		}
		return rows.Err()
	})
}
