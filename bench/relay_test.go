package bench

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/embedded"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

// batch is the relay's default.
const batch = 512

// backlog is a store with events to send, and a plain connection to the same file.
type backlog struct {
	size  int
	store *sqlite.Store
	plain *sql.DB
}

func newBacklog(t testing.TB, size int) *backlog {
	t.Helper()
	path := filepath.Join(t.TempDir(), "order.db")
	l := &backlog{size: size, store: openStore(t, path)}
	fill(t, l.store, size)
	// The settings of the store's own write connection.
	dsn := "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?_busy_timeout=5000&_synchronous=FULL&_txlock=immediate" +
		"&_pragma=cache_size(-16000)&_pragma=temp_store(MEMORY)&_pragma=wal_autocheckpoint(4000)"
	plain, err := sql.Open("sqlite", dsn)
	must(t, err)
	plain.SetMaxOpenConns(1)
	t.Cleanup(func() { must(t, plain.Close()) })
	l.plain = plain
	return l
}

// refill makes all events pending again. Only their narrow rows come and go: the events themselves stay, so every run finds
// the same pages. The WAL is emptied, so that no run pays for it.
func (l *backlog) refill(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for _, statement := range []string{
		"DELETE FROM outbox_pending",
		"INSERT INTO outbox_pending (lane, event_id) SELECT lane, id FROM outbox_event ORDER BY id",
		"PRAGMA wal_checkpoint(TRUNCATE)",
	} {
		_, err := l.plain.ExecContext(ctx, statement)
		must(t, err)
	}
}

func (l *backlog) pending(t testing.TB) (n int) {
	t.Helper()
	must(t, l.plain.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM outbox_pending").Scan(&n))
	return n
}

const selectBatch = `SELECT p.seq, e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type,
	e.aggregate_id, e.message_id, e.event_key, e.headers, e.payload
	FROM outbox_pending AS p JOIN outbox_event AS e ON e.id = p.event_id ORDER BY p.seq LIMIT ?`

// bareLoop is the least that a program can do to empty the table: read the oldest events and delete them, a batch a
// transaction. No lanes, no leases, no failures, no second relay, nothing published.
func (l *backlog) bareLoop(t testing.TB) run {
	ctx := context.Background()
	conn, err := l.plain.Conn(ctx)
	must(t, err)
	defer conn.Close()
	read, err := conn.PrepareContext(ctx, selectBatch)
	must(t, err)
	defer read.Close()
	remove, err := conn.PrepareContext(ctx, "DELETE FROM outbox_pending WHERE seq <= ?")
	must(t, err)
	defer remove.Close()
	return measure(l.store, func() int {
		done := 0
		for {
			n, err := l.bareBatch(ctx, conn, read, remove)
			must(t, err)
			if n == 0 {
				return done
			}
			done += n
		}
	})
}

func (l *backlog) bareBatch(ctx context.Context, conn *sql.Conn, read, remove *sql.Stmt) (int, error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	rows, err := tx.StmtContext(ctx, read).QueryContext(ctx, batch)
	if err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	events := make([]convergo.Event, 0, batch)
	var last int64
	for rows.Next() {
		var e convergo.Event
		var created, due int64
		var headers string
		err := rows.Scan(&last, &created, &due, &e.Version, &e.MaxAttempts, &e.Topic, &e.Type, &e.Aggregate.Type, &e.Aggregate.ID,
			&e.MessageID, &e.Key, &headers, &e.Payload)
		if err != nil {
			return 0, errors.Join(err, rows.Close(), tx.Rollback())
		}
		e.CreatedAt, e.DeliverAt = convergo.FromMicros(created), convergo.FromMicros(due)
		events = append(events, e)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(events) == 0 {
		return 0, errors.Join(err, tx.Rollback())
	}
	if _, err := tx.StmtContext(ctx, remove).ExecContext(ctx, last); err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	return len(events), tx.Commit()
}

// nobody is a publisher that confirms everything at once: what remains is the relay and its store.
type nobody struct{}

func (nobody) Publish(_ context.Context, events []convergo.Event) []error {
	return make([]error, len(events))
}

// counted is a relay's store that counts what is asked of it, and tells when so many events are settled.
type counted struct {
	*sqlite.Store
	goal                    int64
	settled, settles, calls atomic.Int64
	done                    chan struct{}
}

func count(s *sqlite.Store, goal int) *counted {
	return &counted{Store: s, goal: int64(goal), done: make(chan struct{})}
}

func (c *counted) Lease(ctx context.Context, req relay.LeaseRequest) ([]relay.Lease, error) {
	c.calls.Add(1)
	return c.Store.Lease(ctx, req)
}

func (c *counted) Claim(ctx context.Context, leases []relay.Lease, perLane int, now time.Time) (relay.Claim, error) {
	c.calls.Add(1)
	return c.Store.Claim(ctx, leases, perLane, now)
}

func (c *counted) Settle(ctx context.Context, s relay.Settlement) error {
	c.calls.Add(1)
	err := c.Store.Settle(ctx, s)
	if err == nil {
		c.settles.Add(1)
		n := int64(len(s.Sent))
		if sum := c.settled.Add(n); sum >= c.goal && sum-n < c.goal {
			close(c.done)
		}
	}
	return err
}

// drained is a run of the relay.
type drained struct {
	run
	batches, calls int64
}

// drain runs a relay from its start, leases included, until the last event is settled.
func (l *backlog) drain(t testing.TB, publisher relay.Publisher) drained {
	store := count(l.store, l.size)
	r := relay.New(store, publisher, relay.Config{Batch: batch})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var calls int64
	result := measure(l.store, func() int {
		go func() { ended <- r.Run(ctx) }()
		select {
		case <-store.done:
		case <-time.After(5 * time.Minute):
			t.Error("the backlog was not drained in 5 minutes")
		}
		calls = store.calls.Load()
		return int(store.settled.Load())
	})
	stop()
	must(t, <-ended)
	return drained{result, store.settles.Load(), calls}
}

func openBroker(t testing.TB) *embedded.Broker {
	t.Helper()
	b, err := embedded.Open(context.Background(), embedded.Config{Dir: t.TempDir()})
	must(t, err)
	return b
}

// BenchmarkDrain empties a backlog with the relay, in pairs with the bare loop over the same tables in batches of the same
// size. The null publisher shows the relay's own cost; the embedded broker stores each event in its files and confirms it.
func BenchmarkDrain(b *testing.B) {
	l := newBacklog(b, size(backlogSize, 5_000))
	for _, c := range []struct {
		name string
		open func() (publisher relay.Publisher, end func())
	}{
		{"null", func() (relay.Publisher, func()) { return nobody{}, func() {} }},
		{"embedded", func() (relay.Publisher, func()) { broker := openBroker(b); return broker, broker.Close }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var bare, relayed series
			var perBatch, size, perEvent []float64
			for b.Loop() {
				for range pairs() {
					l.refill(b)
					bare = append(bare, l.bareLoop(b))
					l.refill(b)
					publisher, end := c.open()
					d := l.drain(b, publisher)
					end()
					relayed = append(relayed, d.run)
					perBatch = append(perBatch, float64(d.stats.Commits)/float64(d.batches))
					size = append(size, float64(d.done)/float64(d.batches))
					perEvent = append(perEvent, float64(d.calls)/float64(d.done))
				}
			}
			noTime(b)
			b.ReportMetric(relayed.median(run.rate), "events/s")
			b.ReportMetric(bare.median(run.rate), "bare-events/s")
			relayed.against(b, bare, "of-bare")
			b.ReportMetric(relayed.median(run.micros), "cpu-µs/event")
			b.ReportMetric(bare.median(run.micros), "bare-cpu-µs/event")
			b.ReportMetric(relayed.median(run.allocs), "allocs/event")
			b.ReportMetric(bare.median(run.allocs), "bare-allocs/event")
			b.ReportMetric(slices.Max(perBatch), "commits/batch")
			b.ReportMetric(median(size), "events/batch")
			b.ReportMetric(median(perEvent), "store-calls/event")
		})
	}
}
