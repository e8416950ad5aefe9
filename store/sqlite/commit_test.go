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
	var wg sync.WaitGroup
	wg.Go(func() {
		errs[0] = s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			close(started)
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
		return note(ctx, tx, "a") // violates a constraint
	}, keep("e"))
	if errs[0] != nil || errs[2] != nil || errs[4] != nil || !errors.Is(errs[1], refused) || errs[3] == nil {
		t.Errorf("got %v", errs)
	}
	if n := notes(t, s); n != 3 {
		t.Errorf("%d notes, want 3", n)
	}
	if n := c.n.Load() - before; n != 1 {
		t.Errorf("%d commits, want 1", n)
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
