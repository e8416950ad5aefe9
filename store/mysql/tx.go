package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// Tx is the transaction that Update and View hand out. It is used by one goroutine at a time, and only until the function
// that it was given to returns; later its methods answer ErrTxDone. Rows that are read must be closed before the next
// statement. It implements convergo.Tx and convergo.AfterCommit.
type Tx struct {
	store *Store
	inner *sql.Tx
	fate  *fate
	write bool
	depth int // savepoints around it
	done  atomic.Bool
	hooks []func()
	woken struct{ events, calls bool } // wake-ups that are arranged already
}

// usable tells why a statement cannot run now.
func (t *Tx) usable(ctx context.Context, query string) error {
	if t.done.Load() {
		return fmt.Errorf("mysql store %s: %w: use it only inside the function that it was given to", t.store.opts.Name, ErrTxDone)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mysql store %s: %w", t.store.opts.Name, err)
	}
	if word, ends := endsTransaction(query); ends {
		return fmt.Errorf("mysql store %s: %s inside a transaction that belongs to Update: MySQL would commit what was done so far; "+
			"change the schema with Migrate", t.store.opts.Name, word)
	}
	return nil
}

// endsTransaction tells whether a statement would end the transaction, by itself or because it commits implicitly
// (https://dev.mysql.com/doc/refman/9.3/en/implicit-commit.html).
func endsTransaction(query string) (word string, ends bool) {
	word = query
	for {
		word = strings.TrimLeft(word, " \t\r\n;")
		if strings.HasPrefix(word, "--") || strings.HasPrefix(word, "#") {
			_, word, _ = strings.Cut(word, "\n")
		} else if strings.HasPrefix(word, "/*") && !strings.HasPrefix(word, "/*!") {
			_, word, _ = strings.Cut(word, "*/")
		} else {
			break
		}
	}
	if i := strings.IndexFunc(word, func(r rune) bool { return (r|0x20) < 'a' || (r|0x20) > 'z' }); i >= 0 {
		word = word[:i]
	}
	word = strings.ToUpper(word)
	switch word {
	case "BEGIN", "START", "COMMIT", "ROLLBACK", "XA", "CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "LOCK", "UNLOCK", "GRANT",
		"REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR", "FLUSH":
		return word, true
	}
	return word, false
}

// ExecContext implements convergo.Tx.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.usable(ctx, query); err != nil {
		return nil, err
	}
	return t.inner.ExecContext(ctx, query, args...)
}

// QueryContext implements convergo.Tx.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.usable(ctx, query); err != nil {
		return nil, err
	}
	return t.inner.QueryContext(ctx, query, args...)
}

// QueryRowContext implements convergo.Tx.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.usable(ctx, query); err != nil {
		return t.store.db.QueryRowContext(over{ctx, err}, query)
	}
	return t.inner.QueryRowContext(ctx, query, args...)
}

// call runs fn as part of the transaction.
func (t *Tx) call(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	defer t.done.Store(true)
	return fn(context.WithValue(ctx, openUpdate{t.store}, t), t)
}

// over is an ended context with an error of our choice: the way to make a *sql.Row that answers with that error.
type over struct {
	context.Context
	err error
}

func (o over) Err() error { return o.err }

func (o over) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// AfterCommit has f run after the commit, in order of the calls; not after a rollback, nor when the savepoint that the
// call was made in is rolled back. It implements convergo.AfterCommit.
func (t *Tx) AfterCommit(f func()) { t.hooks = append(t.hooks, f) }

type openUpdate struct{ store *Store } // context key: the Update of that store that a context belongs to

// tries is how often Update runs a function whose transaction the database aborts.
const tries = 5

// Update runs fn in a READ COMMITTED transaction and commits it when fn returns nil; what it wrote is durable on return. An
// error, a panic and runtime.Goexit undo it. When the database aborts the transaction, to end a deadlock or because a lock could
// not be had, all of it is rolled back and fn runs again from its start, up to five times with a pause between, whatever fn has made
// of the error: fn resets what it collects outside of tx. Then the error wraps ErrAborted and is convergo.Unreachable, as it is when the
// transaction cannot begin or the server is lost; a server that is lost during the commit, or does not answer within
// Options.CommitTimeout, may have committed. A ctx that ends before fn has returned rolls back; during the commit it is too late.
// Functions given to AfterCommit have run on return.
func (s *Store) Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	return s.update(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
}

func (s *Store) update(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("mysql store %s: update: %w", s.opts.Name, ErrReadOnly)
	}
	if outer, ok := ctx.Value(openUpdate{s}).(*Tx); ok && !outer.done.Load() {
		return fmt.Errorf("mysql store %s: Update inside an Update of the same store would wait for its locks: use Nested", s.opts.Name)
	}
	for try := 1; ; try++ {
		again, err := s.attempt(ctx, fn)
		if !again {
			return err
		}
		// That says nothing about what fn does: the caller comes again later.
		later := convergo.Unreachable(fmt.Errorf("the database asked to begin again %d times: %w: %w", try, convergo.ErrContended, err))
		if try == tries {
			return later
		}
		s.counts.repeats.Add(1)
		// Those who met here should not meet again.
		pause := time.NewTimer(rand.N(time.Duration(try*try) * 10 * time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return later
		}
	}
}

// attempt runs fn in one transaction. again tells that the database wants it to be run anew.
func (s *Store) attempt(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) (again bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, convergo.Unreachable(fmt.Errorf("mysql store %s: update: %w", s.opts.Name, err))
	}
	f := &fate{}
	inner, err := s.db.BeginTx(context.WithValue(ctx, fateKey{}, f), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, convergo.Unreachable(s.fail("begin", err))
	}
	tx := &Tx{store: s, inner: inner, fate: f, write: true}
	ended := false
	defer func() {
		if !ended { // fn failed, panicked or ended its goroutine
			_ = inner.Rollback()
		}
	}()
	if err = tx.call(ctx, fn); err == nil {
		err = ctx.Err()
	}
	if e := f.end.Load(); e != nil {
		return e.again, s.lost(err, e)
	}
	if err != nil {
		return false, err
	}
	s.opts.Probe.At(s.opts.Name + ".commit.before")
	ended = true
	if err = inner.Commit(); err != nil {
		if e := f.end.Load(); e != nil && e.again {
			return true, s.lost(err, e)
		}
		what := "commit"
		if unreachable(err) {
			what = "commit: the answer was lost, it may have been kept"
		}
		return false, s.fail(what, err)
	}
	s.opts.Probe.At(s.opts.Name + ".commit.after")
	for _, hook := range tx.hooks {
		hook()
	}
	return false, nil
}

// lost is the error of a transaction that was over before its commit; err is what its function returned.
func (s *Store) lost(err error, e *end) error {
	if err == nil || !errors.Is(err, e.cause) {
		err = errors.Join(err, e.cause)
	}
	err = fmt.Errorf("mysql store %s: %w: %w", s.opts.Name, ErrAborted, err)
	if !e.again {
		return convergo.Unreachable(err)
	}
	return err
}

// join runs fn in the transaction of this store that ctx belongs to, in a savepoint, and in one of its own when there is
// none: an operator's change commits together with the record of the request that asked for it.
func (s *Store) join(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	outer, ok := ctx.Value(openUpdate{s}).(*Tx)
	if !ok || outer.done.Load() {
		return s.update(ctx, fn)
	}
	return s.Nested(ctx, outer, func(ctx context.Context, tx convergo.Tx) error { return fn(ctx, tx.(*Tx)) })
}

// reader is where a read runs that needs no transaction: inside one of this store's in that one, for with a pool of one connection
// there is no other.
func (s *Store) reader(ctx context.Context) queryer {
	if outer, ok := ctx.Value(openUpdate{s}).(*Tx); ok && !outer.done.Load() {
		return outer
	}
	return s.db
}

// Nested runs fn inside a savepoint of tx. When fn returns an error, panics or ends its goroutine, only what it wrote,
// and the functions that it gave to AfterCommit, are undone; tx stays usable. The error is returned as it is. Locks that were
// taken inside stay until the transaction ends. When the database aborts the transaction, all of it is over: see Update.
func (s *Store) Nested(ctx context.Context, tx convergo.Tx, fn func(ctx context.Context, tx convergo.Tx) error) error {
	outer, ok := tx.(*Tx)
	if !ok || outer.store != s {
		return fmt.Errorf("mysql store %s: Nested needs a transaction of this store, not %T", s.opts.Name, tx)
	}
	if !outer.write {
		return fmt.Errorf("mysql store %s: Nested in a View: %w", s.opts.Name, ErrReadOnly)
	}
	if err := outer.usable(ctx, ""); err != nil {
		return err
	}
	inner := &Tx{store: s, inner: outer.inner, fate: outer.fate, write: true, depth: outer.depth + 1, woken: outer.woken}
	savepoint := "convergo_" + strconv.Itoa(inner.depth)
	if _, err := outer.inner.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return s.fail("savepoint", err)
	}
	kept := false
	defer func() {
		if !kept && outer.fate.end.Load() == nil {
			s.undo(ctx, outer, savepoint)
		}
	}()
	err := inner.call(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = outer.fate.ended()
	}
	if err != nil {
		return err
	}
	if _, err := outer.inner.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
		return s.fail("release savepoint", err)
	}
	kept = true
	outer.hooks = append(outer.hooks, inner.hooks...)
	outer.woken = inner.woken
	return nil
}

// undo rolls back to the savepoint. When that fails the transaction is not what we think it is, and is over.
func (s *Store) undo(ctx context.Context, outer *Tx, savepoint string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := outer.inner.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		outer.fate.end.CompareAndSwap(nil, &end{cause: fmt.Errorf("roll back to a savepoint: %w", err)})
	}
}

// View runs fn in a read-only transaction with one snapshot: the commits up to its first statement. It waits for nobody. fn should
// be short: while it runs the server keeps every old version of every row. Inside a transaction of this store fn runs in that one, and
// sees what it has written: with a pool of one connection there is no other.
func (s *Store) View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) (err error) {
	if outer, ok := ctx.Value(openUpdate{s}).(*Tx); ok && !outer.done.Load() {
		return fn(ctx, outer)
	}
	f := &fate{}
	inner, err := s.db.BeginTx(context.WithValue(ctx, fateKey{}, f), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return s.fail("view", err)
	}
	defer func() { _ = inner.Rollback() }() // nothing was written; after a commit it does nothing
	tx := &Tx{store: s, inner: inner, fate: f}
	err = tx.call(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
	if err != nil {
		return err
	}
	if err = inner.Commit(); err != nil {
		return s.fail("end view", err)
	}
	for _, hook := range tx.hooks {
		hook()
	}
	return nil
}
