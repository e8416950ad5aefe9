package sqlite_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
)

func TestAFailedCommitIsAnErrorForAllOfItsGroup(t *testing.T) {
	var s *sqlite.Store
	refuse := false
	s = withNotes(t, sqlite.Options{GroupTime: 1 << 40, Probe: func(point string) {
		if refuse && point == "order.commit.before" {
			if err := s.RefuseCommits(); err != nil {
				t.Error(err)
			}
		}
	}})
	refuse = true
	hooks := 0
	keep := func(text string) func(context.Context, convergo.Tx) error {
		return func(ctx context.Context, tx convergo.Tx) error {
			tx.(convergo.AfterCommit).AfterCommit(func() { hooks++ })
			return note(ctx, tx, text)
		}
	}
	for i, err := range together(t, s, keep("a"), keep("b"), keep("c")) {
		if err == nil {
			t.Errorf("caller %d was told that it is committed", i)
		}
	}
	same(t, "hooks that ran", hooks, 0)
	same(t, "notes", notes(t, s), 0)
}

// A full disk makes SQLite roll the whole transaction back at once; what comes after it would commit row by row.
func TestAFullDiskLosesTheGroupAndSaysSoToAll(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	errs := together(t, s,
		func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "a") },
		func(ctx context.Context, tx convergo.Tx) error {
			var pages int
			must(t, tx.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages))
			_, err := tx.ExecContext(ctx, "PRAGMA max_page_count = 1") // not below what there is
			must(t, err)
			_, err = tx.ExecContext(ctx, "INSERT INTO note (text) VALUES (hex(zeroblob(1000000)))")
			if err == nil {
				t.Error("the disk was not full")
			}
			var n int // the error is swallowed; what is read now would be another transaction's truth
			if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM note").Scan(&n); err == nil {
				t.Errorf("it reads on and sees %d notes", n)
			}
			_ = note(ctx, tx, "b") // and this must not be kept on its own
			return nil
		},
	)
	if errs[0] == nil || errs[1] == nil {
		t.Errorf("got %v", errs)
	}
	same(t, "notes", notes(t, s), 0)
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "PRAGMA max_page_count = 100000")
		return errors.Join(err, note(ctx, tx, "c"))
	}))
	same(t, "notes when there is room again", notes(t, s), 1)
}

func TestADeferredForeignKeyIsTheFaultOfTheOneWhoViolatedIt(t *testing.T) {
	s := withNotes(t, sqlite.Options{GroupTime: 1 << 40})
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE child (note INTEGER REFERENCES note (id) DEFERRABLE INITIALLY DEFERRED)")
		return err
	}))
	errs := together(t, s,
		func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "a") },
		func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO child VALUES (77)")
			return err
		},
		func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, "b") },
	)
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("got %v", errs)
	}
	same(t, "notes", notes(t, s), 2)
}

func TestAStoreThatWasNotClosedGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	first, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	defer func() { must(t, first.Close()) }()
	second, err := sqlite.Open(t.Context(), path, sqlite.Options{}) // in the same process, on the same file
	must(t, err)
	defer func() { must(t, second.Close()) }()
	for _, s := range []*sqlite.Store{first, second, first} {
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS x (id INTEGER)")
			return err
		}))
	}
}
