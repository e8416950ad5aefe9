package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
)

// database is what the program needs of a store, whatever it runs on.
type database interface {
	trade.DB
	outbox.Store[convergo.Tx]
	relay.Store
	inbox.Store[convergo.Tx]
	inbox.Parking[convergo.Tx]
	inbox.Notes[convergo.Tx]
	idempotency.Store[convergo.Tx]
	ops.Store
	Migrate(ctx context.Context, set string, migrations fs.FS) error
	Version(ctx context.Context, set string, migrations fs.FS) (have, newest int64, err error)
	OddTimes(ctx context.Context, now time.Time) ([]ops.OddTimes, error)
	OnEvents(wake func())
	OnCalls(wake func())
	Close() error
}

// opened is a service's database and what its type alone knows.
type opened struct {
	database
	calls  outside.Store[convergo.Tx]
	counts func() (commits, updates, statements int64)
	// file is set for SQLite.
	file *sqlite.Store
}

// databaseSchemes are the databases that --database can name.
func databaseSchemes() []string { return []string{"sqlite", "postgres", "mysql"} }

// storeOptions are what is asked of every store.
type storeOptions struct {
	name     string
	readOnly bool
	look     bool   // only: nothing is made or changed, not even beside a file
	setting  string // that the address is in, for what a process says that runs; empty where none runs for long
	probe    convergo.Probe
	log      *slog.Logger
}

// openStore opens the database at the address and brings the engine's tables up to date.
func openStore(ctx context.Context, name, text string, probe convergo.Probe, log *slog.Logger) (*opened, error) {
	return openStoreWith(ctx, text, storeOptions{name: name, probe: probe, log: log})
}

// openTables opens a database that has its tables, for reading only when nothing is to be changed. One that is not there, or whose tables
// are those of an older version, is left as it is: repairing is no migration, and a mistyped address is no new database.
func openTables(ctx context.Context, name, text string, change bool, log *slog.Logger) (*opened, error) {
	o := storeOptions{name: name, readOnly: true, log: log}
	store, err := openStoreWith(ctx, text, o)
	if err != nil {
		return nil, err
	}
	have, newest, err := store.Version(ctx, "engine", nil)
	if err == nil && have < newest {
		err = fmt.Errorf("%s has no tables of this version (%d of %d): use the convergo that runs there, or start it once", redacted(text), have, newest)
		if have == 0 && schemeOf(text) == "postgres" && !strings.Contains(text, "schema=") {
			err = fmt.Errorf("%w; where the tables are in a schema, name it with ?schema=NAME", err)
		}
	}
	if err == nil && !change {
		return store, nil
	}
	if err = errors.Join(err, store.Close()); err != nil {
		return nil, err
	}
	o.readOnly = false
	return openStoreWith(ctx, text, o)
}

func openStoreWith(ctx context.Context, text string, o storeOptions) (_ *opened, err error) {
	switch schemeOf(text) {
	case "sqlite":
		s, err := openDatabase(ctx, strings.TrimPrefix(text, "sqlite:"),
			sqlite.Options{Name: o.name, ReadOnly: o.readOnly || o.look, NoTrace: o.look, Probe: o.probe, Log: o.log})
		if err != nil {
			return nil, err
		}
		return &opened{database: s, calls: s.Calls(), file: s, counts: func() (int64, int64, int64) {
			c := s.Stats()
			return c.Commits, c.Updates, c.Statements
		}}, nil
	case "postgres":
		return openPostgres(ctx, text, o)
	case "mysql":
		return openMySQL(ctx, text, o)
	default:
		return nil, noAddress("database", text, databaseSchemes())
	}
}

func openPostgres(ctx context.Context, text string, o storeOptions) (*opened, error) {
	a, err := parseAddress(text)
	if err != nil {
		return nil, err
	}
	dsn, schema, pool, err := postgresDSN(a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(text), err)
	}
	s, err := postgres.Open(ctx, dsn, postgres.Options{
		Name: o.name, Schema: schema, MaxConns: orDefault(pool, defaultPool), ReadOnly: o.readOnly || o.look, Refused: a.refusedLater(o.setting, text),
		Probe: o.probe, Log: o.log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(text), advised(a.unopened(err), err))
	}
	return &opened{database: s, calls: s.Calls(), counts: func() (int64, int64, int64) {
		c := s.Stats()
		return c.Commits, c.Updates, c.Statements
	}}, nil
}

func openMySQL(ctx context.Context, text string, o storeOptions) (*opened, error) {
	a, err := parseAddress(text)
	if err != nil {
		return nil, err
	}
	cfg, pool, err := mysqlConfig(a)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(text), err)
	}
	s, err := mysql.Open(ctx, cfg.FormatDSN(), mysql.Options{
		Name: o.name, MaxConns: orDefault(pool, defaultPool), TLS: cfg.TLS, ReadOnly: o.readOnly || o.look, Refused: a.refusedLater(o.setting, text),
		Probe: o.probe, Log: o.log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(text), advised(a.unopened(err), err))
	}
	return &opened{database: s, calls: s.Calls(), counts: func() (int64, int64, int64) {
		c := s.Stats()
		return c.Commits, c.Updates, c.Statements
	}}, nil
}

// defaultPool is how many connections a service has open at most: nine services in one process stay below a server's usual 100.
const defaultPool = 8

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

func openDatabase(ctx context.Context, path string, o sqlite.Options) (*sqlite.Store, error) {
	s, err := sqlite.Open(ctx, path, o)
	if errors.Is(err, sqlite.ErrNewer) {
		return nil, fmt.Errorf("%s was written by a newer version of convergo and is left as it is; use that version: %w", filepath.Base(path), err)
	}
	return s, err
}
