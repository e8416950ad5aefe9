// Package mysql keeps the engine's rows, and a service's own, in a database of MySQL (8.0.17 and later, 9) or MariaDB (10.6 and
// later), InnoDB. Every writing transaction is READ COMMITTED, set for the store's own sessions and never for the server; one that the
// database aborts to end a deadlock is run again. Texts are compared as bytes, whatever the server's collation is.
//
// What a commit survives is the server's to say: Check tells of settings under which it can lose one.
package mysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

// Errors that a caller can tell apart with errors.Is.
var (
	// ErrNewer: a newer version of the program has changed the database's tables. Nothing was written.
	ErrNewer = errors.New("the database was written by a newer version of this program: use that version or a copy made before it")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrTxDone: a transaction was used after the function that it was given to had returned.
	ErrTxDone = errors.New("transaction is over")
	// ErrReadOnly: the store was opened with Options.ReadOnly.
	ErrReadOnly = errors.New("store is open for reading only")
	// ErrAborted: the database has rolled the transaction back, to end a deadlock or because a lock could not be had. Update
	// tries again by itself; it returns this when the tries are used up, and inside a transaction every later statement does.
	ErrAborted = errors.New("the database has aborted the transaction, nothing was kept")
	// ErrUnsupported: the server is too old, or none that is known.
	ErrUnsupported = errors.New("server is not supported: MySQL 8.0.17 or MariaDB 10.6 is needed")
)

// Options of a store; the zero value is fit for production.
type Options struct {
	// Name is the service's name in errors and probe points ("order.commit.before"). Default: the database's name.
	Name string
	// MaxConns is how many connections are open at most. Default 32.
	MaxConns int
	// LockWait is how long a statement waits for a row that another transaction has locked, in whole seconds. Then the
	// transaction is rolled back and tried again. Default 10 s.
	LockWait time.Duration
	// CommitTimeout is how long the answer to a COMMIT is waited for, whatever the caller's context says. Then the connection is
	// closed, and nobody knows whether the transaction was kept. Default 30 s.
	CommitTimeout time.Duration
	// TLS of the connections; it goes before the tls parameter of the DSN. Default: what the DSN says.
	TLS *tls.Config
	// ReadOnly opens an existing database for View and the reading methods only. Nothing is migrated.
	ReadOnly bool
	// Refused is asked, once the store is open, what a person can do about a connection that cannot be made: a program knows what its
	// settings are called. What it says stands in the error. Default: nothing.
	Refused func(err error) string
	// Probe is called at "<Name>.commit.before" and "<Name>.commit.after". Default none.
	Probe convergo.Probe
	// Log gets what an operator should know. Default: nothing.
	Log *slog.Logger
}

func (o Options) withDefaults(database string) Options {
	if o.Name == "" {
		o.Name = database
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 32
	}
	if o.LockWait < time.Second {
		o.LockWait = 10 * time.Second
	}
	if o.CommitTimeout <= 0 {
		o.CommitTimeout = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Store is one database. It implements outbox.Store, relay.Store, inbox.Store, inbox.Parking and idempotency.Store for
// convergo.Tx, and the operators' methods of package ops; Calls gives outside.Store. Safe for concurrent use, and any number of
// processes may have the same database open.
type Store struct {
	opts   Options
	sql    sqltext.Set
	cfg    *mysql.Config
	db     *sql.DB
	server server
	floor  floor
	claims atomic.Uint64 // so far
	narrow narrow
	isOpen atomic.Bool // Open is done

	mu     sync.Mutex
	closed bool
	events []func() // wake-ups after commits that made an event pending or delayed
	calls  []func() // wake-ups after commits that made an outgoing call possible

	counts counts // see Stats
}

// Open connects, applies the engine's migrations and starts no goroutine. The DSN is the driver's
// ("user:password@tcp(host:3306)/database?tls=true") or a URL ("mysql://user:password@host:3306/database?tls=true"), and names the
// database, which must exist: see CreateDatabase. Neither it nor the password shows in an error. A database that a newer version
// has written is refused with ErrNewer before anything is written to it. What another try cannot change (a wrong password, a missing
// database or privilege, an old server) is convergo.Permanent, at once, with the remedy.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	cfg, err := configure(dsn, opts)
	if err != nil {
		return nil, fmt.Errorf("mysql store: %w", err)
	}
	if cfg.DBName == "" {
		return nil, errors.New("mysql store: the DSN names no database: end it with /database")
	}
	s := &Store{opts: opts.withDefaults(cfg.DBName), cfg: cfg}
	if err := s.open(ctx); err != nil {
		return nil, refused(err, fmt.Errorf("mysql store %s at %s: %w", s.opts.Name, cfg.Addr, explain(err)))
	}
	s.isOpen.Store(true)
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if s.sql, err = sqltext.Load(queryFile, "queries.sql", sqltext.MySQL); err != nil {
		return err
	}
	engine, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	if s.db, err = openPool(s.cfg, s.opts, &s.counts, s.unconnected); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = s.db.Close()
		}
	}()
	if s.server, err = lookAt(ctx, s.db); err != nil {
		return err
	}
	if s.opts.ReadOnly {
		_, err := s.refuseNewer(ctx, "engine", engine)
		return err
	}
	if err = writable(ctx, s.db); err != nil {
		return err
	}
	return s.migrate(ctx, "engine", engine)
}

// Close waits for the statements that have begun, then closes the connections. Later calls are ErrClosed. Idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("mysql store %s: close: %w", s.opts.Name, err)
	}
	return nil
}

// Dialect is sqltext.MySQL.
func (s *Store) Dialect() sqltext.Dialect { return sqltext.MySQL }

// OnEvents has wake called after each commit of this process that made an event pending or delayed, for example with a relay's
// Wake. It must not block. Commits of other processes are found by polling.
func (s *Store) OnEvents(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, wake)
}

// OnCalls has wake called after each commit of this process that made an outgoing call possible. It must not block.
func (s *Store) OnCalls(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, wake)
}

func (s *Store) wakeEvents() { s.wake(&s.events) }
func (s *Store) wakeCalls()  { s.wake(&s.calls) }

func (s *Store) wake(list *[]func()) {
	s.mu.Lock()
	wakes := *list
	s.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// Numbers of the server's errors that mean something here
// (https://dev.mysql.com/doc/mysql-errors/9.3/en/server-error-reference.html).
const (
	numberLockWait  = 1205 // ER_LOCK_WAIT_TIMEOUT
	numberDeadlock  = 1213 // ER_LOCK_DEADLOCK
	numberNoWait    = 3572 // ER_LOCK_NOWAIT; MariaDB says 1205
	numberReadOnly  = 1290 // ER_OPTION_PREVENTS_STATEMENT
	numberReadOnly2 = 1836 // ER_READ_ONLY_MODE
	numberShutdown  = 1053 // ER_SERVER_SHUTDOWN
)

func numberOf(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// fail is err with the store's name and what was being done. A server that cannot be reached, or that takes no writes now, says
// nothing about what was asked of it.
func (s *Store) fail(what string, err error) error {
	if errors.Is(err, sql.ErrConnDone) || s.isClosed() {
		err = errors.Join(ErrClosed, err)
	}
	wrapped := fmt.Errorf("mysql store %s: %s: %w", s.opts.Name, what, explain(err))
	if unreachable(err) {
		return convergo.Unreachable(wrapped)
	}
	return wrapped
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// counts are what Stats shows.
type counts struct {
	commits, statements, repeats, deadlocks, waits atomic.Int64
}
