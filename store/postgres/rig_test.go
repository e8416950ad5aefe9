package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

func order(id string) convergo.Aggregate { return convergo.Aggregate{Type: "order", ID: id} }

func event(id string, version int) convergo.Event {
	return convergo.Event{
		Key: convergo.KeyFor("OrderPaid", id, int64(version)), MessageID: fmt.Sprintf("m-%s-%d", id, version), Type: "OrderPaid", Topic: "order",
		Aggregate: order(id), Version: int64(version), Payload: []byte(`{"paid": true}`), CreatedAt: time.UnixMicro(1_700_000_000_000_000),
	}
}

// many are n events, of n/each aggregates, with a prefix that makes them new.
func many(prefix string, n, each int) (list []convergo.Event) {
	for i := range n {
		list = append(list, event(fmt.Sprint(prefix, "-", i/each), i%each+1))
	}
	return list
}

func insert(t testing.TB, s *postgres.Store, list ...convergo.Event) {
	t.Helper()
	must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		fresh, err := s.Insert(ctx, tx, list)
		for i, f := range fresh {
			if !f {
				t.Errorf("%s is not fresh", list[i].Key)
			}
		}
		return err
	}))
}

func lease(t testing.TB, s *postgres.Store, owner string, held ...relay.Lease) []relay.Lease {
	t.Helper()
	leases, err := s.Lease(context.Background(), relay.LeaseRequest{Owner: owner, Held: held, Term: time.Hour})
	must(t, err)
	return leases
}

func claim(t testing.TB, s *postgres.Store, leases []relay.Lease, perLane int) []relay.Pending {
	t.Helper()
	c, err := s.Claim(context.Background(), leases, perLane, time.Now())
	must(t, err)
	return c.Events
}

func settle(t testing.TB, s *postgres.Store, leases []relay.Lease, sent []relay.Pending) {
	t.Helper()
	must(t, s.Settle(context.Background(), relay.Settlement{Leases: needed(leases, sent), Sent: sent, Now: time.Now()}))
}

// needed are the leases of the events' lanes.
func needed(leases []relay.Lease, events []relay.Pending) (list []relay.Lease) {
	var used [convergo.Lanes]bool
	for i := range events {
		used[events[i].Lane] = true
	}
	for _, l := range leases {
		if used[l.Lane] {
			list = append(list, l)
		}
	}
	return list
}

func keys(list []relay.Pending) map[convergo.Key]bool {
	found := map[convergo.Key]bool{}
	for _, p := range list {
		found[p.Event.Key] = true
	}
	return found
}

// foreign is another program's connection pool to the shared server.
func foreign(t testing.TB, server *testserver.Postgres) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", server.DSN("postgres"))
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// begin begins a transaction of another program.
func begin(t testing.TB, db *sql.DB, opts *sql.TxOptions) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), opts)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// hold takes a snapshot and keeps it until the test ends, as a long report does. It writes nothing.
func hold(t testing.TB, db *sql.DB) {
	t.Helper()
	tx := begin(t, db, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	var one int
	must(t, tx.QueryRow("SELECT 1").Scan(&one))
}

// eventually polls a condition.
func eventually(t testing.TB, what string, most time.Duration, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", most, what)
		case <-look.C:
		}
	}
}
