package mysql_test

import (
	"context"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// BEGIN, the caller's statement, the event's, COMMIT: as many as with an INSERT by hand. That is why its rate is that of the INSERT
// (BenchmarkBusiness).
func TestAnEventCostsItsTransactionOneStatementAndNoCommit(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		const n = 50
		before := s.Stats()
		for i := range n {
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				if _, err := tx.ExecContext(ctx, "DO 1"); err != nil {
					return err
				}
				fresh, err := s.Insert(ctx, tx, []convergo.Event{event("counted", i+1)})
				if err == nil {
					same(t, "a new one", fresh[0], true)
				}
				return err
			}))
		}
		after := s.Stats()
		same(t, "statements", after.Statements-before.Statements, int64(4*n))
		same(t, "commits", after.Commits-before.Commits, int64(n))
	})
}
