package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
)

// A handler that forgets to close its rows, which database/sql forgives in a *sql.Tx, must not spoil the connection that all
// writers share.
func TestRowsThatNobodyClosedEndWithTheirTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true, BusyTimeout: time.Millisecond})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	exec := func(query string) error {
		return s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		})
	}
	must(t, exec("CREATE TABLE note (n INTEGER)"))
	must(t, exec("INSERT INTO note VALUES (1), (2), (3)"))
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT n FROM note")
		must(t, err)
		rows.Next()
		_ = tx.QueryRowContext(ctx, "SELECT n FROM note")
		return rows.Err()
	}))
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.QueryContext(ctx, "SELECT n FROM note")
		return err
	}))
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return s.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.QueryContext(ctx, "SELECT n FROM note")
			return err
		})
	}))
	db := foreign(t, path)
	for range 3 {
		if _, err := db.Exec("INSERT INTO note VALUES (4)"); err != nil {
			t.Fatal(err)
		}
		if err := exec("INSERT INTO note VALUES (5)"); err != nil {
			t.Fatal(err)
		}
	}
}
