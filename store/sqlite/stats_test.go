package sqlite_test

import (
	"context"
	"errors"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
)

func TestStatsCountWhatWasCommitted(t *testing.T) {
	s := withNotes(t, sqlite.Options{})
	before := s.Stats()
	for _, text := range []string{"one", "two"} {
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { return note(ctx, tx, text) }))
	}
	if err := s.Update(t.Context(), func(context.Context, convergo.Tx) error { return errors.New("no") }); err == nil {
		t.Error("the error was swallowed")
	}
	after := s.Stats()
	if after.Commits-before.Commits != 2 || after.Updates-before.Updates != 2 {
		t.Errorf("%d commits of %d updates, want 2 of 2", after.Commits-before.Commits, after.Updates-before.Updates)
	}
	if n := after.Statements - before.Statements; n != 3+3+2 { // BEGIN, INSERT, COMMIT twice; BEGIN, ROLLBACK
		t.Errorf("%d statements, want 8", n)
	}
}
