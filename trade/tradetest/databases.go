package tradetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testserver"
	"github.com/convergo/convergo/trade"
)

// Databases are where the tests of one package run: SQLite, and a server each of PostgreSQL, MySQL and MariaDB, started by the
// first test that needs it. The servers do not sync: what a power cut does is tested elsewhere. A package that has them needs
//
//	var databases tradetest.Databases
//
//	func TestMain(m *testing.M) { os.Exit(databases.Run(m)) }
type Databases struct {
	servers testserver.Pool
	mu      sync.Mutex
	made    int
	free    map[string][]string // by the kind's name: what was made, and emptied after its last bench
}

// Run runs the tests, then ends the servers, and returns the exit code.
func (d *Databases) Run(m *testing.M) int { return d.servers.Run(m) }

// Each runs the test on every database, as a subtest with its name: TestOneThing/mysql.
func (d *Databases) Each(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	d.each(t, kinds(), test)
}

func (d *Databases) each(t *testing.T, kinds []kind, test func(t *testing.T, db Database)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if k.dsn != nil {
				k.dsn(t, &d.servers) // starts it: where it is not installed the subtest is skipped before anything is done
			}
			test(t, Database{Name: k.name, Locks: k.dsn != nil, kind: k, from: d})
		})
	}
}

// EachServer runs the test on every database that locks rows: on which two transactions can be open at once.
func (d *Databases) EachServer(t *testing.T, test func(t *testing.T, db Database)) {
	t.Helper()
	d.each(t, kinds()[1:], test)
}

// SQLite is for tests of what only it can tell, such as its plans.
func (d *Databases) SQLite() Database { return Database{Name: "sqlite", kind: kinds()[0], from: d} }

// Database is one of the databases that Each runs a test on.
type Database struct {
	Name string
	// Locks: transactions run beside each other and lock rows. On SQLite they run one after another.
	Locks bool

	kind kind
	from *Databases
}

// Check is rapid.Check. A server gets a quarter of the rounds, and so does SQLite under the race detector, which makes it ten times
// slower: with four databases a property is then played a hundred times all the same.
func (db Database) Check(t *testing.T, property func(r *rapid.T)) {
	t.Helper()
	rounds, failed := 0, false
	rapid.Check(t, func(r *rapid.T) {
		if rounds++; (db.Locks || raced) && rounds > 25 && !failed {
			return
		}
		before := failed // once it has failed, all the rounds that look for a simpler failure are played
		failed = true    // also by a panic
		property(r)
		failed = before || r.Failed()
	})
}

// Store is what a bench needs of a database.
type Store interface {
	trade.DB
	outbox.Store[convergo.Tx]
	inbox.Store[convergo.Tx]
	idempotency.Store[convergo.Tx]
	Migrate(ctx context.Context, set string, fsys fs.FS) error
	Close() error
}

// kind is how one kind of database is had.
type kind struct {
	name string
	// dsn is the server's, started if need be; nil for one in a file.
	dsn func(t testing.TB, servers *testserver.Pool) string
	// open opens the place of that name, made if need be, and tells the outgoing calls' store with it.
	open func(ctx context.Context, dsn, place string) (Store, outside.Store[convergo.Tx], error)
	// tables lists the tables of the open place.
	tables string
}

// kinds are SQLite first, then the servers.
func kinds() []kind {
	return []kind{
		{name: "sqlite", open: openSQLite},
		{
			name: "postgres", open: openPostgres,
			tables: "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY table_name",
			dsn: func(t testing.TB, servers *testserver.Pool) string {
				t.Helper()
				open := func() (*testserver.Postgres, error) {
					return testserver.OpenPostgres("fsync=off", "full_page_writes=off")
				}
				return testserver.Shared(t, servers, "postgres", open).DSN("postgres")
			},
		},
		ofMySQL("mysql", testserver.OpenMySQLWith("--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF", "--performance-schema=OFF")),
		ofMySQL("mariadb", testserver.OpenMariaDBWith("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF")),
	}
}

func ofMySQL(name string, open func() (*testserver.MySQL, error)) kind {
	return kind{
		name: name, open: openMySQL,
		tables: "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name",
		dsn: func(t testing.TB, servers *testserver.Pool) string {
			t.Helper()
			return testserver.Shared(t, servers, name, open).DSN("")
		},
	}
}

func openSQLite(ctx context.Context, _, file string) (Store, outside.Store[convergo.Tx], error) {
	s, err := sqlite.Open(ctx, file, sqlite.Options{Name: "bench", Relaxed: true})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Calls(), nil
}

func openPostgres(ctx context.Context, dsn, schema string) (Store, outside.Store[convergo.Tx], error) {
	s, err := postgres.Open(ctx, dsn, postgres.Options{Name: "bench", Schema: schema, Notify: -1})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Calls(), nil
}

func openMySQL(ctx context.Context, dsn, database string) (Store, outside.Store[convergo.Tx], error) {
	if err := mysql.CreateDatabase(ctx, dsn+database, mysql.Options{}); err != nil {
		return nil, nil, err
	}
	s, err := mysql.Open(ctx, dsn+database, mysql.Options{Name: "bench"})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Calls(), nil
}

// open opens an empty place for one bench: a new file, or a schema or database of the server. migrate makes the service's tables in
// it. When the test has ended a server's place is cleared for the next bench: to make tables takes a server longer than most tests do.
func (db Database) open(t testing.TB) (store Store, calls outside.Store[convergo.Tx], migrate func(sets map[string]fs.FS)) {
	t.Helper()
	ctx := context.Background()
	dsn, place := "", filepath.Join(t.TempDir(), "bench.db")
	if db.Locks {
		dsn, place = db.kind.dsn(t, &db.from.servers), db.from.take(db.Name)
	}
	store, calls, err := db.kind.open(ctx, dsn, place)
	if err != nil {
		t.Fatal(err)
	}
	var seeds seeds
	t.Cleanup(func() {
		var failed error
		if seeds != nil {
			failed = db.kind.clear(ctx, store, seeds)
		}
		if failed = errors.Join(failed, store.Close()); failed != nil {
			t.Errorf("put the bench's database away: %v", failed)
		} else if seeds != nil {
			db.from.give(db.Name, place)
		}
	})
	return store, calls, func(sets map[string]fs.FS) {
		t.Helper()
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			if err := store.Migrate(ctx, name, sets[name]); err != nil {
				t.Fatal(err)
			}
		}
		if db.Locks {
			if seeds, err = db.kind.rows(ctx, store); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// take is the name of a place that no bench has open.
func (d *Databases) take(kind string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.free[kind]); n > 0 {
		place := d.free[kind][n-1]
		d.free[kind] = d.free[kind][:n-1]
		return place
	}
	d.made++
	return fmt.Sprintf("bench_%d", d.made)
}

func (d *Databases) give(kind, place string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free == nil {
		d.free = map[string][]string{}
	}
	d.free[kind] = append(d.free[kind], place)
}
