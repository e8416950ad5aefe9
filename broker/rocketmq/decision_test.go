package rocketmq

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testserver"
)

// database is a store that a service can have.
type database interface {
	Store
	outbox.Store[convergo.Tx]
	View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	Close() error
}

// onEachDatabase runs a test on SQLite, PostgreSQL, MariaDB and MySQL.
func onEachDatabase(t *testing.T, test func(t *testing.T, db database, d *decisions)) {
	onMySQL := func(name string, server func() (*testserver.MySQL, error)) func(t *testing.T) (database, error) {
		return func(t *testing.T) (database, error) {
			s := testserver.Shared(t, &servers, name, server)
			fresh, err := s.Database()
			if err != nil {
				return nil, err
			}
			return mysql.Open(t.Context(), s.DSN(fresh), mysql.Options{})
		}
	}
	for name, open := range map[string]func(t *testing.T) (database, error){
		"sqlite": func(t *testing.T) (database, error) {
			return sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "order.db"), sqlite.Options{})
		},
		"postgres": func(t *testing.T) (database, error) {
			s := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
			fresh, err := s.Database("order")
			if err != nil {
				return nil, err
			}
			return postgres.Open(t.Context(), s.DSN(fresh), postgres.Options{})
		},
		"mariadb": onMySQL("mariadb", testserver.OpenMariaDB),
		"mysql":   onMySQL("mysql", testserver.OpenMySQL),
	} {
		t.Run(name, func(t *testing.T) {
			db, err := open(t)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			d, err := openDecisions(t.Context(), db, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			test(t, db, d)
		})
	}
}

func TestOneDecisionStandsWhoeverMakesItFirst(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, db database, d *decisions) {
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
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, db database, d *decisions) {
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
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, db database, d *decisions) {
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
