package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/convergo/convergo"
)

// Tx is the transaction that Update and View hand out. It is used by one goroutine at a time, and only until the function
// that it was given to returns; later its methods answer ErrTxDone. It implements convergo.Tx and convergo.AfterCommit.
type Tx struct {
	store *Store
	conn  *sql.Conn
	write bool
	depth int // savepoints around it
	done  atomic.Bool
	hooks []func()
	woken struct{ events, calls bool } // wake-ups that are arranged already
	rows  []*sql.Rows                  // that were handed out: see closeRows
	row   []*sql.Row
}

// usable tells why a statement cannot run now. On the write connection a statement is never interrupted: SQLite answers an
// interrupted write by rolling back the whole transaction, which others share. So ctx is looked at between statements.
func (t *Tx) usable(ctx context.Context) error {
	if t.done.Load() {
		return fmt.Errorf("sqlite store %s: %w: use it only inside the function that it was given to", t.store.opts.Name, ErrTxDone)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlite store %s: %w", t.store.opts.Name, err)
	}
	if t.write {
		if lost := t.store.writer.group.lost; lost != nil {
			return fmt.Errorf("sqlite store %s: %w: %w", t.store.opts.Name, errGroupLost, lost)
		}
	}
	return nil
}

func (t *Tx) context(ctx context.Context) context.Context {
	if t.write {
		return context.Background()
	}
	return ctx
}

// ExecContext implements convergo.Tx.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	if !t.write { // a reader's statement may be interrupted
		return t.conn.ExecContext(ctx, query, args...)
	}
	var result driver.Result
	err := t.conn.Raw(func(conn any) (err error) {
		result, err = conn.(*cachingConn).convertAndExec(query, args)
		return err
	})
	if errors.Is(err, errNamed) {
		return t.conn.ExecContext(context.Background(), query, args...)
	}
	return result, err
}

// QueryContext implements convergo.Tx.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	rows, err := t.conn.QueryContext(t.context(ctx), query, args...)
	if err == nil {
		t.rows = append(t.rows, rows)
	}
	return rows, err
}

// QueryRowContext implements convergo.Tx.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.usable(ctx); err != nil {
		return t.store.read.QueryRowContext(over{ctx, err}, query)
	}
	row := t.conn.QueryRowContext(t.context(ctx), query, args...)
	t.row = append(t.row, row)
	return row
}

// closeRows closes the rows that a function left open, as the end of a *sql.Tx does. On the write connection, which has no
// end, they would keep its old snapshot for ever: nobody could write any more, nor close the store.
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

type openUpdate struct{ store *Store } // context key: the Update of that store that a context belongs to

// Update runs fn in a write transaction and commits it when fn returns nil; what it wrote is durable on return.
// Concurrent Updates share one commit: fn must not wait for another Update of the same store. An error, a panic and
// runtime.Goexit undo what fn wrote, and that only. When the shared commit fails all who shared it get the error; when
// the transaction cannot begin it is convergo.Unreachable. A ctx that ends while waiting for the turn, or before fn has
// returned, rolls back; during the commit it is too late. Functions given to AfterCommit have run on return. fn runs a
// second time, from its start, when the function of another one who shared its transaction failed: what the first run
// wrote is undone, and what it collected outside of tx is fn's own affair.
func (s *Store) Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	return s.update(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
}

func (s *Store) update(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if s.writer == nil {
		return fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, ErrReadOnly)
	}
	if outer, ok := ctx.Value(openUpdate{s}).(*Tx); ok && !outer.done.Load() {
		return fmt.Errorf("sqlite store %s: Update inside an Update of the same store waits for itself: use Nested", s.opts.Name)
	}
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, err))
	}
	tx, err := s.turn(ctx, fn, false)
	if errors.Is(err, errAgain) {
		tx, err = s.turn(ctx, fn, true)
	}
	if err != nil {
		return err
	}
	for _, f := range tx.hooks {
		f()
	}
	return nil
}

// turn waits for the baton, runs fn and waits for the commit.
func (s *Store) turn(ctx context.Context, fn func(ctx context.Context, tx *Tx) error, careful bool) (*Tx, error) {
	t := &turn{outcome: make(chan error, 1), careful: careful}
	if err := s.writer.enter(ctx, t); err != nil {
		return nil, convergo.Unreachable(fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, err))
	}
	tx := &Tx{store: s, conn: s.writer.conn, write: true}
	if err := s.run(ctx, t, tx, fn); err != nil {
		return nil, err
	}
	if err := <-t.outcome; err != nil {
		return nil, fmt.Errorf("sqlite store %s: commit: %w", s.opts.Name, s.explain(err))
	}
	return tx, nil
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

// run runs fn with the baton in hand and passes it on, however fn ends. nil means that t waits for the commit.
func (s *Store) run(ctx context.Context, t *turn, tx *Tx, fn func(ctx context.Context, tx *Tx) error) (err error) {
	w, kept := s.writer, false
	g := &w.group
	first := !g.open
	saved := !first && (t.careful || g.careful || w.careful > 0)
	w.careful = max(w.careful-1, 0)
	defer func() {
		tx.done.Store(true)
		switch {
		case kept:
			g.members = append(g.members, t)
			g.careful = g.careful || t.careful
		case first: // nothing else is in the transaction
			w.rollback()
			g.lost = nil
		case g.lost != nil: // the commit says so to all
		case saved:
			s.undo("g")
		default:
			w.again()
		}
		w.pass()
	}()
	switch {
	case first:
		err = convergo.Unreachable(w.begin(ctx))
	case saved:
		_, err = w.conn.ExecContext(context.Background(), "SAVEPOINT g")
	}
	if err != nil {
		return fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, s.explain(err))
	}
	if err = tx.call(ctx, fn); err != nil {
		return err
	}
	if err = tx.usable(ctx); err != nil {
		return err
	}
	if err = w.resolved(); err != nil {
		return fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, err)
	}
	if saved {
		if _, err = w.conn.ExecContext(context.Background(), "RELEASE g"); err != nil {
			return fmt.Errorf("sqlite store %s: update: %w", s.opts.Name, s.explain(err))
		}
	}
	kept = true
	return nil
}

// undo rolls back to the savepoint. When that fails the transaction is not what we think it is, and is lost.
func (s *Store) undo(savepoint string) {
	g := &s.writer.group
	_, err := s.writer.conn.ExecContext(context.Background(), "ROLLBACK TO "+savepoint)
	if err == nil {
		_, err = s.writer.conn.ExecContext(context.Background(), "RELEASE "+savepoint)
	}
	if err != nil && g.lost == nil {
		g.lost = fmt.Errorf("roll back to savepoint %s: %w", savepoint, err)
	}
}

// Nested runs fn inside a savepoint of tx. When fn returns an error, panics or ends its goroutine, only what it wrote,
// and the functions that it gave to AfterCommit, are undone; tx stays usable. The error is returned as it is.
func (s *Store) Nested(ctx context.Context, tx convergo.Tx, fn func(ctx context.Context, tx convergo.Tx) error) error {
	outer, ok := tx.(*Tx)
	if !ok || outer.store != s {
		return fmt.Errorf("sqlite store %s: Nested needs a transaction of this store, not %T", s.opts.Name, tx)
	}
	if !outer.write {
		return fmt.Errorf("sqlite store %s: Nested in a View: %w", s.opts.Name, ErrReadOnly)
	}
	if err := outer.usable(ctx); err != nil {
		return err
	}
	inner := &Tx{store: s, conn: outer.conn, write: true, depth: outer.depth + 1, woken: outer.woken}
	savepoint := "n" + strconv.Itoa(inner.depth)
	if _, err := s.writer.conn.ExecContext(context.Background(), "SAVEPOINT "+savepoint); err != nil {
		return fmt.Errorf("sqlite store %s: nested: %w", s.opts.Name, s.explain(err))
	}
	kept := false
	defer func() {
		inner.done.Store(true)
		if !kept && s.writer.group.lost == nil {
			s.undo(savepoint)
		}
	}()
	err := inner.call(ctx, func(ctx context.Context, tx *Tx) error { return fn(ctx, tx) })
	if err != nil {
		return err
	}
	if err := inner.usable(ctx); err != nil {
		return err
	}
	if _, err := s.writer.conn.ExecContext(context.Background(), "RELEASE "+savepoint); err != nil {
		return fmt.Errorf("sqlite store %s: nested: %w", s.opts.Name, s.explain(err))
	}
	kept = true
	outer.hooks = append(outer.hooks, inner.hooks...)
	outer.woken = inner.woken
	return nil
}

// View runs fn in a read-only transaction with one snapshot: the commits up to its first statement. It does not wait for
// writers. fn should be short: while it runs the WAL cannot be reused.
func (s *Store) View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) (err error) {
	conn, err := s.read.Conn(ctx)
	if err != nil {
		return fmt.Errorf("sqlite store %s: view: %w", s.opts.Name, s.reading(err))
	}
	tx := &Tx{store: s, conn: conn}
	defer func() {
		tx.done.Store(true)
		tx.closeRows()
		_, ending := conn.ExecContext(context.Background(), "COMMIT")
		if closing := errors.Join(ending, conn.Close()); err == nil && closing != nil {
			err = fmt.Errorf("sqlite store %s: end view: %w", s.opts.Name, closing)
		}
	}()
	if _, err = conn.ExecContext(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("sqlite store %s: view: %w", s.opts.Name, s.explain(err))
	}
	if err = fn(ctx, tx); err != nil {
		return err
	}
	for _, f := range tx.hooks {
		f()
	}
	return nil
}

// reading explains an error of the readers' pool.
func (s *Store) reading(err error) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return s.explain(err)
}
