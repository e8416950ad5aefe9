// Package sqlite keeps the engine's rows, and a service's own, in one SQLite file: WAL, synchronous=FULL, one writer whose
// commits are shared by concurrent callers, readers that never wait for it. Other programs may write to the same file at
// the same time, in any language; a busy database is waited for, within a bound.
//
// What a commit survives: with the default settings a kill of the process and a loss of power (as far as the disk tells
// the truth when it is told to sync); with Options.Relaxed a kill, and a loss of power may take the last commits.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	driverlib "modernc.org/sqlite"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

// Errors that a caller can tell apart with errors.Is.
var (
	// ErrNewer: a newer version of the program has changed the database's tables. Nothing was written.
	ErrNewer = errors.New("the database was written by a newer version of this program: use that version or a copy made before it")
	// ErrDamaged: the file is no SQLite database, or its content is damaged.
	ErrDamaged = errors.New("not a SQLite database, or damaged: check the path, or restore the file from a copy")
	// ErrBusy: another program has kept the database locked for longer than Options.BusyTimeout.
	ErrBusy = errors.New("another program keeps the database locked")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrTxDone: a transaction was used after the function that it was given to had returned, or a reading one to write.
	ErrTxDone = errors.New("transaction is over")
	// ErrReadOnly: the store was opened with Options.ReadOnly.
	ErrReadOnly = errors.New("store is open for reading only")
)

// Options of a store; the zero value is fit for production.
type Options struct {
	// Name is the service's name in errors and probe points ("order.commit.before"). Default: the file's name without .db.
	Name string
	// MaxGroup is how many Updates share one commit at most. Default 256.
	MaxGroup int
	// GroupTime is how long a commit waits for more Updates that are already queued. Default 20 ms.
	GroupTime time.Duration
	// BusyTimeout is how long an Update waits while another program writes. Default 15 s.
	BusyTimeout time.Duration
	// Readers is how many reading connections are open at most. Default 4.
	Readers int
	// ReadOnly opens an existing file for View and the reading methods only. Nothing is migrated.
	ReadOnly bool
	// NoTrace, with ReadOnly, is for a short look: where no program has the file open nothing is made beside it (no -wal, no -shm).
	// What a program that opens it meanwhile writes may be missed or misread.
	NoTrace bool
	// Relaxed commits without waiting for the disk (synchronous=NORMAL): a kill loses nothing, a loss of power may lose the
	// last commits. For tests and simulations.
	Relaxed bool
	// Probe is called at "<Name>.commit.before" and "<Name>.commit.after". Default none.
	Probe convergo.Probe
	// Log gets what an operator should know. Default: nothing.
	Log *slog.Logger
}

func (o Options) withDefaults(path string) Options {
	if o.Name == "" {
		o.Name = strings.TrimSuffix(filepath.Base(path), ".db")
	}
	if o.MaxGroup <= 0 {
		o.MaxGroup = 256
	}
	if o.GroupTime <= 0 {
		o.GroupTime = 20 * time.Millisecond
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 15 * time.Second
	}
	if o.Readers <= 0 {
		o.Readers = 4
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

// Store is one SQLite file. It implements outbox.Store, relay.Store, inbox.Store, inbox.Parking and idempotency.Store for
// convergo.Tx, and the operators' methods of package ops; Calls gives outside.Store. Safe for concurrent use.
type Store struct {
	opts    Options
	path    string
	sql     sqltext.Set
	writeDB *sql.DB // holds exactly the writer's connection
	read    *sql.DB // query_only connections
	writer  *writer
	claims  atomic.Uint64 // so far

	mu     sync.Mutex
	closed bool
	events []func() // wake-ups after commits that made an event pending or delayed
	calls  []func() // wake-ups after commits that made an outgoing call possible

	statements atomic.Int64 // see Stats
}

// Open opens or creates the file, applies the engine's migrations and starts no goroutine. The directory must exist. A
// database that a newer version has written is refused with ErrNewer before anything is written to it.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	s := &Store{opts: opts.withDefaults(path)}
	if err := s.open(ctx, path); err != nil {
		return nil, fmt.Errorf("sqlite store %s: %w", path, s.explain(err))
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, path string) (err error) {
	if s.path, err = checkPath(path, s.opts.ReadOnly); err != nil {
		return err
	}
	if s.sql, err = sqltext.Load(queryFile, "queries.sql", sqltext.SQLite); err != nil {
		return err
	}
	// fsync also writes the file's timestamps, for nothing: what the data needs is in fdatasync. Where there is none, fsync stays.
	_, _ = driverlib.Fdatasync(true)
	engine, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	if s.opts.ReadOnly {
		if _, err = s.refuseNewer(ctx, "engine", engine); err != nil {
			return err
		}
	} else if err = s.migrate(ctx, "engine", engine); err != nil {
		return err
	}
	if s.read, err = s.openPool(s.readDSN(), s.opts.Readers, nil); err != nil {
		return err
	}
	if !s.opts.ReadOnly {
		err = s.openWriter(ctx)
	}
	if err != nil {
		_ = s.read.Close()
	}
	return err
}

// smallestDatabase is one page of the smallest size, in bytes (https://sqlite.org/fileformat.html).
const smallestDatabase = 512

func checkPath(path string, mustExist bool) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(abs)
	switch {
	case err == nil && info.IsDir():
		return "", errors.New("is a directory: give the path of a file")
	case err == nil && info.Size() > 0 && info.Size() < smallestDatabase:
		return "", ErrDamaged // SQLite would take it for an empty database and write over it
	case err == nil:
		return abs, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	case mustExist:
		return "", fmt.Errorf("does not exist, and is to be opened for reading only: %w", fs.ErrNotExist)
	}
	if dir, err := os.Stat(filepath.Dir(abs)); err != nil || !dir.IsDir() {
		return "", fmt.Errorf("its directory does not exist: create %s first: %w", filepath.Dir(abs), fs.ErrNotExist)
	}
	return abs, nil
}

// busySlice is the busy timeout of every connection. The writer repeats it until Options.BusyTimeout.
const busySlice = 5000 // ms

// dsn puts every setting where each new connection of a pool finds it (a PRAGMA that is executed reaches one connection only).
func (s *Store) dsn(settings ...string) string {
	synchronous := "FULL"
	if s.opts.Relaxed {
		synchronous = "NORMAL"
	}
	values := append([]string{
		fmt.Sprintf("_busy_timeout=%d", busySlice), "_foreign_keys=1", "_synchronous=" + synchronous,
		"_pragma=cache_size(-16000)", "_pragma=temp_store(MEMORY)", "_dqs=0", "_error_rc=1",
	}, settings...)
	return "file:" + (&url.URL{Path: filepath.ToSlash(s.path)}).EscapedPath() + "?" + strings.Join(values, "&")
}

func (s *Store) writeDSN() string {
	return s.dsn("_journal_mode=WAL", "_txlock=immediate", "_pragma=journal_size_limit(67108864)", "_pragma=wal_autocheckpoint(4000)")
}

func (s *Store) readDSN() string {
	if s.opts.ReadOnly {
		settings := []string{"_query_only=1", "mode=ro"}
		if _, err := os.Stat(s.path + "-wal"); s.opts.NoTrace && errors.Is(err, fs.ErrNotExist) {
			settings = append(settings, "immutable=1")
		}
		return s.dsn(settings...)
	}
	return s.dsn("_query_only=1")
}

func (s *Store) openPool(dsn string, size int, opened func(driverlib.HookRegisterer)) (*sql.DB, error) {
	inner, err := driverlib.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector{inner, opened, &s.statements})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

func (s *Store) openWriter(ctx context.Context) (err error) {
	s.writer = newWriter(s.opts)
	if s.writeDB, err = s.openPool(s.writeDSN(), 1, s.writer.watch); err != nil {
		return err
	}
	if s.writer.conn, err = s.writeDB.Conn(ctx); err != nil {
		_ = s.writeDB.Close()
	}
	return err
}

// Close waits for the Updates that have begun or queued, then closes the file. Later calls are ErrClosed. Idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	var errs []error
	if s.writer != nil {
		s.writer.close()
		errs = append(errs, s.read.Close(), s.writer.conn.Close(), s.writeDB.Close())
	} else {
		errs = append(errs, s.read.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sqlite store %s: close: %w", s.opts.Name, err)
	}
	return nil
}

// Dialect is sqltext.SQLite.
func (s *Store) Dialect() sqltext.Dialect { return sqltext.SQLite }

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

// Result codes of SQLite (https://sqlite.org/rescode.html) that mean something here; the primary code is the low byte.
const (
	codeBusy    = 5
	codeCorrupt = 11
	codeNotADB  = 26
)

func codeOf(err error) int {
	var e *driverlib.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// explain adds what the caller can do about an error of the driver.
func (s *Store) explain(err error) error {
	switch codeOf(err) {
	case codeCorrupt, codeNotADB:
		if !errors.Is(err, ErrDamaged) {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	case codeBusy:
		if !errors.Is(err, ErrBusy) {
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
	}
	return err
}
