package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/sqlite"
)

// shop is a business that writes transactions: an order, and stock for it.
type shop struct {
	store *sqlite.Store
	box   *outbox.Outbox[convergo.Tx]
	next  atomic.Int64
}

func openShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{store: newStore(t)}
	s.box = outbox.New[convergo.Tx](s.store, outbox.Config{})
	must(t, s.store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		for _, statement := range []string{
			"CREATE TABLE purchase (no TEXT PRIMARY KEY, customer TEXT NOT NULL, amount INTEGER NOT NULL CHECK (amount >= 0), placed_at INTEGER NOT NULL)",
			"CREATE TABLE stock (sku INTEGER PRIMARY KEY, held INTEGER NOT NULL CHECK (held >= 0))",
			"INSERT INTO stock (sku, held) SELECT value, 0 FROM json_each('[0,1,2,3,4,5,6,7,8,9]')",
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}))
	return s
}

// sell is the business transaction; tell writes its event, or nothing.
func (s *shop) sell(ctx context.Context, tell func(ctx context.Context, tx convergo.Tx, n int) error) error {
	n := int(s.next.Add(1))
	return s.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO purchase (no, customer, amount, placed_at) VALUES (?, ?, ?, ?)",
			fmt.Sprintf("P-%09d", n), "member-07", int64(n), time.Now().UnixMicro())
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET held = held + 1 WHERE sku = ?", int64(n%10)); err != nil {
			return err
		}
		return tell(ctx, tx, n)
	})
}

func (s *shop) silent(context.Context, convergo.Tx, int) error { return nil }

func (s *shop) byOutbox(ctx context.Context, tx convergo.Tx, n int) error {
	return s.box.Add(ctx, tx, event(n))
}

// byHand is what a program writes that knows the table and nothing else: the same row, by one INSERT.
func (s *shop) byHand(ctx context.Context, tx convergo.Tx, n int) error {
	e := event(n)
	e.Key = convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)
	key, aggregate := e.Key.Digest(), e.Aggregate.Digest()
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event (created_at, lane, aggregate_version, key_digest, aggregate_digest, topic, type,
		aggregate_type, aggregate_id, message_id, event_key, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		time.Now().UnixMicro(), int64(aggregate[0]%convergo.Lanes), e.Version, key[:], aggregate[:], e.Topic, e.Type,
		e.Aggregate.Type, e.Aggregate.ID, fmt.Sprintf("01a228bc-443b-7dd5-ac02-%012d", n), string(e.Key), e.Payload)
	return err
}

// trade has callers sell for a while and counts the sales.
func (s *shop) trade(t testing.TB, callers int, tell func(ctx context.Context, tx convergo.Tx, n int) error) run {
	limit := size(armTime, 50*time.Millisecond)
	return measure(s.store, func() int {
		var sold atomic.Int64
		var all sync.WaitGroup
		until := time.Now().Add(limit)
		for range callers {
			all.Go(func() {
				for time.Now().Before(until) {
					if err := s.sell(context.Background(), tell); err != nil {
						t.Error(err)
						return
					}
					sold.Add(1)
				}
			})
		}
		all.Wait()
		return int(sold.Load())
	})
}

// BenchmarkEventInTransaction: a business transaction with one event, against the same with a hand-written INSERT of the
// same row, and without any. Rates are transactions a second, each durable when its caller goes on.
func BenchmarkEventInTransaction(b *testing.B) {
	for _, callers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openShop(b)
			s.trade(b, callers, s.byOutbox) // warm
			var outboxed, handed, silent series
			for b.Loop() {
				for range pairs() {
					outboxed = append(outboxed, s.trade(b, callers, s.byOutbox))
					handed = append(handed, s.trade(b, callers, s.byHand))
					silent = append(silent, s.trade(b, callers, s.silent))
				}
			}
			noTime(b)
			b.ReportMetric(outboxed.median(run.rate), "tx/s")
			b.ReportMetric(handed.median(run.rate), "by-hand-tx/s")
			b.ReportMetric(silent.median(run.rate), "silent-tx/s")
			outboxed.against(b, handed, "of-by-hand")
			outboxed.against(b, silent, "of-silent")
			b.ReportMetric(outboxed.median(run.commits), "commits/tx")
			b.ReportMetric(outboxed.median(run.micros), "cpu-µs/tx")
			b.ReportMetric(handed.median(run.micros), "by-hand-cpu-µs/tx")
			b.ReportMetric(silent.median(run.micros), "silent-cpu-µs/tx")
			b.ReportMetric(outboxed.median(run.allocs)-silent.median(run.allocs), "allocs/event")
			b.ReportMetric(handed.median(run.allocs)-silent.median(run.allocs), "by-hand-allocs/event")
		})
	}
}

// BenchmarkAdd is the cost of an event where the disk hardly matters: an operation is 1,000 of them in one transaction.
func BenchmarkAdd(b *testing.B) {
	const perTransaction = 1000
	s := openShop(b)
	events := make([]convergo.Event, perTransaction)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := range events {
			events[i] = event(n)
			n++
		}
		b.StartTimer()
		must(b, s.store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			for _, e := range events {
				if err := s.box.Add(ctx, tx, e); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*perTransaction), "ns/event")
}
