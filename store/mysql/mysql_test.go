package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// kinds are the servers that every test here runs on.
var kinds = []struct {
	name string
	open func() (*testserver.MySQL, error)
}{
	{"mariadb", testserver.OpenMariaDB},
	{"mysql", testserver.OpenMySQL},
}

// onBoth runs a test on MariaDB and on MySQL.
func onBoth(t *testing.T, test func(t *testing.T, server *testserver.MySQL)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { test(t, testserver.Shared(t, &servers, k.name, k.open)) })
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// fresh is the DSN of an empty database.
func fresh(t testing.TB, server *testserver.MySQL) string {
	t.Helper()
	name, err := server.Database()
	must(t, err)
	return server.DSN(name)
}

// open opens a store on the database; it is closed with the test.
func open(t testing.TB, dsn string, opts mysql.Options) *mysql.Store {
	t.Helper()
	s, err := mysql.Open(context.Background(), dsn, opts)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// raw is a pool of another program's: none of the store's settings.
func raw(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func TestTheMySQLStoreObeysTheLaws(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
			dsn := fresh(t, server)
			db := raw(t, dsn)
			_, err := db.ExecContext(t.Context(), "CREATE TABLE law_number (name VARCHAR(50) PRIMARY KEY, n BIGINT NOT NULL)")
			must(t, err)
			return backend(t, dsn, mysql.Options{})
		})
	})
}

func backend(t *testing.T, dsn string, opts mysql.Options) storetest.Backend[convergo.Tx] {
	t.Helper()
	s := open(t, dsn, opts)
	return storetest.Backend[convergo.Tx]{
		Store: s, Outbox: s, Relay: s, Inbox: s, Parking: s, Outside: s.Calls(), Requests: s, RowLocks: true,
		Add: func(ctx context.Context, tx convergo.Tx, name string, n int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO law_number (name, n) VALUES (?, ?) ON DUPLICATE KEY UPDATE n = n + VALUES(n)`, name, n)
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
		Conflict: func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock'")
			return err
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
			return backend(t, dsn, opts)
		},
	}
}
