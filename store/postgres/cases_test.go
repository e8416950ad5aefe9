package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/postgres"
)

func TestCaseB04AMessageFollowsTheFateOfAForeignTransaction(t *testing.T) {
	server := shared(t)
	s, db := open(t, postgres.Options{Notify: -1, Schema: server.Name("fate")}), foreign(t, server)
	leases := lease(t, s, "a")
	put := func(tx convergo.Tx, id string) {
		t.Helper()
		fresh, err := s.Insert(t.Context(), tx, []convergo.Event{event(id, 1)})
		must(t, err)
		same(t, "fresh "+id, fresh[0], true)
	}
	kept, undone, partly := begin(t, db, nil), begin(t, db, nil), begin(t, db, nil)
	put(kept, "kept")
	put(undone, "undone")
	put(partly, "o-1")
	for _, statement := range []string{"SAVEPOINT s1", "", "ROLLBACK TO s1"} {
		if statement == "" {
			put(partly, "o-2")
			continue
		}
		_, err := partly.Exec(statement)
		must(t, err)
	}
	put(partly, "o-3")
	same(t, "events before any commit", len(claim(t, s, leases, 10)), 0)
	must(t, kept.Commit())
	must(t, undone.Rollback())
	must(t, partly.Commit())

	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	must(t, err)
	defer func() { must(t, conn.Close(context.Background())) }()
	for _, commit := range []bool{true, false} {
		tx, err := conn.Begin(t.Context())
		must(t, err)
		id := fmt.Sprint("pgx-", commit)
		fresh, err := s.PGX().Insert(t.Context(), tx, []convergo.Event{event(id, 1), event(id, 2), event(id, 1)})
		must(t, err)
		same(t, "fresh", fmt.Sprint(fresh), "[true true false]")
		fresh, err = s.PGX().Insert(t.Context(), tx, []convergo.Event{event(id, 2)})
		must(t, err)
		same(t, "fresh, alone", fmt.Sprint(fresh), "[false]")
		if commit {
			must(t, tx.Commit(t.Context()))
		} else {
			must(t, tx.Rollback(t.Context()))
		}
	}
	found := keys(claim(t, s, leases, 10))
	for _, id := range []string{"kept", "o-1", "o-3", "pgx-true"} {
		same(t, id+" is there", found[event(id, 1).Key], true)
	}
	same(t, "events in all", len(found), 5)
}

// Another language writes by plain SQL, in its own transaction, from a session whose search_path names another schema.
func TestAnEventWrittenByPlainSQLIsAnEvent(t *testing.T) {
	server := shared(t)
	schema := server.Name("plain")
	s, db := open(t, postgres.Options{Notify: -1, Schema: schema}), foreign(t, server)
	leases := lease(t, s, "a")
	const text = `INSERT INTO %s.outbox_event (created_at, lane, deliver_at, key_digest, aggregate_digest, topic, type,
		aggregate_type, aggregate_id, message_id, event_key, payload)
		SELECT 1, get_byte(d, 0) %% 64, $2::bigint, sha256(convert_to($1, 'UTF8')), d, 'order', 'OrderPaid', 'order', '7', 'm', $1, '{}'
		  FROM (SELECT sha256('order/7') AS d) AS x`
	query := fmt.Sprintf(text, schema)
	_, err := db.Exec(query, "plain", 0)
	must(t, err)
	_, err = db.Exec(query, "delayed", time.Now().Add(time.Hour).UnixMicro())
	must(t, err)
	events := claim(t, s, leases, 10)
	if len(events) != 1 || events[0].Event.Key != "plain" || events[0].Lane != order("7").Lane() || events[0].Event.Validate() != nil {
		t.Errorf("claimed %+v", events)
	}
	c, err := s.Claim(t.Context(), leases, 10, time.Now().Add(2*time.Hour))
	must(t, err)
	same(t, "events when the delayed one is due", len(c.Events), 2)
	for _, wrong := range []string{
		"UPDATE %s.outbox_event SET lane = 64", "UPDATE %s.outbox_event SET key_digest = '\\x00'",
		"UPDATE %s.outbox_event SET aggregate_digest = ''",
	} {
		if _, err := db.Exec(fmt.Sprintf(wrong, schema)); err == nil {
			t.Errorf("accepted: %s", wrong)
		}
	}
}

// A dead event was redriven ahead of one that had failed.
func TestAQueuedEventThatFailedBeforeIsTheLastOfItsClaim(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	leases := lease(t, s, "a")
	insert(t, s, event("1", 1), event("1", 2), event("1", 3))
	events := claim(t, s, leases, 10)
	failure := func(p relay.Pending) []relay.Failure {
		return []relay.Failure{{Pending: p, Error: "no", Place: "relay.publish", Next: time.Now()}}
	}
	must(t, s.Settle(t.Context(), relay.Settlement{
		Leases: needed(leases, events), Dead: failure(events[0]), Failed: failure(events[1]), Aside: events[2:], Now: time.Now(),
	}))
	dead, err := s.DeadEvents(t.Context(), 10, 0)
	must(t, err)
	must(t, s.RedriveEvent(t.Context(), dead[0].ID, "ann", "", time.Now()))
	var versions []int64
	for _, p := range claim(t, s, leases, 10) {
		versions = append(versions, p.Event.Version)
	}
	same(t, "versions", fmt.Sprint(versions), "[1 2]")
}

// Another process writes one whose time has passed already, below the floor of the claims here.
func TestADelayedEventOfAnotherProcessThatIsOverdueIsFoundWithinASecondOrSo(t *testing.T) {
	server := shared(t)
	schema := server.Name("overdue")
	here := open(t, postgres.Options{Notify: -1, Schema: schema})
	there := openOn(t, server.DSN("postgres"), postgres.Options{Notify: -1, Schema: schema})
	leases := lease(t, here, "a")
	put := func(s *postgres.Store, id string) {
		e := event(id, 1)
		e.DeliverAt = time.Now().Add(-time.Minute)
		insert(t, s, e)
	}
	same(t, "claimed at first", len(claim(t, here, leases, 10)), 0)
	put(here, "own")
	same(t, "claimed of the own", len(claim(t, here, leases, 10)), 1)
	put(there, "other")
	eventually(t, "the other's is claimed", 5*time.Second, func() bool { return len(claim(t, here, leases, 10)) == 2 })
}

// The lease is the database's: nobody asks the process that was killed.
func TestCaseB13LanesOfADeadRelayAreTakenOverWithinALeaseAndAHalf(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	const term = 3 * time.Second
	ask := func(owner string) []relay.Lease {
		leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Term: term})
		must(t, err)
		return leases
	}
	began := time.Now()
	killed := ask("killed")
	same(t, "its lanes", len(killed), convergo.Lanes)
	insert(t, s, event("1", 1))
	events := claim(t, s, killed, 10)
	eventually(t, "the other one has all lanes", 10*time.Second, func() bool { return len(ask("other")) == convergo.Lanes })
	if took := time.Since(began); took > term*3/2 {
		t.Errorf("the lanes were taken over after %v, want %v at most", took, term*3/2)
	}
	err := s.Settle(t.Context(), relay.Settlement{Leases: needed(killed, events), Sent: events, Now: time.Now()})
	if !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("the killed one settles: %v", err)
	}
}

// A process that is stopped in the middle of a transaction keeps its locks only as long as the server lets it.
func TestATransactionOfAStoppedProcessIsEndedByTheServer(t *testing.T) {
	server := shared(t)
	schema := server.Name("stopped")
	stopped := open(t, postgres.Options{Notify: -1, Schema: schema, IdleInTransaction: 300 * time.Millisecond})
	other := openOn(t, server.DSN("postgres"), postgres.Options{Notify: -1, Schema: schema})
	locked, ended := make(chan struct{}), make(chan error, 1)
	resume := make(chan struct{})
	go func() {
		ended <- stopped.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE outbox_lane SET owner = 'stopped', expires_at = 1")
			close(locked)
			<-resume
			return err
		})
	}()
	<-locked
	same(t, "lanes while the rows are locked", len(lease(t, other, "b")), 0) // it does not wait for them either
	eventually(t, "the lanes are free", 10*time.Second, func() bool { return len(lease(t, other, "b")) == convergo.Lanes })
	close(resume)
	if err := <-ended; err == nil || convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("the stopped one's update: %v (%v), want an outage", err, convergo.VerdictOf(err))
	}
	same(t, "tokens taken by the stopped one", one[int](t, other, "SELECT count(*) FROM outbox_lane WHERE owner = 'stopped'"), 0)
}

func TestCaseB14CleanersNeitherWaitForEachOtherNorDisturbProducers(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1, MaxConns: 16})
	leases := lease(t, s, "a")
	const sent, dead = 6000, 50
	for n := 0; n < sent; n += 1000 {
		insert(t, s, many(fmt.Sprint("old-", n), 1000, 4)...)
		events := claim(t, s, leases, 1000)
		settle(t, s, leases, events)
	}
	insert(t, s, many("dead", dead, 1)...)
	events := claim(t, s, leases, 1000)
	var failures []relay.Failure
	for _, p := range events {
		failures = append(failures, relay.Failure{Pending: p, Error: "too large", Place: "relay.publish"})
	}
	must(t, s.Settle(t.Context(), relay.Settlement{Leases: needed(leases, events), Dead: failures, Now: time.Now()}))

	var producers, cleaners sync.WaitGroup
	stop := make(chan struct{})
	var produced, purged atomic.Int64
	for p := range 4 {
		producers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				e := event(fmt.Sprint("new-", p, "-", n), 1)
				e.CreatedAt = time.Now()
				if err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
					_, err := s.Insert(ctx, tx, []convergo.Event{e})
					return err
				}); err != nil {
					t.Error(err)
					return
				}
				produced.Add(1)
			}
		})
	}
	before := time.UnixMicro(1_700_000_000_000_001)
	for range 4 {
		cleaners.Go(func() {
			for empty := 0; empty < 20 && purged.Load() < sent; {
				n, err := s.PurgeSent(t.Context(), before, 500)
				if err != nil {
					t.Error(err)
					return
				}
				purged.Add(int64(n))
				if n == 0 { // the others hold what is left
					empty++
				}
			}
		})
	}
	cleaners.Wait()
	close(stop)
	producers.Wait()
	same(t, "purged", purged.Load(), sent)
	same(t, "transactions that had to begin again", s.Stats().Retries, 0)
	list, err := s.DeadEvents(t.Context(), 1000, 0)
	must(t, err)
	same(t, "dead events", len(list), dead)
	same(t, "events left", one[int64](t, s, "SELECT count(*) FROM outbox_event"), produced.Load()+dead)
}

// Two transactions look for keys that are not there, and then insert them; on some databases that is a deadlock.
func TestCaseB16LookingBeforeInsertingIsNoDeadlock(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	var looked, group sync.WaitGroup
	looked.Add(2)
	for i := range 2 {
		group.Go(func() {
			err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				e := event(fmt.Sprint(500+i), 1)
				if _, err := s.Blocked(ctx, tx, "stock", []convergo.Aggregate{order("500"), order("501")}); err != nil {
					return err
				}
				looked.Done()
				looked.Wait()
				if _, err := s.Mark(ctx, tx, "stock", e, true, time.Now()); err != nil {
					return err
				}
				return s.Enqueue(ctx, tx, "stock", e, time.Now())
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	same(t, "marks", one[int](t, s, "SELECT count(*) FROM inbox_mark"), 2)
	same(t, "transactions that had to begin again", s.Stats().Retries, 0)
}

// A lock that somebody holds is waited for; what reads never waits.
func TestCaseB18ALockIsWaitedForAndAClaimWaitsForNone(t *testing.T) {
	server := shared(t)
	schema := server.Name("locked")
	s, db := open(t, postgres.Options{Notify: -1, Schema: schema}), foreign(t, server)
	leases := lease(t, s, "a")
	insert(t, s, event("1", 1))
	other := begin(t, db, nil)
	for _, table := range []string{"outbox_lane", "outbox_pending", "outbox_event"} {
		_, err := other.Exec("SELECT * FROM " + schema + "." + table + " FOR UPDATE")
		must(t, err)
	}
	events := claim(t, s, leases, 10)
	same(t, "claimed", len(events), 1)
	settled := make(chan error, 1)
	go func() {
		settled <- s.Settle(context.Background(), relay.Settlement{Leases: needed(leases, events), Sent: events, Now: time.Now()})
	}()
	eventually(t, "the settlement waits", 10*time.Second, func() bool {
		var waiting bool
		must(t, db.QueryRow("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)").Scan(&waiting))
		return waiting
	})
	must(t, other.Rollback())
	must(t, <-settled)
	same(t, "left", len(claim(t, s, leases, 10)), 0)
}

func TestCaseB21ADuplicateIsNoErrorAndACommitThatWasARollbackIsOne(t *testing.T) {
	server := shared(t)
	schema := server.Name("b21")
	s, db := open(t, postgres.Options{Notify: -1, Schema: schema}), foreign(t, server)
	exec(t, s, "CREATE TABLE note (text TEXT PRIMARY KEY)")
	mark := func(ctx context.Context, tx convergo.Tx) (inbox.Marked, error) {
		return s.Mark(ctx, tx, "log", event("m", 1), true, time.Now())
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { _, err := mark(ctx, tx); return err }))

	tx := begin(t, db, nil) // somebody else's transaction
	for _, text := range []string{"order-log-1", "", "order-log-2"} {
		if text == "" {
			m, err := mark(t.Context(), tx)
			must(t, err)
			same(t, "mark", m, inbox.Duplicate)
			continue
		}
		_, err := tx.Exec("INSERT INTO "+schema+".note VALUES ($1)", text)
		must(t, err)
	}
	must(t, tx.Commit())
	same(t, "rows kept", one[int](t, s, "SELECT count(*) FROM note"), 2)

	runs := 0
	err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		runs++
		_, _ = tx.ExecContext(ctx, "INSERT INTO note VALUES ('order-log-3')")
		_, _ = tx.ExecContext(ctx, "INSERT INTO note VALUES ('order-log-1')") // the error is passed over
		return nil
	})
	if !errors.Is(err, postgres.ErrRolledBack) {
		t.Errorf("Update returned %v, want ErrRolledBack", err)
	}
	same(t, "runs", runs, 1)
	same(t, "rows kept", one[int](t, s, "SELECT count(*) FROM note"), 2)
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { // the connection is as good as new
		_, err := tx.ExecContext(ctx, "INSERT INTO note VALUES ('order-log-4')")
		return err
	}))
}

// Whatever the database's own collation: what identifies something is bytes, or text that is compared as bytes.
func TestCaseB47EveryKeyIsComparedAsBytes(t *testing.T) {
	server := shared(t)
	schema := server.Name("b47")
	s := open(t, postgres.Options{Notify: -1, Schema: schema})
	var wrong []string
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT DISTINCT c.relname || '.' || a.attname FROM pg_index i
			JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
			LEFT JOIN pg_collation k ON k.oid = a.attcollation
			WHERE n.nspname = ? AND c.relname NOT LIKE 'goose%' AND a.attcollation <> 0 AND k.collname <> 'C'`, schema)
		if err != nil {
			return err
		}
		for rows.Next() {
			var name string
			must(t, rows.Scan(&name))
			wrong = append(wrong, name)
		}
		return rows.Err()
	}))
	if len(wrong) > 0 {
		t.Errorf("in an index, and compared by a collation: %v", wrong)
	}
	for i, k := range []convergo.Key{"Pay-7f", "pay-7F", "café-1", "cafe-1", "😀", "😡", "１", "1", "x\u200b", "x"} {
		e := event(fmt.Sprint(i), 1)
		e.Key = k
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			fresh, err := s.Insert(ctx, tx, []convergo.Event{e})
			same(t, fmt.Sprintf("fresh %q", k), fresh[0], true)
			m, again := s.Mark(ctx, tx, "stock", e, true, time.Now())
			same(t, fmt.Sprintf("mark of %q", k), m, inbox.Fresh)
			return errors.Join(err, again)
		}))
	}
}

// A message that is no event can hold anything. It must become a dead letter, or it would be delivered for ever.
func TestAMessageWithTextsThatAreNoTextsIsBuried(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1})
	e := convergo.Event{
		Key: "k\x00", Type: "\xff\xfe", Topic: "a\x00b", Aggregate: convergo.Aggregate{Type: "\x00", ID: "\xc3("}, MessageID: "\x00",
		Headers: map[string]string{"h\x00": "\xff"}, Payload: []byte{0, 255},
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		f := inbox.Failure{Event: e, Attempts: 1, Error: "no event\x00\xff", Place: "inbox"}
		buried, err := s.Bury(ctx, tx, "stock", f, true, time.Now())
		same(t, "buried", buried, true)
		return errors.Join(err, s.Fail(ctx, tx, "points", inbox.Failure{Event: e, Attempts: 1, Error: "\x00", Next: time.Now()}, time.Now()))
	}))
	letters, err := s.DeadLetters(t.Context(), "stock", 10, "")
	must(t, err)
	if len(letters) != 1 || string(letters[0].Event.Payload) != "\x00\xff" || letters[0].Error != "no event" {
		t.Errorf("letters: %+v", letters)
	}
}
