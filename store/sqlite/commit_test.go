package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
)

func open(t testing.TB, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "order.db"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// withNotes is a store with a table of the test's own.
func withNotes(t testing.TB, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	s := open(t, opts)
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)")
		return err
	}))
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func note(ctx context.Context, tx convergo.Tx, text string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO note (text) VALUES (?)", text)
	return err
}

func notes(t testing.TB, s *sqlite.Store) (n int) {
	t.Helper()
	must(t, s.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM note").Scan(&n)
	}))
	return n
}

// commits counts the commits of a store.
type commits struct{ n atomic.Int64 }

func (c *commits) probe(point string) {
	if point == "order.commit.after" {
		c.n.Add(1)
	}
}

func TestConcurrentUpdatesShareCommits(t *testing.T) {
	var c commits
	s := withNotes(t, sqlite.Options{Probe: c.probe})
	before := c.n.Load()
	const callers, each = 32, 20
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
					return note(ctx, tx, fmt.Sprintf("%d-%d", i, j))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := notes(t, s); n != callers*each {
		t.Errorf("%d notes, want %d", n, callers*each)
	}
	n := c.n.Load() - before
	t.Logf("%d updates in %d commits", callers*each, n)
	if n > callers*each/4 {
		t.Errorf("%d commits for %d updates of %d callers", n, callers*each, callers)
	}
}

// together runs the functions as Updates of one group: the first holds the transaction open until the others have queued.
func together(t *testing.T, s *sqlite.Store, fns ...func(ctx context.Context, tx convergo.Tx) error) []error {
	t.Helper()
	errs := make([]error, len(fns))
	started, release := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(started) }) // the function may run a second time
	var wg sync.WaitGroup
	wg.Go(func() {
		errs[0] = s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			begin()
			<-release
			return fns[0](ctx, tx)
		})
	})
	<-started
	for i, fn := range fns[1:] {
		queued := s.Queued()
		wg.Go(func() {
			errs[i+1] = errors.New("ended without an answer")
			errs[i+1] = s.Update(context.Background(), fn)
		})
		for s.Queued() == queued {
			runtime.Gosched()
		}
	}
	close(release)
	wg.Wait()
	return errs
}

func TestAFailingFunctionUndoesOnlyItself(t *testing.T) {
	var c commits
	s := withNotes(t, sqlite.Options{Probe: c.probe, GroupTime: 1 << 40})
	before := c.n.Load()
	refused := errors.New("refused")
	keep := func(text string) func(context.Context, convergo.Tx) error {
		return func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, text) }
	}
	errs := together(t, s, keep("a"), func(ctx context.Context, tx convergo.Tx) error {
		must(t, note(ctx, tx, "b"))
		return refused
	}, keep("c"), func(ctx context.Context, tx convergo.Tx) error {
		must(t, note(ctx, tx, "d"))
		return note(ctx, tx, "d") // violates a constraint
	}, keep("e"))
	if errs[0] != nil || errs[2] != nil || errs[4] != nil || !errors.Is(errs[1], refused) || errs[3] == nil {
		t.Errorf("got %v", errs)
	}
	if n := notes(t, s); n != 3 {
		t.Errorf("%d notes, want 3", n)
	}
	if n := c.n.Load() - before; n > 2 {
		t.Errorf("%d commits, want 1, or 2 when the one who runs again comes late", n)
	}
}

// Whoever failed runs once. Those before it in the group run twice, those after it once, and none a third time although a
// second one fails.
func TestAFailureMakesThoseBeforeItRunASecondTimeAndNeverAThird(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	runs := make([]int, 6)
	var fns []func(context.Context, convergo.Tx) error
	for i := range runs {
		fns = append(fns, func(ctx context.Context, tx convergo.Tx) error {
			runs[i]++
			if err := note(ctx, tx, fmt.Sprint(i)); err != nil {
				t.Errorf("run %d of function %d: %v", runs[i], i, err)
			}
			if i == 2 || i == 4 {
				return errors.New("refused")
			}
			return nil
		})
	}
	for i, err := range together(t, s, fns...) {
		if (err != nil) != (i == 2 || i == 4) {
			t.Errorf("function %d: %v", i, err)
		}
	}
	if got, want := fmt.Sprint(runs), "[2 2 1 1 1 1]"; got != want {
		t.Errorf("runs %s, want %s", got, want)
	}
	if n := notes(t, s); n != 4 {
		t.Errorf("%d notes, want 4", n)
	}
}

func TestAFailingFirstFunctionLeavesTheOthersAlone(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	errs := together(t, s, func(ctx context.Context, tx convergo.Tx) error {
		must(t, note(ctx, tx, "a"))
		return errors.New("refused")
	}, func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "b") })
	if errs[0] == nil || errs[1] != nil {
		t.Errorf("got %v", errs)
	}
	if n := notes(t, s); n != 1 {
		t.Errorf("%d notes, want 1", n)
	}
}

func TestAPanicOrGoexitUndoesItselfAndTheWriterGoesOn(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	var recovered any
	errs := together(t, s,
		func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "a") },
		func(ctx context.Context, tx convergo.Tx) error {
			must(t, note(ctx, tx, "b"))
			runtime.Goexit()
			return nil
		},
		func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "c") },
	)
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("got %v", errs)
	}
	func() {
		defer func() { recovered = recover() }()
		_ = s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			must(t, note(ctx, tx, "d"))
			panic("a mistake")
		})
	}()
	if recovered != "a mistake" {
		t.Errorf("recovered %v", recovered)
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "e") }))
	if n := notes(t, s); n != 3 {
		t.Errorf("%d notes, want 3", n)
	}
}

func TestHooksRunAfterTheSharedCommitAndNotForWhatWasUndone(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	var mu sync.Mutex
	ran := map[string]bool{}
	hook := func(tx convergo.Tx, name string) {
		tx.(convergo.AfterCommit).AfterCommit(func() {
			mu.Lock()
			defer mu.Unlock()
			ran[name] = notes(t, s) > 0 // sees what was committed
		})
	}
	refused := errors.New("refused")
	together(t, s, func(ctx context.Context, tx convergo.Tx) error {
		hook(tx, "kept")
		return note(ctx, tx, "a")
	}, func(ctx context.Context, tx convergo.Tx) error {
		hook(tx, "failed")
		return refused
	}, func(ctx context.Context, tx convergo.Tx) error {
		_ = s.Nested(ctx, tx, func(_ context.Context, tx convergo.Tx) error { hook(tx, "nested failed"); return refused })
		must(t, s.Nested(ctx, tx, func(_ context.Context, tx convergo.Tx) error { hook(tx, "nested kept"); return nil }))
		return note(ctx, tx, "b")
	})
	if got, want := fmt.Sprint(ran), "map[kept:true nested kept:true]"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
}

func TestACallerWhoseContextEndsInTheQueueLeaves(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	must(t, s.Update(t.Context(), func(outer context.Context, tx convergo.Tx) error {
		go func() {
			waiting <- s.Update(ctx, func(context.Context, convergo.Tx) error {
				t.Error("the function of a caller that left has run")
				return nil
			})
		}()
		for s.Queued() == 0 {
			runtime.Gosched()
		}
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		return note(outer, tx, "a")
	}))
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "b") }))
	if n := notes(t, s); n != 2 {
		t.Errorf("%d notes, want 2", n)
	}
}

func TestATransactionIsUselessAfterItsFunction(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	var kept, nested, view convergo.Tx
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		kept = tx
		return s.Nested(ctx, tx, func(_ context.Context, tx convergo.Tx) error { nested = tx; return nil })
	}))
	must(t, s.View(t.Context(), func(_ context.Context, tx convergo.Tx) error { view = tx; return nil }))
	for name, tx := range map[string]convergo.Tx{"update": kept, "nested": nested, "view": view} {
		_, exec := tx.ExecContext(t.Context(), "DELETE FROM note")
		rows, query := tx.QueryContext(t.Context(), "SELECT 1")
		if rows != nil {
			t.Errorf("%s: a transaction that is over still reads: %v", name, rows.Err())
			must(t, rows.Close())
		}
		var n int
		row := tx.QueryRowContext(t.Context(), "SELECT 1").Scan(&n)
		for i, err := range []error{exec, query, row} {
			if !errors.Is(err, sqlite.ErrTxDone) {
				t.Errorf("%s, statement %d: %v", name, i, err)
			}
		}
	}
}

func TestAnUpdateInsideAnUpdateIsAnErrorNotADeadlock(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	must(t, s.Update(t.Context(), func(ctx context.Context, _ convergo.Tx) error {
		if err := s.Update(ctx, func(context.Context, convergo.Tx) error { return nil }); err == nil {
			t.Error("it was allowed")
		}
		return nil
	}))
}

func TestAViewSeesOneSnapshotAndWritesNothing(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		count := func() (n int) {
			must(t, tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM note").Scan(&n))
			return n
		}
		before := count()
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "a") }))
		if after := count(); after != before {
			t.Errorf("%d notes, then %d", before, after)
		}
		if err := note(ctx, tx, "b"); err == nil {
			t.Error("a view has written")
		}
		return nil
	}))
	if n := notes(t, s); n != 1 {
		t.Errorf("%d notes, want 1", n)
	}
}

// A statement that ends the transaction below Update (here somebody's own SQL; a full disk does the same) must not let
// half of it be kept, nor let anybody believe in it (B21).
func TestATransactionEndedBelowTheStoreIsLostForAllAndSaidSo(t *testing.T) {
	for _, ending := range []string{"COMMIT", "ROLLBACK"} {
		s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
		errs := together(t, s,
			func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "a") },
			func(ctx context.Context, tx convergo.Tx) error {
				must(t, note(ctx, tx, "b"))
				_, _ = tx.ExecContext(ctx, ending) // and its error is swallowed
				_ = note(ctx, tx, "c")             // would be a transaction of its own
				return nil
			},
			func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "d") },
		)
		if errs[0] == nil || errs[1] == nil {
			t.Errorf("%s: got %v", ending, errs)
		}
		want := 0
		if errs[2] == nil {
			want = 1
		}
		if n := notes(t, s); n != want {
			t.Errorf("%s: %d notes, want %d", ending, n, want)
		}
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "e") }))
		if n := notes(t, s); n != want+1 {
			t.Errorf("%s: %d notes after the next update, want %d", ending, n, want+1)
		}
	}
}

func TestRowsThatAreBeingReadAreNotDisturbedByTheSameStatement(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		for i := range 5 {
			must(t, note(ctx, tx, fmt.Sprint(i)))
		}
		const query = "SELECT id FROM note ORDER BY id"
		outer, err := tx.QueryContext(ctx, query)
		must(t, err)
		defer func() { must(t, outer.Close()) }()
		pairs := 0
		for outer.Next() {
			func() {
				inner, err := tx.QueryContext(ctx, query)
				must(t, err)
				defer func() { must(t, inner.Close()) }()
				for inner.Next() {
					pairs++
				}
				must(t, inner.Err())
			}()
		}
		if pairs != 25 {
			t.Errorf("%d pairs, want 25", pairs)
		}
		return outer.Err()
	}))
}

func TestAClosedStoreSaysSo(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	must(t, s.Close())
	must(t, s.Close())
	for _, err := range []error{
		s.Update(t.Context(), func(context.Context, convergo.Tx) error { return nil }),
		s.View(t.Context(), func(context.Context, convergo.Tx) error { return nil }),
	} {
		if !errors.Is(err, sqlite.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
}

func TestCloseWaitsForThoseWhoHaveBegun(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	begun, release, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			close(begun)
			<-release
			return note(ctx, tx, "a")
		}))
	})
	<-begun
	go func() {
		defer close(closed)
		_ = s.Close()
	}()
	close(release)
	wg.Wait()
	<-closed
}
