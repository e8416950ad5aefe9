package mysql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// Four writers and four relays, whose lanes move, whose events fail, wait, die and come delayed. Of 10,000 claims one may meet a
// deadlock; nothing is lost, nothing sent twice, and of an aggregate nothing overtakes.
func TestFourWritersAndFourRelaysHardlyEverDeadlock(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		l := load{dsn: fresh(t, server), sent: map[convergo.Key]int{}, last: map[convergo.Aggregate]int64{}}
		db := raw(t, l.dsn)
		before := deadlocks(t, db)
		open(t, l.dsn, mysql.Options{})
		var writers, relays sync.WaitGroup
		stop := make(chan struct{})
		for i := range 4 {
			w, r := open(t, l.dsn, mysql.Options{MaxConns: 2}), open(t, l.dsn, mysql.Options{MaxConns: 2})
			l.stores = append(l.stores, w, r)
			writers.Go(func() { l.write(t, w, i) })
			relays.Go(func() { l.relay(t, r, i, stop) })
		}
		writers.Wait()
		close(stop)
		relays.Wait()
		same(t, "events sent", int64(len(l.sent)), l.written.Load())
		for k, n := range l.sent {
			if n != 1 {
				t.Errorf("%s was sent %d times", k, n)
			}
		}
		met := int64(0)
		for _, s := range l.stores {
			met += s.Stats().Deadlocks
		}
		of := deadlocks(t, db) - before
		t.Logf("%d events, %d claims, %d settlements, %d deadlocks by the server's count, %d met", l.written.Load(), l.claims.Load(), l.settled.Load(), of, met)
		if most := l.claims.Load() / enoughClaims; of > most || met > most {
			t.Errorf("%d and %d deadlocks in %d claims, want %d at most", of, met, l.claims.Load(), most)
		}
	})
}

type load struct {
	dsn                      string
	stores                   []*mysql.Store
	written, claims, settled atomic.Int64

	mu   sync.Mutex
	sent map[convergo.Key]int
	last map[convergo.Aggregate]int64
}

// enoughClaims is for how many one deadlock is allowed. Writers write until there were as many.
const enoughClaims = 10_000

func (l *load) write(t *testing.T, s *mysql.Store, writer int) {
	for n := 1; l.claims.Load() < enoughClaims && !t.Failed(); n++ {
		e := event(fmt.Sprintf("%d-%d", writer, n%50), n/50+1)
		if n%10 == 0 {
			e.DeliverAt = time.Now().Add(time.Millisecond) // of an aggregate of its own, lest it is overtaken by right
			e.Aggregate.ID += fmt.Sprint("-delayed-", n)
		}
		if err := insert(t.Context(), s, e); err != nil {
			t.Error(err)
			return
		}
		l.written.Add(1)
	}
}

func (l *load) relay(t *testing.T, s *mysql.Store, i int, stop <-chan struct{}) {
	owner := fmt.Sprint("relay-", i)
	var held []relay.Lease
	for round := 0; ; round++ {
		if round%20 == 0 {
			if round%200 == 100 && i == 0 { // one of them comes and goes, and so the lanes move
				_ = s.Release(t.Context(), owner, held)
				held = nil
			}
			var err error
			if held, err = s.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Held: held, Term: time.Minute}); err != nil {
				t.Error(err)
				return
			}
		}
		c, err := s.Claim(t.Context(), held, 8, time.Now())
		l.claims.Add(1)
		if err == nil && len(c.Events) > 0 {
			err = l.settle(t, s, held, c.Events, round)
		}
		switch {
		case errors.Is(err, relay.ErrLeaseLost):
			t.Errorf("%s lost a lease while it lived: %v", owner, err)
			return
		case err != nil:
			t.Error(err)
			return
		}
		l.mu.Lock()
		finished := int64(len(l.sent)) == l.written.Load()
		l.mu.Unlock()
		select {
		case <-stop:
			if finished {
				_ = s.Release(t.Context(), owner, held)
				return
			}
		default:
		}
	}
}

// settle sends most of the events. In some rounds the first one fails: the others of its aggregate go aside.
func (l *load) settle(t *testing.T, s *mysql.Store, held []relay.Lease, events []relay.Pending, round int) error {
	set := relay.Settlement{Now: time.Now()}
	needs := map[convergo.Lane]bool{}
	var failed convergo.Aggregate
	for n, p := range events {
		needs[p.Lane] = true
		switch {
		case n == 0 && round%5 == 0 && p.Attempts < 2:
			failed = p.Event.Aggregate
			set.Failed = append(set.Failed, relay.Failure{Pending: p, Error: "no answer", Next: time.Now(), Place: "load"})
		case p.Held || p.Event.Aggregate == failed && !p.Queued:
			set.Aside = append(set.Aside, p)
		case p.Event.Aggregate == failed:
		default:
			set.Sent = append(set.Sent, p)
		}
	}
	for _, h := range held {
		if needs[h.Lane] {
			set.Leases = append(set.Leases, h)
		}
	}
	if err := s.Settle(t.Context(), set); err != nil {
		return err
	}
	l.settled.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range set.Sent {
		l.sent[p.Event.Key]++
		if was := l.last[p.Event.Aggregate]; p.Event.Version <= was {
			t.Errorf("%s: version %d after %d", p.Event.Aggregate, p.Event.Version, was)
		}
		l.last[p.Event.Aggregate] = p.Event.Version
	}
	return nil
}

// reads is how many pages fn asked the buffer pool for, the least of some tries: the server has things to do of its own.
func reads(t *testing.T, db *sql.DB, fn func()) int64 {
	t.Helper()
	ask := func() (n int64) {
		var name string
		must(t, db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'").Scan(&name, &n))
		return n
	}
	least := int64(1 << 62)
	for range 7 {
		before := ask()
		fn()
		least = min(least, ask()-before)
	}
	return least
}

// many runs an INSERT of n rows, which takes them from s (n).
func many(t *testing.T, db *sql.DB, n int, insert, rest string) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	if _, err = conn.ExecContext(t.Context(), "SET SESSION cte_max_recursion_depth = 1000000"); err != nil {
		_, err = conn.ExecContext(t.Context(), "SET SESSION max_recursive_iterations = 1000000") // MariaDB's name
	}
	must(t, err)
	_, err = conn.ExecContext(t.Context(), fmt.Sprintf("%s WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) %s", insert, n, rest))
	must(t, err)
}

// in is an event of an aggregate that is in the lane.
func in(lane convergo.Lane, name string) convergo.Event {
	for i := 0; ; i++ {
		if e := event(fmt.Sprint(name, "-", i), 1); e.Aggregate.Lane() == lane {
			return e
		}
	}
}

// 30,000 events of a lane were sent while a transaction that began before is open: none of their rows can be purged.
func TestAHeldSnapshotDoesNotMakeClaimsWalkOverWhatWasSent(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s, db := open(t, dsn, mysql.Options{}), raw(t, dsn)
		var offset atomic.Int64
		start := time.Now()
		s.FloorClock(func() time.Time { return start.Add(time.Duration(offset.Load())) })
		var leases []relay.Lease
		for _, l := range lease(t, s, "r") {
			if l.Lane == 7 {
				leases = append(leases, l)
			}
		}
		claim := func(want int) {
			c, err := s.Claim(t.Context(), leases, 16, time.Now())
			must(t, err)
			same(t, "claimed", len(c.Events), want)
		}
		// Rows of another lane, so that the index has the height that it will have.
		many(t, db, 30_000, "INSERT INTO outbox_pending (lane, event_id)", "SELECT 9, 0 FROM s")
		must(t, insert(t.Context(), s, in(7, "first")))
		claim(1)
		clean := reads(t, db, func() { claim(1) })
		_, err := db.ExecContext(t.Context(), "DELETE FROM outbox_pending WHERE lane = 7")
		must(t, err)

		holder, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		must(t, err)
		defer func() { must(t, holder.Rollback()) }()
		var n int
		must(t, holder.QueryRow("SELECT COUNT(*) FROM outbox_pending").Scan(&n))
		many(t, db, 30_000, "INSERT INTO outbox_pending (lane, event_id)", "SELECT 7, -1 FROM s")
		_, err = db.ExecContext(t.Context(), "DELETE FROM outbox_pending WHERE event_id = -1")
		must(t, err)
		must(t, insert(t.Context(), s, in(7, "last")))
		walked := reads(t, db, func() { offset.Add(int64(2 * time.Second)); claim(1) }) // each of these sweeps
		steady := reads(t, db, func() { claim(1) })
		t.Logf("pages read by a claim: %d clean, %d sweeping, %d then", clean, walked, steady)
		if walked < 3*clean {
			t.Errorf("a sweep reads %d pages, without what was sent it was %d: the case was not tried", walked, clean)
		}
		if steady > 2*clean {
			t.Errorf("a claim reads %d pages under a held snapshot, %d without", steady, clean)
		}
	})
}

// 50,000 events of one aggregate wait for its head; a claim of the others, and of its head, reads hardly more than without.
func TestABlockedAggregateWithManyWaitingEventsCostsOthersNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s, db := open(t, dsn, mysql.Options{}), raw(t, dsn)
		leases := lease(t, s, "r")
		must(t, insert(t.Context(), s, event("blocked", 1), event("other", 1)))
		c, err := s.Claim(t.Context(), leases, 16, time.Now())
		must(t, err)
		set := relay.Settlement{Leases: leases, Now: time.Now()}
		for _, p := range c.Events {
			if p.Event.Aggregate.ID == "blocked" {
				set.Failed = append(set.Failed, relay.Failure{Pending: p, Error: "x", Next: time.Now().Add(time.Hour), Place: "test"})
			}
		}
		must(t, s.Settle(t.Context(), set))
		claim := func(at time.Time, want int) {
			c, err := s.Claim(t.Context(), leases, 16, at)
			must(t, err)
			same(t, "claimed", len(c.Events), want)
		}
		claim(time.Now(), 1)
		clean := reads(t, db, func() { claim(time.Now(), 1) })
		cleanDue := reads(t, db, func() { claim(time.Now().Add(2*time.Hour), 2) })
		many(t, db, 50_000, "INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)",
			"SELECT 1000 + s.n, w.event_id, 0, w.aggregate_digest FROM s JOIN (SELECT * FROM outbox_waiting) AS w")
		full := reads(t, db, func() { claim(time.Now(), 1) })
		fullDue := reads(t, db, func() { claim(time.Now().Add(2*time.Hour), 2) })
		t.Logf("pages read by a claim: %d and %d with none waiting, %d and %d with 50,000", clean, cleanDue, full, fullDue)
		if full > clean+20 || fullDue > 3*cleanDue {
			t.Errorf("a claim reads %d pages (%d when the head is due) with 50,000 waiting, %d (%d) without", full, fullDue, clean, cleanDue)
		}
	})
}
