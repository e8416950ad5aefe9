package postgres_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

// quiet is a server on which nothing happens but what a test does: no autovacuum, and tests that use it run one at a time.
func quiet(t *testing.T) *testserver.Postgres {
	t.Helper()
	return testserver.Shared(t, &servers, "quiet", func() (*testserver.Postgres, error) {
		return testserver.OpenPostgres("autovacuum=off")
	})
}

func openQuiet(t *testing.T) (*testserver.Postgres, *postgres.Store) {
	t.Helper()
	server := quiet(t)
	return server, openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("quiet"), Notify: -1})
}

func one[T any](t testing.TB, s *postgres.Store, query string, args ...any) (value T) {
	t.Helper()
	must(t, s.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(&value)
	}))
	return value
}

// The event's row is its history. After it was written, sending it costs the removal of one narrow row, and when it is no longer
// kept its own removal and that of its entries in indexes.
func TestSendingAnEventWritesLessThanAHundredBytesOfWAL(t *testing.T) {
	server, s := openQuiet(t)
	const batch, batches = 500, 8
	perEvent := func(name string) float64 {
		leases := lease(t, s, name)
		for i := range batches {
			insert(t, s, many(fmt.Sprint(name, i), batch, 5)...)
		}
		if name == "checkpoint" {
			must(t, server.Exec("postgres", "CHECKPOINT"))
		}
		total, commits := int64(0), s.Stats().Commits
		xids := one[int64](t, s, "SELECT txid_snapshot_xmax(txid_current_snapshot())")
		for range batches {
			events := claim(t, s, leases, batch)
			if len(events) < batch {
				t.Fatalf("%d events claimed", len(events))
			}
			events = events[:batch]
			before := walPosition(t, s)
			settle(t, s, leases, events)
			total += walPosition(t, s) - before
		}
		if n := s.Stats().Commits - commits; n > 2*batches {
			t.Errorf("%s: %d commits of ours for %d batches, want 2 a batch at most", name, n, batches)
		}
		if n := one[int64](t, s, "SELECT txid_snapshot_xmax(txid_current_snapshot())") - xids; n > 2*batches {
			t.Errorf("%s: %d writing transactions on the server for %d batches, want 2 a batch at most", name, n, batches)
		}
		must(t, s.Release(context.Background(), name, leases))
		return float64(total) / batches / batch
	}
	const most = 100
	t.Logf("right after a checkpoint, when each page is written whole: %.1f bytes of WAL an event", perEvent("checkpoint"))
	bytes := perEvent("later")
	t.Logf("later: %.1f bytes of WAL an event", bytes)
	if bytes > most || bytes < 20 {
		t.Errorf("%.1f bytes of WAL an event, want %d at most (and below 20 nothing was removed)", bytes, most)
	}
	must(t, server.Exec("postgres", "ALTER SYSTEM SET full_page_writes = off"))
	must(t, server.Exec("postgres", "SELECT pg_reload_conf()"))
	t.Cleanup(func() {
		must(t, server.Exec("postgres", "ALTER SYSTEM RESET full_page_writes"))
		must(t, server.Exec("postgres", "SELECT pg_reload_conf()"))
	})
	eventually(t, "full_page_writes is off", 10*time.Second, func() bool { return one[string](t, s, "SHOW full_page_writes") == "off" })
	bytes = perEvent("plain")
	before, purged := walPosition(t, s), 0
	for {
		n, err := s.PurgeSent(t.Context(), time.Now().Add(time.Hour), batch)
		must(t, err)
		if n == 0 {
			break
		}
		purged += n
	}
	same(t, "purged", purged, 3*batches*batch)
	history := float64(walPosition(t, s)-before) / float64(purged)
	t.Logf("without whole pages: %.1f bytes of WAL an event, and %.1f when it is purged", bytes, history)
	if bytes > most || bytes < 20 {
		t.Errorf("%.1f bytes of WAL an event, want %d at most (and below 20 nothing was removed)", bytes, most)
	}
	if history > 2*most || history < 20 {
		t.Errorf("%.1f bytes of WAL an event that is purged, want %d at most", history, 2*most)
	}
}

func walPosition(t *testing.T, s *postgres.Store) int64 {
	t.Helper()
	return one[int64](t, s, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
}

// claimOf inserts 20 new events and tells how many pages their claim touches; then they are sent. It is the least of a few: once
// a second a claim looks at all delayed events.
func claimOf(t *testing.T, s *postgres.Store, leases []relay.Lease, name string) int {
	t.Helper()
	insert(t, s, many(name, 20, 1)...)
	pages := math.MaxInt
	for range 4 {
		n, err := s.ClaimBuffers(context.Background(), leases, 16)
		must(t, err)
		pages = min(pages, n)
	}
	events := claim(t, s, leases, 16)
	if len(events) != 20 {
		t.Fatalf("%d events claimed, want 20", len(events))
	}
	settle(t, s, leases, events)
	return pages
}

// work sends n events, so that as many dead rows are left behind.
func work(t *testing.T, s *postgres.Store, leases []relay.Lease, name string, n int) {
	t.Helper()
	for sent := 0; sent < n; {
		insert(t, s, many(fmt.Sprint(name, sent), 500, 1)...)
		events := claim(t, s, leases, 100)
		settle(t, s, leases, events)
		sent += len(events)
	}
}

func TestAHeldSnapshotDoesNotMakeClaimsSlow(t *testing.T) {
	server, s := openQuiet(t)
	db := foreign(t, server)
	leases := lease(t, s, "a")
	work(t, s, leases, "warm", 1000)
	must(t, server.Exec("postgres", "VACUUM"))
	clean := claimOf(t, s, leases, "clean")

	hold(t, db)
	work(t, s, leases, "held", 10_000)
	held := claimOf(t, s, leases, "second")
	t.Logf("pages of a claim of 20 events in 64 lanes: %d clean, %d with a held snapshot and 10,000 dead rows", clean, held)
	var delayed []convergo.Event // such as come due all the time, one for each order
	for i, e := range many("delayed", 5000, 1) {
		e.DeliverAt = time.Now().Add(time.Duration(i) * time.Microsecond)
		delayed = append(delayed, e)
	}
	insert(t, s, delayed...)
	for left := len(delayed); left > 0; {
		events := claim(t, s, leases, 100)
		settle(t, s, leases, events)
		left -= len(events)
	}
	promoted := claimOf(t, s, leases, "promoted")
	t.Logf("and after 5,000 delayed events became due: %d", promoted)
	if promoted > 2*clean {
		t.Errorf("a claim touches %d pages with dead delayed rows, %d without: want twice as many at most", promoted, clean)
	}
	if held > 2*clean {
		t.Errorf("a claim touches %d pages under a held snapshot, %d without: want twice as many at most", held, clean)
	}
	s.ForgetFloors()
	if naive := claimOf(t, s, leases, "naive"); naive < 4*clean {
		t.Errorf("a claim from the beginning touches %d pages, %d when all is clean: this test shows nothing", naive, clean)
	} else {
		t.Logf("from the lanes' beginning: %d", naive)
	}

	late := begin(t, db, nil) // a transaction that writes, and stays open
	_, err := s.Insert(context.Background(), late, []convergo.Event{event("late", 1)})
	must(t, err)
	work(t, s, leases, "open", 5000)
	writing := claimOf(t, s, leases, "third")
	t.Logf("with a writing transaction open too: %d", writing)
	if writing > 2*clean {
		t.Errorf("a claim touches %d pages while a writing transaction is open, %d without: want twice as many at most", writing, clean)
	}
	must(t, late.Commit())
	if events := claim(t, s, leases, 16); len(events) != 1 || events[0].Event.Key != event("late", 1).Key {
		t.Errorf("after its commit %d events are claimed, want the late one", len(events))
	}
}

func TestABlockedAggregateWithManyWaitingEventsDoesNotMakeClaimsSlow(t *testing.T) {
	server, s := openQuiet(t)
	leases := lease(t, s, "a")
	work(t, s, leases, "warm", 1000)
	must(t, server.Exec("postgres", "VACUUM"))
	clean := claimOf(t, s, leases, "clean")

	insert(t, s, event("blocked", 1))
	events := claim(t, s, leases, 1)
	must(t, s.Settle(context.Background(), relay.Settlement{
		Leases: needed(leases, events), Now: time.Now(),
		Failed: []relay.Failure{{Pending: events[0], Error: "no answer", Next: time.Now().Add(time.Hour), Place: "relay.publish"}},
	}))
	const waiting, chunk = 50_000, 5_000
	for n := 0; n < waiting; n += chunk {
		var list []convergo.Event
		for i := range chunk {
			list = append(list, event("blocked", n+i+2))
		}
		insert(t, s, list...)
		events = claim(t, s, leases, chunk)
		must(t, s.Settle(context.Background(), relay.Settlement{Leases: needed(leases, events), Aside: events, Now: time.Now()}))
	}
	same(t, "waiting", one[int](t, s, "SELECT count(*) FROM outbox_waiting"), waiting+1)
	blocked := claimOf(t, s, leases, "others")
	t.Logf("pages of a claim of 20 events in 64 lanes: %d clean, %d with an aggregate blocked and 50,000 events waiting", clean, blocked)
	if blocked > 3*clean {
		t.Errorf("a claim of other aggregates touches %d pages, %d when nothing is blocked: want three times as many at most", blocked, clean)
	}
}

// An event costs its transaction one statement, wake-ups or not: as much as an INSERT by hand. That is why its rate is that of the INSERT
// (BenchmarkABusinessTransactionWithAnEvent, BenchmarkWakeUps).
func TestAnEventCostsItsTransactionOneStatementAndNoCommit(t *testing.T) {
	server := quiet(t)
	for _, notify := range []time.Duration{-1, 0} {
		s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("counted"), Notify: notify})
		const n = 50
		before := s.Stats()
		for i := range n {
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				if _, err := tx.ExecContext(ctx, "SELECT 1"); err != nil {
					return err
				}
				fresh, err := s.Insert(ctx, tx, many(fmt.Sprint("counted", i), 1, 1))
				if err == nil && !fresh[0] {
					err = fmt.Errorf("event %d is no new one", i)
				}
				return err
			}))
		}
		after := s.Stats()
		same(t, "statements", after.Statements-before.Statements, int64(2*n))
		same(t, "commits", after.Commits-before.Commits, int64(n))
	}
}
