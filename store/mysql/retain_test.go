package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// Rows of 20 MB take their time to be deleted, and so do these. The server goes on with a statement that nobody waits for any more, and
// its rows are locked until then: another round comes to them.
func TestRowsThatTakeLongToBeDeletedLeaveInSmallerChunks(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		ctx := t.Context()
		const rows = 16
		var events []convergo.Event
		for i := range rows {
			events = append(events, event(fmt.Sprint(i), 1))
		}
		must(t, insert(ctx, s, events...))
		leases := lease(t, s, "r")
		c, err := s.Claim(ctx, leases, 100, time.Now())
		must(t, err)
		dead := relay.Settlement{Leases: leases, Now: time.Now()}
		for _, p := range c.Events {
			dead.Dead = append(dead.Dead, relay.Failure{Pending: p, Error: "too large", Place: "test"})
		}
		must(t, s.Settle(ctx, dead))
		list, err := s.DeadEvents(ctx, 100, 0)
		must(t, err)
		for _, d := range list {
			must(t, s.DiscardEvent(ctx, d.ID, "ann", "too large", time.Now()))
		}
		db := raw(t, dsn)
		_, err = db.ExecContext(ctx, "CREATE TRIGGER slow BEFORE DELETE ON outbox_event FOR EACH ROW SET @slept = SLEEP(0.1)")
		must(t, err)
		var (
			mu    sync.Mutex
			asked []int
		)
		r := retain.New([]retain.Job{{Name: "sent", Keep: time.Hour, Purge: func(ctx context.Context, before time.Time, most int) (int, error) {
			mu.Lock()
			asked = append(asked, most)
			mu.Unlock()
			return s.PurgeSent(ctx, before.Add(2*time.Hour), most)
		}}}, retain.Config{Chunk: rows, ChunkTimeout: time.Second, Pause: retain.NoPause})
		deadline := time.Now().Add(30 * time.Second)
		for left := rows; left > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%d rows are left after asking for %v…", left, asked[:min(len(asked), 50)])
			}
			// One row alone may take too long on a busy machine: then the next round.
			if _, err := r.RunOnce(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			must(t, db.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_event").Scan(&left))
			<-time.After(50 * time.Millisecond) // until the next round
		}
		if asked[0] != rows || slices.Min(asked) > rows/2 {
			t.Errorf("asked for %v: 16 rows take 1.6 s of 1 s", asked)
		}
		var kept int
		must(t, db.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_discarded").Scan(&kept))
		same(t, "rows of discarded events", kept, 0)
	})
}
