// Package postgres keeps the engine's rows, and a service's own, in a PostgreSQL database (version 12 or newer): one schema
// for each service, or one database. It needs no session state, so it works through a pooler in transaction mode, and a pool of
// one connection is enough. Other programs may write to the same tables, in any language, with plain SQL.
//
// Transactions are READ COMMITTED. A commit that returned is on disk, as far as the server's settings say so: see Check.
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

// Errors that a caller can tell apart with errors.Is.
var (
	// ErrNewer: a newer version of the program has changed the database's tables. Nothing was written.
	ErrNewer = errors.New("the database was written by a newer version of this program: use that version or a copy made before it")
	// ErrTooOld: the server's version is below 12.
	ErrTooOld = errors.New("PostgreSQL is older than version 12")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrTxDone: a transaction was used after the function that it was given to had returned.
	ErrTxDone = errors.New("transaction is over")
	// ErrRolledBack: PostgreSQL answered COMMIT with ROLLBACK, because a statement had failed before and its error was not
	// returned. Nothing was kept.
	ErrRolledBack = errors.New("the commit was a rollback: a statement had failed before and its error was passed over")
	// ErrReadOnly: the store was opened with Options.ReadOnly.
	ErrReadOnly = errors.New("store is open for reading only")
)

// Options of a store; the zero value is fit for production.
type Options struct {
	// Name is the service's name in errors and probe points ("order.commit.before"). Default: the schema, else the
	// database, else the role.
	Name string
	// Schema is where all tables of the store live; it is made if it is missing. Default: what the role's search_path says.
	// Engine statements name it, and each transaction sets its own search_path to it and nothing else, so that a service's
	// unqualified names find its own tables and never another's. No setting outlives a transaction.
	Schema string
	// MaxConns is how many connections are open at most. Default 16.
	MaxConns int
	// Tries is how often Update runs its function when the database asks to run it again (a deadlock, a serialization
	// failure). Default 5.
	Tries int
	// IdleInTransaction is when the server ends a transaction whose process stands still (stopped, or cut off), so that its
	// locks do not outlive it. Default one minute; negative: never.
	IdleInTransaction time.Duration
	// CommitTimeout is how long the answer to a COMMIT is waited for, whatever the caller's context says. Then the connection is
	// closed, and nobody knows whether the transaction was kept. Default 30 s.
	CommitTimeout time.Duration
	// Notify is the shortest time between two NOTIFYs by which this process tells others, after a commit, that there are new
	// events or calls. They are hints: the relays find out by themselves with their next poll. Default 25 ms; negative: off.
	Notify time.Duration
	// ListenDSN reaches the server itself, for LISTEN, when dsn goes through a pooler. Default: dsn, and when that is a pooler
	// nothing is listened for.
	ListenDSN string
	// ReadOnly is for View and the reading methods only. Nothing is migrated.
	ReadOnly bool
	// Refused is asked, once the store is open, what a person can do about a connection that cannot be made: a program knows what its
	// settings are called. What it says stands in the error. Default: nothing.
	Refused func(err error) string
	// Probe is called at "<Name>.commit.before" and "<Name>.commit.after". Default none.
	Probe convergo.Probe
	// Log gets what an operator should know. Default: nothing.
	Log *slog.Logger
}

func (o Options) withDefaults(cfg *pgx.ConnConfig) Options {
	// Without a database in the DSN the server takes the one that is called like the role.
	o.Name = cmp.Or(o.Name, o.Schema, cfg.Database, cfg.User, "postgres")
	if o.MaxConns <= 0 {
		o.MaxConns = 16
	}
	if o.Tries <= 0 {
		o.Tries = 5
	}
	if o.IdleInTransaction == 0 {
		o.IdleInTransaction = time.Minute
	}
	if o.CommitTimeout <= 0 {
		o.CommitTimeout = 30 * time.Second
	}
	if o.Notify == 0 {
		o.Notify = 25 * time.Millisecond
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

// Store is the engine's and a service's tables in one PostgreSQL schema. It implements outbox.Store, relay.Store,
// inbox.Store, inbox.Parking and idempotency.Store for convergo.Tx, and the operators' methods of package ops; Calls gives
// outside.Store, PGX gives outbox.Store for pgx's own transactions. Safe for concurrent use.
type Store struct {
	opts   Options
	cfg    *pgx.ConnConfig
	mode   pgx.QueryExecMode // of statements that are run often
	pooled bool              // a pooler stands between us and the server
	sql    sqltext.Set
	db     *sql.DB
	begin  struct{ write, view, claim, migration string }
	texts  rewriter
	floors floors
	claims atomic.Uint64 // so far
	notify *notifier     // nil when it is off

	mu     sync.Mutex
	closed bool
	events []func() // wake-ups after commits that made an event pending or delayed
	calls  []func() // wake-ups after commits that made an outgoing call possible

	statements, commits, updates, retries atomic.Int64 // see Stats
}

// schemaName is what a schema may be called: no quoting is needed but for reserved words.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// tableName finds the engine's own tables and sequences in its statements.
var tableName = regexp.MustCompile(`\b(?:outbox|inbox|outside|idempotency|machine)_[a-z_]+\b`)

// Open connects to the database that dsn names (a URL or key=value pairs, as pgx and libpq read them, with TLS and password) and
// applies the engine's migrations. The database must exist, the schema need not. A database that a newer version has written
// is refused with ErrNewer before anything is written to it. Errors never contain the password. What another try cannot change (a
// wrong password, a missing database or privilege, an old server) is convergo.Permanent, at once, with the remedy.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	cfg, err := parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres store: %w", err)
	}
	s := &Store{cfg: cfg, opts: opts.withDefaults(cfg)}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("postgres store %s: %w", s.opts.Name, err)
	}
	return s, nil
}

// parse never shows a password. pgx hides the one that it finds; in a URL it looks for it before the first '@', and what stands behind
// that one would be told as the host.
func parse(dsn string) (*pgx.ConnConfig, error) {
	if _, rest, isURL := strings.Cut(dsn, "://"); isURL { // before pgx, whose errors show what stands behind the first '@'
		if end := strings.IndexAny(rest, "/?"); end >= 0 {
			rest = rest[:end]
		}
		if strings.Count(rest, "@") > 1 {
			return nil, bareAt()
		}
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	odd := func(host string) bool {
		return strings.Contains(host, "@") && !strings.HasPrefix(host, "/") && !strings.HasPrefix(host, "@")
	} // sockets may
	if odd(cfg.Host) || slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool { return odd(f.Host) }) {
		return nil, bareAt()
	}
	return cfg, nil
}

func bareAt() error {
	return convergo.Permanent(errors.New("the host has an '@' in it (it is not shown, for it may hold the end of a password): " +
		"in a URL write an '@' of the user or the password as %40"))
}

func (s *Store) open(ctx context.Context) (err error) {
	if s.opts.Schema != "" && !schemaName.MatchString(s.opts.Schema) {
		return fmt.Errorf("schema %q: its name must be lower-case letters, digits and _", s.opts.Schema)
	}
	if s.sql, err = sqltext.Load(queryFile, "queries.sql", sqltext.Postgres); err != nil {
		return err
	}
	for name, text := range s.sql {
		s.sql[name] = tableName.ReplaceAllStringFunc(text, s.qualified)
	}
	s.beginTexts()
	if s.cfg.ConnectTimeout == 0 {
		s.cfg.ConnectTimeout = 10 * time.Second
	}
	s.cfg.Tracer = &tracer{&s.statements}
	if err = s.look(ctx); err != nil {
		if err = s.refused(ctx, err); final(err) {
			return err
		}
		return convergo.Unreachable(err)
	}
	engine, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	if s.opts.ReadOnly {
		_, err = s.refuseNewer(ctx, "engine", engine)
	} else {
		err = s.migrate(ctx, "engine", engine)
	}
	if err != nil {
		return s.refused(ctx, err)
	}
	s.db = s.openPool(s.opts.MaxConns, "")
	s.startNotifier()
	return nil
}

// qualified is a table's name with its schema.
func (s *Store) qualified(table string) string {
	if s.opts.Schema == "" {
		return table
	}
	return `"` + s.opts.Schema + `".` + table
}

// Close waits for nobody: transactions that are open end with errors. Later calls are ErrClosed. Idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	if s.notify != nil {
		s.notify.close()
	}
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("postgres store %s: close: %w", s.opts.Name, err)
	}
	return nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Dialect is sqltext.Postgres.
func (s *Store) Dialect() sqltext.Dialect { return sqltext.Postgres }

// OnEvents has wake called after each commit that made an event pending or delayed, for example with a relay's Wake. It
// must not block.
func (s *Store) OnEvents(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, wake)
}

// OnCalls has wake called after each commit that made an outgoing call possible. It must not block.
func (s *Store) OnCalls(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, wake)
}

// Wake is for transactions that cannot tell when they have committed (a *sql.Tx, a pgx.Tx): called after a commit, it has the
// relays and outgoing calls look at once and not at their next poll.
func (s *Store) Wake() {
	s.wakeEvents()
	s.wakeCalls()
}

func (s *Store) wakeEvents() {
	s.wake(&s.events)
	s.notify.tell()
}

func (s *Store) wakeCalls() {
	s.wake(&s.calls)
	s.notify.tell()
}

func (s *Store) wake(list *[]func()) {
	s.mu.Lock()
	wakes := *list
	s.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}
