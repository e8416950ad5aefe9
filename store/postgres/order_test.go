package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/postgres"
)

// The transaction that drew the first number is open while thousands of later events come and go, so that every floor has
// moved far beyond its event.
func TestCaseB01ALateCommitIsFoundAndNobodyWaitsForIt(t *testing.T) {
	s, db := open(t, postgres.Options{Notify: -1}), foreign(t, shared(t))
	leases := lease(t, s, "a")
	for round, outcome := range []string{"commits", "rolls back", "is another's"} {
		late := begin(t, db, nil)
		if outcome == "is another's" { // an unrelated transaction that writes
			_, err := late.Exec("CREATE TEMPORARY TABLE unrelated (n INTEGER)")
			must(t, err)
		} else {
			_, err := s.Insert(t.Context(), late, []convergo.Event{event(fmt.Sprint("late-", round), 1)})
			must(t, err)
		}
		for n := range 20 {
			insert(t, s, many(fmt.Sprint(round, "-", n), 50, 5)...)
			events := claim(t, s, leases, 50)
			same(t, "events claimed while the transaction is open", len(events), 50)
			settle(t, s, leases, events)
		}
		if outcome == "commits" {
			must(t, late.Commit())
		} else {
			must(t, late.Rollback())
		}
		events := claim(t, s, leases, 50)
		want := 0
		if outcome == "commits" {
			want = 1
		}
		same(t, "events after it "+outcome, len(events), want)
		settle(t, s, leases, events)
	}
}

// A person empties the tables of a test system and has their numbers begin anew, while its relays run.
func TestASequenceThatIsSetBackHidesNoEvent(t *testing.T) {
	opts := postgres.Options{Notify: -1, Schema: shared(t).Name("schema")}
	s, db := open(t, opts), foreign(t, shared(t))
	leases := lease(t, s, "a")
	for n := range 3 {
		insert(t, s, many(fmt.Sprint(n), 50, 5)...)
		settle(t, s, leases, claim(t, s, leases, 50))
	}
	same(t, "events left", len(claim(t, s, leases, 50)), 0)
	_, err := db.Exec(`TRUNCATE "` + opts.Schema + `".outbox_event, "` + opts.Schema + `".outbox_pending RESTART IDENTITY`)
	must(t, err)
	insert(t, s, event("new", 1))
	same(t, "events found", len(claim(t, s, leases, 50)), 1)
}

// Writers wait between insert and commit, some in savepoints, some roll back; a report holds a snapshot; relays take the lanes
// from each other. What was committed is sent once, each aggregate's in order.
func TestWhateverTheOrderOfCommitsEveryEventIsSentOnceAndInOrder(t *testing.T) {
	s, db := open(t, postgres.Options{Notify: -1, MaxConns: 24}), foreign(t, shared(t))
	exec(t, s, "CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL)")
	for a := range 12 {
		exec(t, s, fmt.Sprintf("INSERT INTO counter VALUES ('%d', 0)", a))
	}
	hold(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var written [12]atomic.Int64
	var writers, relays sync.WaitGroup
	for range 12 {
		writers.Go(func() {
			for ctx.Err() == nil {
				a := rand.IntN(12)
				version := 0
				err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
					// Another table first: the transaction has its number long before it has the aggregate's lock.
					if _, err := tx.ExecContext(ctx, "INSERT INTO counter VALUES (?, 0)", fmt.Sprint(rand.Uint64())); err != nil {
						return err
					}
					wait(ctx, time.Duration(rand.IntN(4))*time.Millisecond)
					if _, err := tx.ExecContext(ctx, "UPDATE counter SET n = n + 1 WHERE name = ?", fmt.Sprint(a)); err != nil {
						return err
					}
					if err := tx.QueryRowContext(ctx, "SELECT n FROM counter WHERE name = ?", fmt.Sprint(a)).Scan(&version); err != nil {
						return err
					}
					err := s.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error {
						_, err := s.Insert(ctx, tx, []convergo.Event{event(fmt.Sprint(a), version)})
						return err
					})
					wait(ctx, time.Duration(rand.IntN(12))*time.Millisecond)
					if rand.IntN(8) == 0 {
						return errWanted
					}
					return err
				})
				if err == nil {
					written[a].Add(1)
				} else if !errors.Is(err, errWanted) {
					t.Error(err)
				}
			}
		})
	}
	var mu sync.Mutex
	last := map[convergo.Aggregate]int64{}
	done := make(chan struct{})
	for i := range 2 {
		relays.Go(func() {
			owner := fmt.Sprint("relay-", i)
			var held []relay.Lease
			for finished := false; ; {
				select {
				case <-done:
					finished = true
				default:
				}
				var err error
				if held, err = s.Lease(t.Context(), relay.LeaseRequest{Owner: owner, Held: held, Term: time.Minute}); err != nil {
					t.Error(err)
					return
				}
				events := claim(t, s, held, 20)
				mu.Lock()
				for _, p := range events {
					if before := last[p.Event.Aggregate]; p.Event.Version != before+1 {
						t.Errorf("%s: version %d after %d", p.Event.Aggregate, p.Event.Version, before)
					}
					last[p.Event.Aggregate] = p.Event.Version
				}
				mu.Unlock()
				settle(t, s, held, events)
				if finished && len(events) == 0 {
					return
				}
				if rand.IntN(40) == 0 { // the other one gets its lanes, and knows nothing of them
					must(t, s.Release(t.Context(), owner, held))
					held = nil
				}
			}
		})
	}
	writers.Wait()
	close(done)
	relays.Wait()
	total := int64(0)
	for a := range written {
		n := written[a].Load()
		total += n
		same(t, fmt.Sprintf("last version sent of %d", a), last[order(fmt.Sprint(a))], n)
	}
	t.Logf("%d events; %d pending rows are left", total, one[int](t, s, "SELECT count(*) FROM outbox_pending"))
	if total < 100 {
		t.Errorf("only %d events were written", total)
	}
}

var errWanted = errors.New("wanted by the test")

// wait lets time pass inside a transaction: what happens meanwhile elsewhere is the test.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
