package mysql_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// Which aggregates wait is read without locks. One that was settled before the lanes were locked waits for its own reason now.
func TestAnAggregateThatWaitsForItselfByNowIsNotHastened(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s, db := open(t, dsn, mysql.Options{}), raw(t, dsn)
		must(t, insert(t.Context(), s, event("1", 1), event("2", 1)))
		leases, now := lease(t, s, "a"), time.Now()
		c, err := s.Claim(t.Context(), leases, 10, now)
		must(t, err)
		failed := relay.Settlement{Leases: leases, Now: now}
		for _, p := range c.Events {
			failed.Failed = append(failed.Failed, relay.Failure{Pending: p, Error: "waiting for order.OrderPaid: gone", Next: now.Add(time.Hour)})
		}
		must(t, s.Settle(t.Context(), failed))

		settling, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		defer func() { _ = settling.Rollback() }()
		_, err = settling.Exec("UPDATE outbox_lane SET owner = owner") // locks all of them
		must(t, err)
		hastened := make(chan int, 1)
		go func() {
			n, err := s.Hasten(t.Context(), leases, "waiting for order.OrderPaid: ", 10, now)
			if err != nil {
				t.Error(err)
			}
			hastened <- n
		}()
		waitForLock(t, db)
		later := convergo.Micros(now.Add(2 * time.Hour))
		_, err = settling.Exec("UPDATE outbox_blocked SET last_error = 'bad payload', next_attempt_at = ? WHERE aggregate_id = '1'", later)
		must(t, err)
		must(t, settling.Commit())
		same(t, "hastened", <-hastened, 1)
		var next int64
		must(t, db.QueryRow("SELECT next_attempt_at FROM outbox_blocked WHERE aggregate_id = '1'").Scan(&next))
		same(t, "its time", next, later)
	})
}

// waitForLock waits until a transaction on the database waits for a lock. InnoDB renews the list only when nobody has read it for 100 ms.
func waitForLock(t *testing.T, db *sql.DB) {
	t.Helper()
	limit, tick := time.NewTimer(20*time.Second), time.NewTicker(200*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for waits := false; !waits; {
		select {
		case <-tick.C:
			must(t, db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM information_schema.innodb_trx AS t
				JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE())`).Scan(&waits))
		case <-limit.C:
			t.Fatal("nobody waits for a lock")
		}
	}
}
