package brokertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// RollOut is the law of a consumer that gains an event type: an older and a newer instance run side by side, on two Brokers and one
// database, and are stopped and started again. Every event is applied once and each aggregate's in order, and none of the new type is
// ignored: what the older one gets of it is kept for the newer.
func RollOut(t *testing.T, b Backend, p Process) {
	t.Helper()
	db, err := p.Database(t.Context(), filepath.Join(t.TempDir(), "consumer.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rollOut{t: t, db: db}
	r.update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE effect (id VARCHAR(100) NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (id, version))")
		return err
	})
	another, _ := b.Another(t)
	newer := r.start(another, "OrderPaid", "OrderClosed")
	older := r.start(b.Broker, "OrderPaid")
	r.wave(b.Broker)
	r.applied("with both there", 3)
	older.stop()
	older = r.start(b.Broker, "OrderPaid")
	r.wave(b.Broker)
	r.applied("with an older one that was started again", 6)
	newer.stop()
	r.wave(b.Broker) // what is new in it waits, with what comes after that
	r.applied("with the newer one away: up to what is new", 7)
	newer = r.start(another, "OrderPaid", "OrderClosed")
	r.applied("with the newer one there again", 9)
	older.stop()
	newer.stop()
	if n := older.consumer.Stats().Ignored + newer.consumer.Stats().Ignored; n > 0 {
		t.Errorf("%d events were ignored", n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, wrong := range r.wrong {
		t.Error(wrong)
	}
}

const rollOutOrders = 40

type rollOut struct {
	t       *testing.T
	db      Database
	version int64 // of the last wave

	mu    sync.Mutex
	wrong []string
}

func (r *rollOut) update(fn func(ctx context.Context, tx convergo.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

// wave publishes of each order two events that all know and between them one that only the newer instance does.
func (r *rollOut) wave(b Broker) {
	r.t.Helper()
	var events []convergo.Event
	for o := range rollOutOrders {
		id := fmt.Sprint("O-", o)
		events = append(events, paid(id, r.version+1), event("order", "OrderClosed", id, r.version+2), paid(id, r.version+3))
	}
	r.version += 3
	publish(r.t, b, events...)
}

// applied waits until each order has come to the version and no further.
func (r *rollOut) applied(what string, version int64) {
	r.t.Helper()
	var n, highest int64
	eventually(r.t, 2*patience, what, func() bool {
		r.update(func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(MAX(version), 0) FROM effect").Scan(&n, &highest)
		})
		return n >= rollOutOrders*version
	})
	if n != rollOutOrders*version || highest != version {
		r.t.Errorf("%s: %d effects up to version %d, want %d up to %d", what, n, highest, rollOutOrders*version, version)
	}
}

// instance is one of the consumer.
type instance struct {
	consumer *inbox.Consumer[convergo.Tx]
	stop     func()
}

func (r *rollOut) start(b Broker, types ...string) instance {
	r.t.Helper()
	var subjects []convergo.Subject
	for _, eventType := range types {
		subjects = append(subjects, convergo.Subject{Topic: "order", Type: eventType})
	}
	source := subscribe(r.t, b, "payment", subjects...)
	c := inbox.New[convergo.Tx](r.db, r.db, source, inbox.Config{Consumer: "payment", Poll: 100 * time.Millisecond})
	for _, eventType := range types {
		c.Handle(eventType, r.handle)
	}
	end := begin(r.t, func(ctx context.Context) {
		if err := c.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	var once sync.Once
	stop := func() {
		once.Do(func() {
			end()
			if closer, ok := source.(io.Closer); ok {
				if err := closer.Close(); err != nil {
					r.t.Error("close: ", err)
				}
			}
		})
	}
	return instance{c, stop}
}

// handle writes the effect, and notes one that comes before an earlier one of its order.
func (r *rollOut) handle(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	var before int64
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM effect WHERE id = ?", e.Aggregate.ID).Scan(&before)
	if err == nil && before != e.Version-1 {
		r.mu.Lock()
		r.wrong = append(r.wrong, fmt.Sprintf("%s came after %d others of its order", e.Key, before))
		r.mu.Unlock()
	}
	_, failed := tx.ExecContext(ctx, "INSERT INTO effect (id, version) VALUES (?, ?)", e.Aggregate.ID, e.Version)
	return errors.Join(err, failed)
}
