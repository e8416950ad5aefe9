package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/store/storetest"
)

func TestTheSQLiteStoreObeysTheLaws(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
		return backend(t, filepath.Join(t.TempDir(), "order.db"))
	})
}

func backend(t *testing.T, path string) storetest.Backend[convergo.Tx] {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{Relaxed: true})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS law_number (name TEXT PRIMARY KEY, n INTEGER NOT NULL)")
		return err
	}))
	return storetest.Backend[convergo.Tx]{
		Store: s, Outbox: s, Relay: s, Inbox: s, Parking: s, Outside: s.Calls(), Requests: s,
		Add: func(ctx context.Context, tx convergo.Tx, name string, n int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO law_number (name, n) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n`, name, n)
			return err
		},
		Value: func(ctx context.Context, name string) (n int, err error) {
			err = s.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
				err := tx.QueryRowContext(ctx, "SELECT n FROM law_number WHERE name = ?", name).Scan(&n)
				if errors.Is(err, sql.ErrNoRows) {
					return nil
				}
				return err
			})
			return n, err
		},
		ExpireLeases: func(ctx context.Context) error {
			return s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
				for _, statement := range []string{
					"UPDATE outbox_lane SET expires_at = 1 WHERE expires_at > 1", "UPDATE outbox_relay SET expires_at = 1",
					"UPDATE outside_call SET lease_until = 1 WHERE state = 1",
				} {
					if _, err := tx.ExecContext(ctx, statement); err != nil {
						return err
					}
				}
				return nil
			})
		},
		OnEvents: s.OnEvents, OnCalls: s.OnCalls,
		Reopen: func(t *testing.T) storetest.Backend[convergo.Tx] {
			t.Helper()
			must(t, s.Close())
			return backend(t, path)
		},
	}
}
