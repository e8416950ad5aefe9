package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/store/sqlite"
)

// Requests that make an order, are refused after they wrote one, or break down after they wrote one, each repeated, all
// at once on a real database whose commits are shared: only the first kind leaves orders, one each.
func TestOnSQLiteOnlyAnsweredWorkIsKeptAndOnce(t *testing.T) {
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "order.db"), sqlite.Options{Name: "order", Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	err = db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE orders (order_no TEXT NOT NULL)")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := idempotency.Config{Scope: func(*http.Request) string { return "ann" }}
	handler := idempotency.Middleware[convergo.Tx](db, cfg)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idempotency.Tx[convergo.Tx](r.Context())
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO orders (order_no) VALUES (?)", r.Header.Get(idempotency.HeaderKey)); err != nil {
			t.Errorf("insert: %v", err)
		}
		switch r.URL.Path {
		case "/refused":
			http.Error(w, "out of stock", http.StatusConflict)
		case "/broken":
			panic("boom")
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "made ", r.Header.Get(idempotency.HeaderKey))
		}
	}))
	want := map[string]int{"/made": 201, "/refused": 409, "/broken": 500}
	var all sync.WaitGroup
	for i := range 40 {
		for path, status := range want {
			all.Go(func() {
				var first string
				for round := range 3 {
					r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("body"))
					r.Header.Set(idempotency.HeaderKey, fmt.Sprint("k-", i))
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					replayed := w.Header().Get(idempotency.HeaderReplayed) == "true"
					if w.Code != status || replayed != (round > 0 && status < 500) || (round > 0 && w.Body.String() != first) {
						t.Errorf("%s %d: %d %s, replayed %v", path, round, w.Code, w.Body, replayed)
					}
					first = w.Body.String()
				}
			})
		}
	}
	all.Wait()
	var rows, orders int
	err = db.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(DISTINCT order_no) FROM orders").Scan(&rows, &orders)
	})
	if err != nil || rows != 40 || orders != 40 {
		t.Errorf("%d rows of %d orders, want 40 of 40 (%v)", rows, orders, err)
	}
}
