package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	driverlib "modernc.org/sqlite"
)

// writer owns the one write connection. Callers of Update queue for it; whoever holds the baton may use the connection.
//
//  1. The first caller takes the baton, begins a transaction, runs its function and passes the baton on.
//  2. The next in the queue runs its function in the same transaction, and so on. A savepoint for each would cost two
//     statements and a copy of every page that it changes, so there is none: nearly all functions succeed. One that fails
//     takes the transaction with it, and those who were in it run theirs again, each in a savepoint this time. So do all
//     who come within the next carefulTurns: where one fails others may. In a savepoint a failure undoes only itself.
//  3. Whoever finds nobody queued (or the group full) commits. All of the group learn the outcome and return. Callers that
//     came during the commit's sync are the queue of the next group.
//
// Functions run on their callers' goroutines, so a panic or runtime.Goexit in one unwinds through run's deferred call,
// which undoes it and passes the baton on.
type writer struct {
	opts Options
	conn *sql.Conn

	mu     sync.Mutex
	busy   bool    // somebody has the baton
	queue  []*turn // who waits for it, in order; a turn that was given up stays as abandoned until its time
	closed bool
	idle   chan struct{} // not nil while close waits; closed when the baton is down and the queue empty

	group   group
	careful int // so many turns to come take savepoints; only the holder of the baton touches it

	commits, updates atomic.Int64 // see Stats
}

// group is the open transaction. Only the holder of the baton touches it.
type group struct {
	open       bool
	began      time.Time
	members    []*turn // whose functions succeeded and who wait for the commit
	committing bool    // the commit hook lets only our own COMMIT through
	ending     bool    // a ROLLBACK of ours: the rollback hook is no surprise
	careful    bool    // a member runs for the second time: those after it take savepoints, so that it need not a third time
	lost       error   // SQLite rolled the whole transaction back by itself, or somebody else's SQL did
}

type turn struct {
	granted   chan struct{} // the baton is yours; buffered
	outcome   chan error    // of the commit; buffered
	careful   bool          // it runs for the second time
	abandoned bool          // under writer.mu: the caller has left the queue
	has       bool          // under writer.mu: the baton was passed to it
}

// carefulTurns is how many callers take savepoints after a function failed without one. When many fail, nearly all do; when
// few do, the price is small.
const carefulTurns = 200

// errAgain tells a caller that its function has to run once more: another one's failure took the transaction with it.
var errAgain = errors.New("the transaction was rolled back because of another function in it")

func newWriter(opts Options) *writer { return &writer{opts: opts} }

// errGroupLost tells a caller that its function had succeeded when the shared transaction was rolled back. Nothing of it
// was kept; it may be tried again.
var errGroupLost = errors.New("the shared transaction was rolled back, nothing was kept")

// watch sees what happens to the transaction below us. SQLite rolls a whole transaction back by itself after some errors
// (disk full, I/O, no memory); later statements would then commit one by one. The commit hook forbids every commit that
// is not ours, the rollback hook marks the group as lost.
func (w *writer) watch(conn driverlib.HookRegisterer) {
	conn.RegisterCommitHook(func() int32 {
		if w.group.committing || !w.group.open {
			return 0
		}
		w.group.lost = errors.New("a COMMIT inside a transaction that belongs to Update")
		return 1
	})
	conn.RegisterRollbackHook(func() {
		if !w.group.ending && w.group.open && w.group.lost == nil {
			w.group.lost = errors.New("SQLite has rolled the transaction back")
		}
	})
}

// enter waits for the baton.
func (w *writer) enter(ctx context.Context, t *turn) error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	if !w.busy {
		w.busy = true
		w.mu.Unlock()
		return nil
	}
	t.granted = make(chan struct{}, 1)
	w.queue = append(w.queue, t)
	w.mu.Unlock()
	select {
	case <-t.granted:
	case <-ctx.Done():
		w.mu.Lock()
		has := t.has
		t.abandoned = !has
		w.mu.Unlock()
		if !has {
			return ctx.Err()
		}
		<-t.granted
	}
	if err := ctx.Err(); err != nil {
		w.pass()
		return err
	}
	return nil
}

// next takes the first waiting caller from the queue, nil when there is none; with stop also no further group member.
func (w *writer) next() *turn {
	for len(w.queue) > 0 {
		t := w.queue[0]
		w.queue[0] = nil
		w.queue = w.queue[1:]
		if !t.abandoned {
			t.has = true
			return t
		}
	}
	w.queue = nil
	return nil
}

// pass hands the baton to the next caller; when the group is complete it commits first.
func (w *writer) pass() {
	g := &w.group
	if g.open && len(g.members) < w.opts.MaxGroup && g.lost == nil && time.Since(g.began) < w.opts.GroupTime {
		if w.handOn() {
			return
		}
		// Callers that were just released by the last commit are on their way: let them come before this one syncs.
		runtime.Gosched()
		if w.handOn() {
			return
		}
	}
	if g.open {
		w.commit()
	}
	w.mu.Lock()
	t := w.next()
	if t == nil {
		w.busy = false
		if w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
	}
	w.mu.Unlock()
	if t != nil {
		t.granted <- struct{}{}
	}
}

func (w *writer) handOn() bool {
	w.mu.Lock()
	t := w.next()
	w.mu.Unlock()
	if t == nil {
		return false
	}
	t.granted <- struct{}{}
	return true
}

// begin opens the group's transaction. IMMEDIATE takes the write lock now: a transaction that reads first and wants it
// later gets BUSY at once, whatever the timeout.
func (w *writer) begin(ctx context.Context) error {
	deadline := time.Now().Add(w.opts.BusyTimeout)
	for {
		_, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
		if err == nil {
			w.group.open, w.group.began = true, time.Now()
			return nil
		}
		if codeOf(err) != codeBusy || ctx.Err() != nil {
			w.rollback() // an earlier failure may have left a transaction behind
			return fmt.Errorf("begin: %w", err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w for %s (%s); end its transaction: %w", ErrBusy, w.opts.BusyTimeout, w.opts.Name, err)
		}
	}
}

// resolved tells whether a deferred foreign key is still violated. SQLite would say so at the COMMIT only, and all of the
// group would pay for it.
func (w *writer) resolved() error {
	return w.conn.Raw(func(conn any) error {
		open, _, err := conn.(*cachingConn).Status(driverlib.DBStatusDeferredFKs, false)
		if err == nil && open != 0 {
			err = errors.New("a deferred foreign key is violated")
		}
		return err
	})
}

// rollback ends the transaction, whatever state it is in.
func (w *writer) rollback() {
	w.group.ending = true
	_, _ = w.conn.ExecContext(context.Background(), "ROLLBACK") // fails when SQLite has done so already
	w.group.ending = false
	w.group.open = false
}

// again ends the transaction after a function in it failed that had no savepoint. All others in it run once more.
func (w *writer) again() {
	g := &w.group
	w.rollback()
	for i, t := range g.members {
		t.outcome <- errAgain
		g.members[i] = nil
	}
	*g = group{members: g.members[:0]}
	w.careful = carefulTurns
}

// commit ends the group's transaction and tells its members.
func (w *writer) commit() {
	g := &w.group
	err := g.lost
	if err == nil && len(g.members) > 0 {
		w.opts.Probe.At(w.opts.Name + ".commit.before")
		g.committing = true
		_, err = w.conn.ExecContext(context.Background(), "COMMIT")
		g.committing = false
		if err == nil {
			g.open = false
			w.commits.Add(1)
			w.updates.Add(int64(len(g.members)))
			w.opts.Probe.At(w.opts.Name + ".commit.after")
		}
	}
	if g.open { // the commit failed, the group is lost, or nobody's function succeeded
		w.rollback()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errGroupLost, err)
	}
	for i, t := range g.members {
		t.outcome <- err
		g.members[i] = nil
	}
	*g = group{members: g.members[:0]}
}

// close waits until all who came before it have returned from their transactions.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	var idle chan struct{}
	if w.busy {
		idle = make(chan struct{})
		w.idle = idle
	}
	w.mu.Unlock()
	if idle != nil {
		<-idle
	}
}
