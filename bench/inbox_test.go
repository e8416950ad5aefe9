package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/sqlite"
)

// supply is a source that has all of its messages at hand, so that the inbox and its store are what is measured.
type supply struct {
	deliveries []inbox.Delivery
	next       int
	acked      atomic.Int64
	done       chan struct{}
}

func newSupply(n int) *supply {
	s := &supply{done: make(chan struct{})}
	ack := func(context.Context) error {
		if s.acked.Add(1) == int64(n) {
			close(s.done)
		}
		return nil
	}
	back := func(context.Context, time.Duration) error { return nil }
	for i := range n {
		e := event(i)
		e.Key = convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)
		e.MessageID, e.CreatedAt = fmt.Sprintf("01a228bc-443b-7dd5-ac02-%012d", i), time.UnixMicro(int64(i)+1)
		s.deliveries = append(s.deliveries, inbox.Delivery{Event: e, Attempt: 1, Ack: ack, Return: back})
	}
	return s
}

// Fetch implements inbox.Source.
func (s *supply) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	if s.next == len(s.deliveries) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	end := min(s.next+most, len(s.deliveries))
	got := s.deliveries[s.next:end]
	s.next = end
	return got, nil
}

func openInboxStore(t testing.TB) *sqlite.Store {
	t.Helper()
	s := newStore(t)
	must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE applied (order_no TEXT PRIMARY KEY, version INTEGER NOT NULL)")
		return err
	}))
	return s
}

// trivial is a local handler of one statement.
func trivial(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO applied (order_no, version) VALUES (?, ?) ON CONFLICT (order_no) DO UPDATE SET version = excluded.version",
		e.Aggregate.ID, e.Version)
	return err
}

// consume applies n messages under a consumer's name that has not been used before.
func consume(t testing.TB, s *sqlite.Store, name string, n, batch int) run {
	source := newSupply(n)
	c := inbox.New[convergo.Tx](s, s, source, inbox.Config{Consumer: name, Batch: batch})
	c.Handle("OrderPaid", trivial)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	result := measure(s, func() int {
		go func() { ended <- c.Run(ctx) }()
		select {
		case <-source.done:
		case <-time.After(5 * time.Minute):
			t.Error("the messages were not applied in 5 minutes")
		}
		return n
	})
	stop()
	must(t, <-ended)
	if got := c.Stats().Applied; got != int64(n) {
		t.Errorf("%d messages applied, want %d", got, n)
	}
	return result
}

// BenchmarkInbox applies messages with a trivial handler, one a transaction and 100 a transaction, in pairs.
func BenchmarkInbox(b *testing.B) {
	s := openInboxStore(b)
	few, many := 1_000, 20_000
	if testing.Short() {
		few, many = 50, 1_000
	}
	consume(b, s, "warm", many, 100)
	var single, batched series
	round := 0
	for b.Loop() {
		for range pairs() {
			round++
			single = append(single, consume(b, s, fmt.Sprint("single-", round), few, 1))
			batched = append(batched, consume(b, s, fmt.Sprint("batched-", round), many, 100))
		}
	}
	noTime(b)
	b.ReportMetric(single.median(run.rate), "single-msgs/s")
	b.ReportMetric(batched.median(run.rate), "batched-msgs/s")
	batched.against(b, single, "of-single")
	b.ReportMetric(single.median(run.commits), "single-commits/msg")
	b.ReportMetric(batched.median(run.commits), "batched-commits/msg")
	b.ReportMetric(batched.median(run.micros), "batched-cpu-µs/msg")
	b.ReportMetric(single.median(run.micros), "single-cpu-µs/msg")
	b.ReportMetric(batched.median(run.allocs), "allocs/msg")
}
