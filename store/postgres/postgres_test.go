package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

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

func shared(t testing.TB) *testserver.Postgres {
	t.Helper()
	return testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
}

// open opens a store in a schema of its own, "schema" when opts names none.
func open(t testing.TB, opts postgres.Options) *postgres.Store {
	t.Helper()
	server := shared(t)
	if opts.Schema == "" {
		opts.Schema = server.Name("schema")
	}
	return openOn(t, server.DSN("postgres"), opts)
}

func openOn(t testing.TB, dsn string, opts postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), dsn, opts)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestThePostgresStoreObeysTheLawsInASchema(t *testing.T) {
	server := shared(t)
	storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
		return backend(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("order")})
	})
}

func TestThePostgresStoreObeysTheLawsInADatabaseOfItsOwn(t *testing.T) {
	server := shared(t)
	storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
		name, err := server.Database("laws")
		must(t, err)
		return backend(t, server.DSN(name), postgres.Options{})
	})
}

// pooler is PgBouncer in transaction mode with at most size connections to the shared server.
func pooler(t testing.TB, size int) *testserver.PgBouncer {
	t.Helper()
	server := shared(t)
	return testserver.Shared(t, &servers, fmt.Sprint("pgbouncer-", size), func() (*testserver.PgBouncer, error) {
		return testserver.OpenPgBouncer(server, size)
	})
}

func TestThePostgresStoreObeysTheLawsThroughPgBouncerInTransactionMode(t *testing.T) {
	server, bouncer := shared(t), pooler(t, 40)
	storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
		return backend(t, bouncer.DSN("postgres"), postgres.Options{Schema: server.Name("pooled"), ListenDSN: server.DSN("postgres")})
	})
}

// One connection to the server for all stores together, and one in each store.
func TestThePostgresStoreObeysTheLawsWithOneConnectionThroughPgBouncer(t *testing.T) {
	server, bouncer := shared(t), pooler(t, 1)
	storetest.Run(t, func(t *testing.T) storetest.Backend[convergo.Tx] {
		b := backend(t, bouncer.DSN("postgres"), postgres.Options{Schema: server.Name("one"), MaxConns: 1})
		b.RowLocks = false // two transactions cannot be under way at once
		return b
	})
}

func backend(t *testing.T, dsn string, opts postgres.Options) storetest.Backend[convergo.Tx] {
	t.Helper()
	s := openOn(t, dsn, opts)
	exec(t, s, "CREATE TABLE IF NOT EXISTS law_number (name TEXT PRIMARY KEY, n INTEGER NOT NULL)")
	return storetest.Backend[convergo.Tx]{
		Store: s, Outbox: s, Relay: s, Inbox: s, Parking: s, Outside: s.Calls(), Requests: s, RowLocks: true,
		Add: func(ctx context.Context, tx convergo.Tx, name string, n int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO law_number (name, n) VALUES (?, ?)
				ON CONFLICT (name) DO UPDATE SET n = law_number.n + excluded.n`, name, n)
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
		Conflict: func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "DO $$ BEGIN RAISE EXCEPTION 'serialize' USING ERRCODE = '40001'; END $$")
			return err
		},
		OnEvents: s.OnEvents, OnCalls: s.OnCalls,
		Reopen: func(t *testing.T) storetest.Backend[convergo.Tx] {
			t.Helper()
			must(t, s.Close())
			return backend(t, dsn, opts)
		},
	}
}

// exec runs statements in transactions of their own.
func exec(t testing.TB, s *postgres.Store, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
			return nil
		}))
	}
}
