package rocketmq

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/sqltext"
)

// withDecisions opens an empty database with the table of decisions.
func withDecisions(t *testing.T, on kind) (database, *decisions) {
	t.Helper()
	db := openOn(t, on, on.fresh(t))
	d, err := openDecisions(t.Context(), db, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return db, d
}

func TestOneDecisionStandsWhoeverMakesItFirst(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		db, d := withDecisions(t, on)
		settle := func(id string) decision {
			stands, err := d.settle(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			return stands
		}
		local := func(id string, inside func()) (stands bool) {
			if err := db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) (err error) {
				stands, err = d.make(ctx, tx, id, commit)
				inside()
				return err
			}); err != nil {
				t.Error(err)
			}
			return stands
		}
		if settle("asked-first") != rollback || local("asked-first", func() {}) || settle("asked-first") != rollback {
			t.Error("what was told the broker to be rolled back was committed later")
		}
		// The question comes while the local transaction is open: the answer waits for its end.
		var asking sync.WaitGroup
		var stands decision
		if !local("committed-first", func() { asking.Go(func() { stands = settle("committed-first") }) }) {
			t.Error("the local transaction was refused")
		}
		if asking.Wait(); stands != commit {
			t.Errorf("the answer is to %s, and the transaction has committed", stands)
		}
		for range 20 {
			id, err := transactionID()
			if err != nil {
				t.Fatal(err)
			}
			var asking sync.WaitGroup
			asking.Go(func() { stands = settle(id) })
			committed := local(id, func() {})
			asking.Wait()
			if committed != (stands == commit) || settle(id) != stands {
				t.Fatalf("committed %v, answered %s, and now it is %s", committed, stands, settle(id))
			}
		}
	})
}

func TestADeliveredMessageIsTakenOutOfTheOutboxOnEachDatabase(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		db, d := withDecisions(t, on)
		delivered, other := paid("O-1", 1), paid("O-2", 1)
		delivered.DeliverAt, other.DeliverAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		if err := db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			return outbox.New[convergo.Tx](db, outbox.Config{}).Add(ctx, tx, delivered, other)
		}); err != nil {
			t.Fatal(err)
		}
		if err := d.delivered(t.Context(), delivered.Key); err != nil {
			t.Fatal(err)
		}
		var left string
		if err := db.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT e.event_key FROM outbox_delayed AS d JOIN outbox_event AS e ON e.id = d.event_id").Scan(&left)
		}); err != nil || left != string(other.Key) {
			t.Errorf("left in the outbox: %s (%v), want %s alone", left, err, other.Key)
		}
		if _, err := d.settle(t.Context(), "old"); err != nil {
			t.Fatal(err)
		}
		if n, err := d.purge(t.Context(), time.Now().Add(time.Minute), 10); n != 1 || err != nil {
			t.Errorf("purged %d (%v), want 1", n, err)
		}
	})
}

func TestADeliveredMessageWaitsForNobodyElsesTransaction(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		db, d := withDecisions(t, on)
		box := outbox.New[convergo.Tx](db, outbox.Config{})
		add := func(id string, inside func()) {
			e := paid(id, 1)
			e.DeliverAt = time.Now().Add(time.Hour)
			if err := db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				err := box.Add(ctx, tx, e)
				inside()
				return err
			}); err != nil {
				t.Error(err)
			}
		}
		add("O-1", func() {})
		add("O-2", func() {
			if db.Dialect() == sqltext.SQLite {
				return // one transaction at a time
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := d.delivered(ctx, paid("O-1", 1).Key); err != nil {
				t.Errorf("another local transaction is open: %v", err)
			}
		})
	})
}

// Both questions wait for the row of the local transaction. When it is rolled back one of them writes its own, and InnoDB may take
// them for a deadlock.
func TestTwoQuestionsThatWaitForATransactionThatIsRolledBackGetOneAnswer(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, on kind) {
		db, d := withDecisions(t, on)
		var asking sync.WaitGroup
		defer asking.Wait()
		for range 3 {
			id, err := transactionID()
			if err != nil {
				t.Fatal(err)
			}
			refused := errors.New("no stock")
			err = db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				if first, err := d.make(ctx, tx, id, commit); err != nil || !first {
					return errors.Join(err, errors.New("another decision was there"))
				}
				for range 2 {
					asking.Go(func() {
						if stands, err := d.settle(t.Context(), id); err != nil || stands != rollback {
							t.Errorf("answered %s (%v), want to roll back", stands, err)
						}
					})
				}
				if on.waiting != "" {
					eventually(t, "both wait", func() bool { return count(t, db, on.waiting) == 2 })
				}
				return refused
			})
			asking.Wait()
			if !errors.Is(err, refused) {
				t.Fatal(err)
			}
		}
	})
}
