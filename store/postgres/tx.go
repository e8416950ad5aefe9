package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
)

// Tx is the transaction that Update and View hand out. It is used by one goroutine at a time, and only until the function
// that it was given to returns; later its methods answer ErrTxDone. Placeholders are '?' ("??" is a question mark). It
// implements convergo.Tx and convergo.AfterCommit.
type Tx struct {
	session
	write  bool
	depth  int // savepoints around it
	done   atomic.Bool
	hooks  []func()
	woken  struct{ events, calls bool } // wake-ups that are arranged already
	rows   []*sql.Rows                  // that were handed out: see closeRows
	row    []*sql.Row
	doomed *error // shared by a transaction and its savepoints: the database asks to begin again from the start
}

func (s *Store) newTx(conn *sql.Conn, write bool) *Tx {
	return &Tx{session: session{s, conn}, write: write, doomed: new(error)}
}

func (t *Tx) usable(ctx context.Context) error {
	if t.done.Load() {
		return fmt.Errorf("postgres store %s: %w: use it only inside the function that it was given to", t.store.opts.Name, ErrTxDone)
	}
	if *t.doomed != nil {
		return fmt.Errorf("postgres store %s: the transaction begins again: %w", t.store.opts.Name, *t.doomed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("postgres store %s: %w", t.store.opts.Name, err)
	}
	return nil
}

// ExecContext implements convergo.Tx.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	return t.conn.ExecContext(ctx, t.store.texts.rewrite(query), args...)
}

// QueryContext implements convergo.Tx.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	rows, err := t.conn.QueryContext(ctx, t.store.texts.rewrite(query), args...)
	if err == nil {
		t.rows = append(t.rows, rows)
	}
	return rows, err
}

// QueryRowContext implements convergo.Tx.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.usable(ctx); err != nil {
		return t.store.db.QueryRowContext(over{ctx, err}, query)
	}
	row := t.conn.QueryRowContext(ctx, t.store.texts.rewrite(query), args...)
	t.row = append(t.row, row)
	return row
}

// closeRows closes the rows that a function left open, as the end of a *sql.Tx does: the connection takes no COMMIT before.
func (t *Tx) closeRows() {
	for _, r := range t.rows {
		_ = r.Close()
	}
	for _, r := range t.row {
		_ = r.Scan() // closes it; if it has been scanned, nothing happens
	}
	t.rows, t.row = nil, nil
}

// call runs fn as part of the transaction.
func (t *Tx) call(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	defer t.closeRows()
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

type openUpdate struct{ store *Store } // context key: the transaction of that store that a context belongs to

// enclosing is the transaction of this store that ctx belongs to, nil when there is none.
func (s *Store) enclosing(ctx context.Context) *Tx {
	if tx, ok := ctx.Value(openUpdate{s}).(*Tx); ok && !tx.done.Load() {
		return tx
	}
	return nil
}

// Update runs fn in a write transaction and commits it when fn returns nil; what it wrote is durable on return. An error, a
// panic and runtime.Goexit undo what fn wrote.
//
// fn may run again from its start: when the database asks for it (a deadlock, a serialization failure) the transaction is
// rolled back and begun anew, up to Options.Tries times. So what fn collects outside the transaction it resets at its start.
//
// When the tries are used up, the transaction cannot begin, or its connection is lost, the error is convergo.Unreachable; after a COMMIT whose answer
// was lost, or did not come within Options.CommitTimeout, nobody knows whether it was kept. A ctx that ends before fn has returned
// rolls back; during the commit it is too late. Functions given to AfterCommit have run on return. fn must not call Update of the
// same store: see Nested.
func (s *Store) Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	return s.update(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
}

func (s *Store) update(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("postgres store %s: update: %w", s.opts.Name, ErrReadOnly)
	}
	if s.enclosing(ctx) != nil {
		return fmt.Errorf("postgres store %s: Update inside a transaction of the same store would wait for itself: use Nested", s.opts.Name)
	}
	var tx *Tx
	err := s.retry(ctx, func() (retry bool, err error) {
		tx, retry, err = s.attempt(ctx, fn)
		return retry, err
	})
	if err != nil {
		return err
	}
	for _, f := range tx.hooks {
		f()
	}
	return nil
}

// retry runs attempt until it succeeds, does not ask for another one, or was tried often enough. Pauses are random and grow.
func (s *Store) retry(ctx context.Context, attempt func() (retry bool, err error)) error {
	for try := 1; ; try++ {
		retry, err := attempt()
		if !retry {
			return err
		}
		// That says nothing about what the caller does: he comes again later.
		err = fmt.Errorf("postgres store %s: the database asked to begin again %d times: %w: %w", s.opts.Name, try, convergo.ErrContended, err)
		later := convergo.Unreachable(err)
		if try >= s.opts.Tries {
			return later
		}
		s.retries.Add(1)
		pause := time.NewTimer(time.Duration(rand.Int64N(int64(5*time.Millisecond)<<min(try, 8))) + time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return later
		}
	}
}

// attempt is one transaction. retry: the database asks to begin again.
func (s *Store) attempt(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) (_ *Tx, retry bool, err error) {
	conn, err := s.beginWith(ctx, s.begin.write)
	if err != nil {
		return nil, false, convergo.Unreachable(fmt.Errorf("postgres store %s: update: %w", s.opts.Name, err))
	}
	tx, committing := s.newTx(conn, true), false
	defer func() {
		tx.done.Store(true)
		if !committing {
			s.rollback(tx.session)
		}
		_ = conn.Close()
	}()
	if err = tx.call(ctx, fn); err == nil {
		err = tx.usable(ctx)
	}
	if err != nil {
		if refused := tx.refused(); *tx.doomed != nil || again(refused) || again(err) {
			return nil, true, err
		}
		if lost(ctx, conn) {
			err = convergo.Unreachable(err)
		}
		return nil, false, err
	}
	committing = true
	err = s.commit(ctx, tx, &retry)
	return tx, retry, err
}

func (s *Store) commit(ctx context.Context, tx *Tx, retry *bool) error {
	s.opts.Probe.At(s.opts.Name + ".commit.before")
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.CommitTimeout)
	defer cancel()
	var refused error
	err := tx.raw(func(conn *pgx.Conn) error {
		err := commit(bounded, conn)
		refused = stateOf(conn).failed
		return err
	})
	s.opts.Probe.At(s.opts.Name + ".commit.after")
	switch {
	case err == nil:
		s.commits.Add(1)
		s.updates.Add(1)
		return nil
	case again(err), errors.Is(err, ErrRolledBack) && again(refused):
		*retry = true
	case !errors.Is(err, ErrRolledBack) && gone(tx.conn): // also when the time was over
		err = convergo.Unreachable(fmt.Errorf("the answer was lost, it may have been kept: %w", err))
	}
	return fmt.Errorf("postgres store %s: commit: %w", s.opts.Name, err)
}

// refused is the error by which the server has aborted the transaction; nil when it goes on.
func (t *Tx) refused() (err error) {
	_ = t.raw(func(conn *pgx.Conn) error {
		if conn.PgConn().TxStatus() == 'E' {
			err = stateOf(conn).failed
		}
		return nil
	})
	return err
}

// beginWith takes a connection and begins a transaction. Connections that turn out to be dead are replaced: until BEGIN was
// answered nothing has happened.
func (s *Store) beginWith(ctx context.Context, begin string) (*sql.Conn, error) {
	for try := 1; ; try++ {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, s.explain(err)
		}
		err = session{s, conn}.raw(func(c *pgx.Conn) error {
			stateOf(c).failed = nil
			_, err := simple(ctx, c, begin)
			if err != nil && c.IsClosed() {
				return errors.Join(driver.ErrBadConn, err)
			}
			return err
		})
		if err == nil {
			return conn, nil
		}
		dead := errors.Is(err, driver.ErrBadConn)
		if !dead {
			s.rollback(session{s, conn})
		}
		_ = conn.Close()
		if !dead || try > s.opts.MaxConns || ctx.Err() != nil {
			return nil, err
		}
	}
}

// explain says that it was we who closed the pool.
func (s *Store) explain(err error) error {
	if s.isClosed() {
		return ErrClosed
	}
	return err
}

// rollbackTimeout bounds the wait for an answer to ROLLBACK.
const rollbackTimeout = 5 * time.Second

// rollback ends the transaction. A connection on which that fails is closed: the server then rolls back by itself.
func (s *Store) rollback(c session) {
	ctx, cancel := context.WithTimeout(context.Background(), min(rollbackTimeout, s.opts.CommitTimeout))
	defer cancel()
	_ = c.raw(func(conn *pgx.Conn) error {
		if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
			return nil
		}
		if _, err := simple(ctx, conn, "ROLLBACK"); err != nil {
			_ = conn.Close(ctx)
		}
		return nil
	})
}

// join runs fn in the transaction of this store that ctx belongs to, in a savepoint, and in one of its own when there is
// none: an operator's change commits together with the record of the request that asked for it.
func (s *Store) join(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	outer := s.enclosing(ctx)
	if outer == nil {
		return s.update(ctx, fn)
	}
	return s.Nested(ctx, outer, func(ctx context.Context, tx convergo.Tx) error { return fn(ctx, tx.(*Tx)) })
}

// Nested runs fn inside a savepoint of tx. When fn returns an error, panics or ends its goroutine, only what it wrote,
// and the functions that it gave to AfterCommit, are undone; tx stays usable. The error is returned as it is. A deadlock inside
// is the exception: the whole transaction begins again (see Update), and until then every use of tx fails.
func (s *Store) Nested(ctx context.Context, tx convergo.Tx, fn func(ctx context.Context, tx convergo.Tx) error) error {
	outer, ok := tx.(*Tx)
	if !ok || outer.store != s {
		return fmt.Errorf("postgres store %s: Nested needs a transaction of this store, not %T", s.opts.Name, tx)
	}
	if !outer.write {
		return fmt.Errorf("postgres store %s: Nested in a View: %w", s.opts.Name, ErrReadOnly)
	}
	if err := outer.usable(ctx); err != nil {
		return err
	}
	inner := &Tx{session: outer.session, write: true, depth: outer.depth + 1, woken: outer.woken, doomed: outer.doomed}
	savepoint := "n" + strconv.Itoa(inner.depth)
	if err := outer.plain(ctx, "SAVEPOINT "+savepoint); err != nil {
		return fmt.Errorf("postgres store %s: nested: %w", s.opts.Name, err)
	}
	kept := false
	defer func() {
		inner.done.Store(true)
		if !kept {
			inner.undo(ctx, savepoint)
		}
	}()
	if err := inner.call(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) }); err != nil {
		return err
	}
	if err := inner.usable(ctx); err != nil {
		return err
	}
	if err := inner.plain(ctx, "RELEASE "+savepoint); err != nil {
		return fmt.Errorf("postgres store %s: nested: %w", s.opts.Name, err)
	}
	kept = true
	outer.hooks = append(outer.hooks, inner.hooks...)
	outer.woken = inner.woken
	return nil
}

// plain sends a text as it is.
func (t *Tx) plain(ctx context.Context, text string) error {
	return t.raw(func(conn *pgx.Conn) error {
		t.store.statements.Add(1)
		_, err := simple(ctx, conn, text)
		return err
	})
}

// undo rolls back to the savepoint. When that fails the transaction is not what we think it is: the connection is closed, and
// every later statement and the commit fail.
func (t *Tx) undo(ctx context.Context, savepoint string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.store.opts.CommitTimeout)
	defer cancel()
	_ = t.raw(func(conn *pgx.Conn) error {
		state := stateOf(conn)
		if state.failed != nil && again(state.failed) {
			*t.doomed = state.failed
		}
		if conn.IsClosed() {
			return nil
		}
		if _, err := simple(ctx, conn, "ROLLBACK TO "+savepoint+"; RELEASE "+savepoint); err != nil {
			_ = conn.Close(ctx)
		}
		state.failed = nil
		return nil
	})
}

// View runs fn in a read-only transaction with one snapshot: the commits up to its first statement. It does not wait for
// writers. fn should be short: while it runs nothing that is deleted meanwhile can be cleaned up. Inside a transaction of
// this store fn runs in that one, and sees what it has written: with a pool of one connection there is no other.
func (s *Store) View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	if outer := s.enclosing(ctx); outer != nil {
		return fn(ctx, outer)
	}
	tx := (*Tx)(nil)
	err := s.snapshot(ctx, s.begin.view, func(c session) error {
		tx = s.newTx(c.conn, false)
		defer tx.done.Store(true)
		return tx.call(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
	})
	if err != nil {
		return err
	}
	for _, f := range tx.hooks {
		f()
	}
	return nil
}

// snapshot runs fn with a connection in one read-only transaction; in the transaction that ctx belongs to when there is one.
func (s *Store) snapshot(ctx context.Context, begin string, fn func(c session) error) (err error) {
	if outer := s.enclosing(ctx); outer != nil {
		return fn(outer.session)
	}
	conn, err := s.beginWith(ctx, begin)
	if err != nil {
		return fmt.Errorf("postgres store %s: view: %w", s.opts.Name, err)
	}
	c := session{s, conn}
	defer func() {
		s.rollback(c)
		_ = conn.Close()
	}()
	if err = fn(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.CommitTimeout)
	defer cancel()
	return c.raw(func(conn *pgx.Conn) error { return commit(ctx, conn) })
}

// reader runs fn with a connection on which every statement has a snapshot of its own.
func (s *Store) reader(ctx context.Context, fn func(c session) error) error {
	if outer := s.enclosing(ctx); outer != nil {
		return fn(outer.session)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain(err)
	}
	defer func() { _ = conn.Close() }()
	return fn(session{s, conn})
}
