package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

func event(aggregate string, n int) convergo.Event {
	return convergo.Event{
		MessageID: fmt.Sprintf("m-%s-%d", aggregate, n), Key: convergo.KeyFor("OrderChanged", aggregate, int64(n)), Type: "OrderChanged",
		Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: aggregate}, Version: int64(n), Payload: []byte("{}"),
		CreatedAt: time.Now(),
	}
}

func insert(ctx context.Context, s *mysql.Store, events ...convergo.Event) error {
	return s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := s.Insert(ctx, tx, events)
		return err
	})
}

func lease(t testing.TB, s *mysql.Store, owner string) []relay.Lease {
	t.Helper()
	leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Term: time.Hour})
	must(t, err)
	return leases
}

// deadlocks is how many the server has seen since it was started.
func deadlocks(t testing.TB, db *sql.DB) (n int64) {
	t.Helper()
	var name string
	err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(&name, &n) // MariaDB
	if errors.Is(err, sql.ErrNoRows) {
		err = db.QueryRow("SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks' AND status = 'enabled'").Scan(&n)
	}
	must(t, err)
	return n
}

// A transaction stays open for longer than the floor of its lane trails. Its event is found all the same, within a second.
func TestCaseB01ATransactionThatCommitsLateIsFoundBelowTheFloor(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		var offset atomic.Int64
		start := time.Now()
		s.FloorClock(func() time.Time { return start.Add(time.Duration(offset.Load())) })
		leases := lease(t, s, "r")
		claim := func() []relay.Pending {
			c, err := s.Claim(t.Context(), leases, 10, time.Now())
			must(t, err)
			return c.Events
		}
		late := event("late", 1)
		other := event("late", 1) // of the same lane, by another aggregate
		for i := 0; ; i++ {
			if other = event(fmt.Sprint("other-", i), 1); other.Aggregate.Lane() == late.Aggregate.Lane() {
				break
			}
		}
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			if _, err := s.Insert(ctx, tx, []convergo.Event{late}); err != nil {
				return err
			}
			for n := range 5 { // others come and go meanwhile, and the floor rises above the open one
				other.Key, other.Version = convergo.Key(fmt.Sprint("other ", n)), int64(n+1)
				must(t, insert(t.Context(), s, other))
				found := claim()
				same(t, "claimed while one is open", len(found), 1)
				must(t, s.Settle(t.Context(), relay.Settlement{Leases: leases, Sent: found, Now: time.Now()}))
				offset.Add(int64(3 * time.Second))
				same(t, "left", len(claim()), 0)
			}
			return nil
		}))
		offset.Add(int64(1100 * time.Millisecond))
		found := claim()
		if len(found) != 1 || found[0].Event.Key != late.Key {
			t.Fatalf("claimed after the late commit: %v", found)
		}
		for range 3 { // and stays found until it is settled
			same(t, "claimed again", len(claim()), 1)
			offset.Add(int64(100 * time.Millisecond))
		}
		must(t, s.Settle(t.Context(), relay.Settlement{Leases: leases, Sent: found, Now: time.Now()}))
		same(t, "left", len(claim()), 0)
	})
}

// A transaction stays open for longer than the floor of its lane trails, and the next event of its aggregate is written right after it
// has committed: the two come out in their order, and at once.
func TestCaseB01AnEventOfALongTransactionIsNotOvertakenByTheNextOfItsAggregate(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		var offset atomic.Int64
		start := time.Now()
		s.FloorClock(func() time.Time { return start.Add(time.Duration(offset.Load())) })
		leases := lease(t, s, "r")
		claim := func() []relay.Pending {
			c, err := s.Claim(t.Context(), leases, 10, time.Now())
			must(t, err)
			return c.Events
		}
		late := event("late", 1)
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			if _, err := s.Insert(ctx, tx, []convergo.Event{late}); err != nil {
				return err
			}
			for n := range 5 { // others come and go meanwhile
				must(t, insert(t.Context(), s, in(late.Aggregate.Lane(), fmt.Sprint("other-", n))))
				found := claim()
				same(t, "claimed while one is open", len(found), 1)
				must(t, s.Settle(t.Context(), relay.Settlement{Leases: leases, Sent: found, Now: time.Now()}))
				offset.Add(int64(3 * time.Second))
				same(t, "left", len(claim()), 0)
			}
			return nil
		}))
		must(t, insert(t.Context(), s, event("late", 2)))
		found := claim()
		if len(found) != 2 || found[0].Event.Version != 1 || found[1].Event.Version != 2 {
			t.Fatalf("claimed after the late commit: %v", found)
		}
	})
}

// Twenty relays in twenty processes' worth of stores, and the backlog has delayed events too: each is settled once.
func TestCaseB03TwentyRelaysOnOneBacklogSendEachEventOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		const relays, total = 20, 400
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		var list []convergo.Event
		for n := range total {
			e := event(fmt.Sprint(n%80), n/80+1)
			if n%4 == 0 {
				e.DeliverAt = time.Now().Add(-time.Second)
			}
			list = append(list, e)
		}
		must(t, insert(t.Context(), s, list...))
		var (
			mu    sync.Mutex
			sent  = map[convergo.Key]int{}
			group sync.WaitGroup
		)
		for i := range relays {
			own := open(t, dsn, mysql.Options{MaxConns: 2})
			group.Go(func() {
				owner := fmt.Sprint("relay-", i)
				var held []relay.Lease
				for t.Context().Err() == nil {
					var err error
					if held, err = own.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Held: held, Term: time.Hour}); err != nil {
						t.Error(err)
						return
					}
					c, err := own.Claim(t.Context(), held, 3, time.Now())
					if err == nil && len(c.Events) > 0 {
						err = own.Settle(t.Context(), relay.Settlement{Leases: held, Sent: c.Events, Now: time.Now()})
					}
					mu.Lock()
					if err == nil {
						for _, p := range c.Events {
							sent[p.Event.Key]++
						}
					} else {
						t.Error(owner, err)
					}
					finished := len(sent) == total
					mu.Unlock()
					if finished || err != nil {
						_ = own.Release(t.Context(), owner, held)
						return
					}
				}
			})
		}
		group.Wait()
		same(t, "different events sent", len(sent), total)
		for k, n := range sent {
			if n != 1 {
				t.Errorf("%s was sent %d times", k, n)
			}
		}
	})
}

// sentEvents is how many old events the cleaners find: as many as fit into the tests, or CONVERGO_SENT_EVENTS in a drill.
func sentEvents(t *testing.T) int {
	text := os.Getenv("CONVERGO_SENT_EVENTS")
	if text == "" {
		return 8000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1000 {
		t.Fatalf("CONVERGO_SENT_EVENTS=%s is not a number of at least 1000", text)
	}
	return n
}

// Four cleaners work beside producers. No producer gets an error that a lock caused, and what is dead stays.
func TestCaseB14FourCleanersDisturbNoProducer(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		const dead, cleaners, producers = 50, 4, 4
		sent := sentEvents(t)
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		db := raw(t, dsn)
		old := convergo.Micros(time.Now().Add(-8 * 24 * time.Hour))
		fill(t, db, sent)
		for _, statement := range []string{
			"DELETE FROM outbox_pending", "DELETE FROM outbox_delayed", "DELETE FROM outbox_waiting", "DELETE FROM outbox_blocked",
			fmt.Sprintf("UPDATE outbox_event SET created_at = %d", old), fmt.Sprintf("UPDATE inbox_mark SET marked_at = %d", old),
			fmt.Sprintf("INSERT INTO outbox_dead SELECT id, id, 0, 1, %d, aggregate_digest, 'p', 'e' FROM outbox_event ORDER BY id LIMIT %d", old, dead),
		} {
			_, err := db.ExecContext(t.Context(), statement)
			must(t, err)
		}
		before, stop := deadlocks(t, db), make(chan struct{})
		var purged, written atomic.Int64
		var cleaning, producing sync.WaitGroup
		for p := range producers {
			producing.Go(func() {
				for n := 1; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					e := event(fmt.Sprint("new-", p), n)
					err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
						if _, err := s.Insert(ctx, tx, []convergo.Event{e}); err != nil {
							return err
						}
						_, err := s.Mark(ctx, tx, "stock", e, true, time.Now())
						return err
					})
					if err != nil {
						t.Error(err)
						return
					}
					written.Add(1)
				}
			})
		}
		for range cleaners {
			own := open(t, dsn, mysql.Options{MaxConns: 2})
			cleaning.Go(func() {
				for {
					n, err := own.PurgeSent(t.Context(), time.Now().Add(-7*24*time.Hour), 500)
					marks, err2 := own.PurgeMarks(t.Context(), time.Now().Add(-7*24*time.Hour), 500)
					if err = errors.Join(err, err2); err != nil {
						t.Error(err)
						return
					}
					purged.Add(int64(n))
					if n+marks == 0 {
						return
					}
				}
			})
		}
		cleaning.Wait()
		close(stop)
		producing.Wait()
		stats := s.Stats()
		same(t, "purged", purged.Load(), int64(sent-dead))
		same(t, "deadlocks and lock waits of producers", stats.Deadlocks+stats.LockWaits, 0)
		same(t, "deadlocks of the server", deadlocks(t, db)-before, 0)
		left, err := s.DeadEvents(t.Context(), 1000, 0)
		must(t, err)
		same(t, "dead events left", len(left), dead)
		if written.Load() == 0 {
			t.Error("no producer wrote anything: the case was not tried")
		}
		t.Logf("%d events and marks written meanwhile", written.Load())
	})
}

// Two transactions look for keys that are not there, and then insert them, each in the other's gap.
func TestCaseB16LookingForAKeyThatIsMissingLocksNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		db := raw(t, dsn)
		before := deadlocks(t, db)
		for round := range 20 {
			looked := make(chan struct{}, 2)
			both := make(chan struct{})
			var group sync.WaitGroup
			for side := range 2 {
				group.Go(func() {
					first := true
					a := event(fmt.Sprint("evt-", round, "-", side), 1)
					err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
						if _, err := s.Blocked(ctx, tx, "stock", []convergo.Aggregate{a.Aggregate}); err != nil {
							return err
						}
						if first {
							first = false
							looked <- struct{}{}
							<-both
						}
						m, err := s.Mark(ctx, tx, "stock", a, true, time.Now())
						same(t, "mark", m, inbox.Fresh)
						if err != nil {
							return err
						}
						return s.Fail(ctx, tx, "stock", inbox.Failure{Event: a, Attempts: 1, Next: time.Now()}, time.Now())
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			<-looked
			<-looked
			close(both)
			group.Wait()
		}
		same(t, "deadlocks", deadlocks(t, db)-before, 0)
		var marks int
		must(t, db.QueryRow("SELECT COUNT(*) FROM inbox_mark").Scan(&marks))
		same(t, "marks", marks, 40)
	})
}

// The caller's own transaction, opened by his own pool, whose connections count rows that were found as affected.
func TestCaseB60ADuplicateIsToldInATransactionOfTheCallersWhateverItsConnectionCounts(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		if _, err := mysql.Open(t.Context(), dsn+"?clientFoundRows=true", mysql.Options{}); err == nil {
			t.Error("Open accepts clientFoundRows")
		}
		for _, parameters := range []string{"", "?clientFoundRows=true", "?clientFoundRows=true&interpolateParams=true", "?interpolateParams=true"} {
			db := raw(t, dsn+parameters)
			inTx := func(want bool, isolation sql.IsolationLevel) {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: isolation})
				must(t, err)
				e := event("foreign"+parameters, 1)
				fresh, err := s.Insert(t.Context(), tx, []convergo.Event{e, event("foreign"+parameters, 2), e})
				must(t, err)
				if fmt.Sprint(fresh) != fmt.Sprint([]bool{want, want, false}) {
					t.Errorf("%q: fresh: %v, want %v for the first two", parameters, fresh, want)
				}
				added, err := s.Calls().Add(t.Context(), tx, outside.Call{Kind: "k", Key: convergo.Key("call" + parameters), Group: "g"}, time.Now())
				must(t, err)
				same(t, parameters+": call added", added, want)
				m, err := s.Mark(t.Context(), tx, "stock", e, true, time.Now())
				must(t, err)
				same(t, parameters+": marked", m == inbox.Fresh, want)
				older := event("foreign"+parameters, 1)
				older.Key = "an older version" // its mark is taken back each time
				m, err = s.Mark(t.Context(), tx, "stock", older, true, time.Now())
				must(t, err)
				same(t, parameters+": an older version", m, inbox.Stale)
				must(t, tx.Commit())
			}
			inTx(true, sql.LevelDefault)
			inTx(false, sql.LevelReadCommitted)
		}
		leases := lease(t, s, "r")
		c, err := s.Claim(t.Context(), leases, 100, time.Now())
		must(t, err)
		same(t, "events", len(c.Events), 8)
	})
}

// The server's clock is said to be in China. Leases and retries go by instants.
func TestCaseB53TheServersTimeZoneMovesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		must(t, server.Exec("SET GLOBAL time_zone = '+08:00'"))
		defer func() { must(t, server.Exec("SET GLOBAL time_zone = 'SYSTEM'")) }()
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		leases := lease(t, s, "r")
		var expires int64
		must(t, raw(t, dsn).QueryRow("SELECT MIN(expires_at) FROM outbox_lane").Scan(&expires))
		if off := time.Until(convergo.FromMicros(expires)) - time.Hour; off < -time.Minute || off > time.Minute {
			t.Errorf("a lease of an hour ends %v off", off)
		}
		e := event("1", 1)
		e.DeliverAt = time.Now().Add(30 * time.Second)
		must(t, insert(t.Context(), s, e))
		early, err := s.Claim(t.Context(), leases, 10, e.DeliverAt.Add(-time.Millisecond))
		must(t, err)
		same(t, "claimed early", len(early.Events), 0)
		c, err := s.Claim(t.Context(), leases, 10, e.DeliverAt)
		must(t, err)
		same(t, "claimed in time", len(c.Events), 1)
	})
}
