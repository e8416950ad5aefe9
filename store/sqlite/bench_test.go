package sqlite_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
)

func benchEvent(n int64) convergo.Event {
	a := convergo.Aggregate{Type: "order", ID: fmt.Sprint("20261129-", n%5000)}
	return convergo.Event{
		MessageID: fmt.Sprint("01a228bc-443b-7dd5-ac02-", n), Key: convergo.KeyFor("OrderPaid", a.ID, n), Type: "OrderPaid", Topic: "order",
		Aggregate: a, Version: n, Payload: make([]byte, 300), CreatedAt: time.UnixMicro(n),
	}
}

// BenchmarkUpdate writes one event in a transaction, durable on return.
func BenchmarkUpdate(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var c commits
			s := open(b, sqlite.Options{Probe: c.probe})
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						if err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
							_, err := s.Insert(ctx, tx, []convergo.Event{benchEvent(i)})
							return err
						}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(c.n.Load())/float64(b.N), "commits/op")
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	s := open(b, sqlite.Options{})
	b.ReportAllocs()
	b.ResetTimer()
	insertMany(b, s, b.N)
}

func insertMany(b *testing.B, s *sqlite.Store, total int) {
	for n := 0; n < total; {
		must(b, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			for i := 0; i < 1000 && n < total; i++ {
				n++
				if _, err := s.Insert(ctx, tx, []convergo.Event{benchEvent(int64(n))}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// BenchmarkDrain claims and settles a backlog of b.N events.
func BenchmarkDrain(b *testing.B) {
	s := open(b, sqlite.Options{})
	insertMany(b, s, b.N)
	leases, err := s.Lease(context.Background(), relay.LeaseRequest{Owner: "r", Term: time.Hour})
	must(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		c, err := s.Claim(context.Background(), leases, 16, time.Now())
		must(b, err)
		must(b, s.Settle(context.Background(), relay.Settlement{Leases: leases, Sent: c.Events, Now: time.Now()}))
		left -= len(c.Events)
	}
}

func BenchmarkClaimIdle(b *testing.B) {
	s := open(b, sqlite.Options{})
	leases, err := s.Lease(context.Background(), relay.LeaseRequest{Owner: "r", Term: time.Hour})
	must(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		_, err := s.Claim(context.Background(), leases, 16, time.Now())
		must(b, err)
	}
}

func BenchmarkMark(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			s := open(b, sqlite.Options{})
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; {
				must(b, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
					for i := 0; i < batch && n < b.N; i++ {
						n++
						err := s.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error {
							m, err := s.Mark(ctx, tx, "stock", benchEvent(int64(n)), false, time.Now())
							if err == nil && m != inbox.Fresh {
								b.Error(m)
							}
							return err
						})
						if err != nil {
							return err
						}
					}
					return nil
				}))
			}
		})
	}
}
