// Package memory is a store that keeps everything in the process: for tests, examples and simulation. It obeys the same
// laws as the databases (package storetest): its transactions are real, with savepoints and functions that run after the
// commit; what a transaction writes is invisible until then; leases expire by time.Now, so that testing/synctest's clock
// drives them. Writers run one after another; readers never wait and see the last commit. Nothing survives the process.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/convergo/convergo"
)

// Store is the whole database. It implements outbox.Store, relay.Store, inbox.Store, inbox.Parking, idempotency.Store (with
// TX = *Tx) and ops.Store; Calls gives outside.Store.
type Store struct {
	writing   chan struct{} // holds a value while a write transaction is open; a channel, so that waiting heeds ctx
	committed atomic.Pointer[state]
	claims    atomic.Uint64 // so far

	mu     sync.Mutex
	events []func() // wake-ups after commits that made an event pending or delayed
	calls  []func() // wake-ups after commits that added an outgoing call
}

// New is an empty store.
func New() *Store {
	s := &Store{writing: make(chan struct{}, 1)}
	s.committed.Store(newState())
	return s
}

// OnEvents has wake called after each commit that added an event, for example with a relay's Wake. It must not block.
func (s *Store) OnEvents(wake func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, wake)
}

// OnCalls has wake called after each commit that added an outgoing call. It must not block.
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

// ErrTxDone is wrapped when a transaction is used after its end, or a reading one to write.
var ErrTxDone = errors.New("transaction is not open for writing")

// Tx is a transaction. It is used by one goroutine, and only until the function that it was given to returns.
//
// Beside the engine's rows it has a small table of numbers, so that a handler under test can have an effect that commits
// or rolls back with everything else.
type Tx struct {
	store    *Store
	now      state // what this transaction sees; published by the commit
	after    []func()
	readOnly bool
	done     atomic.Bool
	woken    woken // which wake-ups are arranged already; undone with the savepoint they were made in
}

type woken struct{ events, calls bool }

// Set makes key's number value. It panics when the transaction is over or only reads: a programming error.
func (tx *Tx) Set(key string, value int) {
	if err := tx.writable(); err != nil {
		panic(err)
	}
	tx.now.numbers = tx.now.numbers.put(key, value)
}

// Get is key's number; 0 when it was never set.
func (tx *Tx) Get(key string) int {
	value, _ := tx.now.numbers.get(key)
	return value
}

// Add adds n to key's number and returns the sum. It panics as Set does.
func (tx *Tx) Add(key string, n int) int {
	sum := tx.Get(key) + n
	tx.Set(key, sum)
	return sum
}

// AfterCommit has f run after the commit, in order of the calls; not after a rollback, nor when the savepoint that the
// call was made in is rolled back. It implements convergo.AfterCommit.
func (tx *Tx) AfterCommit(f func()) { tx.after = append(tx.after, f) }

func (tx *Tx) writable() error {
	if tx.readOnly || tx.done.Load() {
		return fmt.Errorf("memory store: %w", ErrTxDone)
	}
	return nil
}

type open struct{ store *Store } // context key: the open write transaction of that store

// Update runs fn in a write transaction and commits it when fn returns nil and ctx has not ended. An error, a panic and
// runtime.Goexit roll back. It returns after the functions given to AfterCommit have run. A call from inside another
// Update of the same store would wait for itself for ever and is an error instead: use Nested.
func (s *Store) Update(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if outer, ok := ctx.Value(open{s}).(*Tx); ok && !outer.done.Load() {
		return errors.New("memory store: Update inside an Update of the same store waits for itself: use Nested")
	}
	tx, err := s.begin(ctx)
	if err != nil {
		return err
	}
	if err := s.finish(context.WithValue(ctx, open{s}, tx), tx, fn); err != nil {
		return err
	}
	for _, f := range tx.after {
		f()
	}
	return nil
}

func (s *Store) begin(ctx context.Context) (*Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, convergo.Unreachable(fmt.Errorf("memory store: begin: %w", err))
	}
	select {
	case s.writing <- struct{}{}:
		return &Tx{store: s, now: *s.committed.Load()}, nil
	case <-ctx.Done():
		return nil, convergo.Unreachable(fmt.Errorf("memory store: begin: %w", ctx.Err()))
	}
}

func (s *Store) finish(ctx context.Context, tx *Tx, fn func(ctx context.Context, tx *Tx) error) error {
	defer func() { // also when fn panics or ends its goroutine: nothing was published, so that is the rollback
		tx.done.Store(true)
		<-s.writing
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory store: commit: %w", err)
	}
	next := tx.now
	s.committed.Store(&next)
	return nil
}

// View runs fn in a transaction that only reads. It sees the last commit and waits for nobody.
func (s *Store) View(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory store: view: %w", err)
	}
	tx := &Tx{store: s, now: *s.committed.Load(), readOnly: true}
	defer tx.done.Store(true)
	return fn(ctx, tx)
}

// Nested runs fn inside a savepoint of tx. When fn returns an error or panics, only what it wrote, and the wake-ups that
// it arranged, are undone; tx stays usable. The error is returned as it is; a panic goes on.
func (s *Store) Nested(ctx context.Context, tx *Tx, fn func(ctx context.Context, tx *Tx) error) error {
	if err := tx.writable(); err != nil {
		return err
	}
	saved, hooks, woken, kept := tx.now, len(tx.after), tx.woken, false
	defer func() {
		if !kept {
			tx.now, tx.after, tx.woken = saved, tx.after[:hooks:hooks], woken
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	kept = true
	return nil
}

// change is Update for the store's own methods that have no caller's transaction.
func (s *Store) change(ctx context.Context, what string, fn func(tx *Tx) error) error {
	err := s.Update(ctx, func(_ context.Context, tx *Tx) error { return fn(tx) })
	if err != nil {
		return fmt.Errorf("memory store: %s: %w", what, err)
	}
	return nil
}
