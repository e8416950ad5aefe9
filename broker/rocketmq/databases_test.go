package rocketmq

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testserver"
)

// database is a store that a service can have.
type database interface {
	Store
	outbox.Store[convergo.Tx]
	View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	Close() error
}

// kind is a kind of database that local transactions can be in. The memory store is none: it speaks no SQL.
type kind struct {
	name string
	// fresh is the address of an empty database on a server that the tests share.
	fresh func(t testing.TB) string
	open  func(ctx context.Context, address string) (database, error)
	// waiting counts the decisions of the database that wait for another's row; empty: only one transaction runs at a time. (InnoDB's
	// own list of what waits is not made anew while somebody keeps looking.)
	waiting string
}

func kinds() []kind {
	onMySQL := func(name string) kind {
		return kind{name, func(t testing.TB) string {
			t.Helper()
			fresh, err := sharedMySQL(t, name).Database()
			if err != nil {
				t.Fatal(err)
			}
			return sharedMySQL(t, name).DSN(fresh)
		}, func(ctx context.Context, address string) (database, error) {
			return mysql.Open(ctx, address, mysql.Options{})
		}, `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE DB = DATABASE() AND INFO LIKE 'INSERT INTO rocketmq_decision%'`}
	}
	return []kind{
		{"sqlite", func(t testing.TB) string {
			t.Helper()
			return filepath.Join(t.TempDir(), "order.db")
		}, func(ctx context.Context, address string) (database, error) {
			return sqlite.Open(ctx, address, sqlite.Options{})
		}, ""},
		{"postgres", func(t testing.TB) string {
			t.Helper()
			fresh, err := sharedPostgres(t).Database("order")
			if err != nil {
				t.Fatal(err)
			}
			return sharedPostgres(t).DSN(fresh)
		}, func(ctx context.Context, address string) (database, error) {
			return postgres.Open(ctx, address, postgres.Options{})
		}, "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"},
		onMySQL("mariadb"),
		onMySQL("mysql"),
	}
}

func sharedPostgres(t testing.TB) *testserver.Postgres {
	t.Helper()
	return testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
}

func sharedMySQL(t testing.TB, name string) *testserver.MySQL {
	t.Helper()
	open := testserver.OpenMySQL
	if name == "mariadb" {
		open = testserver.OpenMariaDB
	}
	return testserver.Shared(t, &servers, name, open)
}

// onEachDatabase runs a test on SQLite, PostgreSQL, MariaDB and MySQL, beside each other and beside other tests.
func onEachDatabase(t *testing.T, test func(t *testing.T, on kind)) {
	t.Helper()
	t.Parallel()
	aloneOnEachDatabase(t, test)
}

// aloneOnEachDatabase is onEachDatabase while no other test runs.
func aloneOnEachDatabase(t *testing.T, test func(t *testing.T, on kind)) {
	t.Helper()
	for _, on := range kinds() {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			test(t, on)
		})
	}
}

// openOn opens a database, which is closed with the test.
func openOn(t *testing.T, on kind, address string) database {
	t.Helper()
	db, err := on.open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// count is the one number that a query answers.
func count(t *testing.T, db database, query string, args ...any) (n int) {
	t.Helper()
	if err := db.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
