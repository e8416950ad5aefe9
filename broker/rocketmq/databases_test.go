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
	// waiting counts the transactions of the database that wait for another's lock; empty: only one runs at a time.
	waiting string
}

func kinds() []kind {
	onMySQL := func(name string, server func() (*testserver.MySQL, error)) kind {
		return kind{name, func(t testing.TB) string {
			t.Helper()
			return freshMySQL(t, testserver.Shared(t, &servers, name, server))
		}, func(ctx context.Context, address string) (database, error) {
			return mysql.Open(ctx, address, mysql.Options{})
		}, `SELECT COUNT(*) FROM information_schema.INNODB_TRX AS x JOIN information_schema.PROCESSLIST AS p ON p.ID = x.trx_mysql_thread_id
			WHERE x.trx_state = 'LOCK WAIT' AND p.DB = DATABASE()`}
	}
	return []kind{
		{"sqlite", freshSQLite, func(ctx context.Context, address string) (database, error) {
			return sqlite.Open(ctx, address, sqlite.Options{})
		}, ""},
		{"postgres", func(t testing.TB) string {
			t.Helper()
			return freshPostgres(t, testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres))
		}, func(ctx context.Context, address string) (database, error) {
			return postgres.Open(ctx, address, postgres.Options{})
		}, "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"},
		onMySQL("mariadb", testserver.OpenMariaDB),
		onMySQL("mysql", testserver.OpenMySQL),
	}
}

func freshSQLite(t testing.TB) string { return filepath.Join(t.TempDir(), "order.db") }

func freshPostgres(t testing.TB, server *testserver.Postgres) string {
	t.Helper()
	name, err := server.Database("order")
	if err != nil {
		t.Fatal(err)
	}
	return server.DSN(name)
}

func freshMySQL(t testing.TB, server *testserver.MySQL) string {
	t.Helper()
	name, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	return server.DSN(name)
}

// onEachDatabase runs a test on SQLite, PostgreSQL, MariaDB and MySQL, beside each other.
func onEachDatabase(t *testing.T, test func(t *testing.T, on kind)) {
	t.Helper()
	t.Parallel()
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
