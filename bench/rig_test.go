package bench

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/sqlite"
)

var (
	backlogSize = flag.Int("events", 200_000, "events of the backlog that the relay drains; 5,000 with -short")
	pairCount   = flag.Int("pairs", 7, "how often the arms of a comparison are run; 2 with -short")
	orderCount  = flag.Int("orders", 320, "orders of one run with 64 buyers; 32 with -short")
	armTime     = flag.Duration("arm", 500*time.Millisecond, "how long one arm of the transaction benchmark runs; 50 ms with -short")
)

// size is the flag's value, or the one for -short.
func size[T any](whole *T, short T) T {
	if testing.Short() {
		return short
	}
	return *whole
}

func pairs() int { return max(size(pairCount, 2), 1) }

// openStore opens a store as the platform does: WAL, synchronous=FULL.
func openStore(t testing.TB, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func newStore(t testing.TB) *sqlite.Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "order.db"))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// event number n of a shop in which an order has five of them. Its payload is what an order of three lines looks like.
func event(n int) convergo.Event {
	no, version := n/5, n%5+1
	return convergo.Event{
		Type: "OrderPaid", Topic: "order", Aggregate: convergo.Aggregate{Type: "order", ID: fmt.Sprintf("20261129-%06d", no)}, Version: int64(version),
		Payload: fmt.Appendf(nil, `{"order_no":"20261129-%06d","user":"member-%02d","currency":"GBP","channel":"standard","transaction":"TX-%012d",`+
			`"goods_total":12345,"coupon_total":1000,"points_total":0,"payable":11345,"lines":[{"line_no":1,"sku":"SKU-001","quantity":2,"amount":4000},`+
			`{"line_no":2,"sku":"SKU-017","quantity":1,"amount":6346},{"line_no":3,"sku":"HOT-1","quantity":1,"amount":1999}]}`, no, n%50, n),
	}
}

// fill writes n events, 1,000 a transaction, those of an order apart from one another.
func fill(t testing.TB, s *sqlite.Store, n int) {
	t.Helper()
	box := outbox.New[convergo.Tx](s, outbox.Config{})
	orders := (n + 4) / 5
	for from := 0; from < n; from += 1000 {
		must(t, s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			events := make([]convergo.Event, 0, 1000)
			for i := from; i < min(from+1000, n); i++ {
				events = append(events, event(i%orders*5+i/orders))
			}
			return box.Add(ctx, tx, events...)
		}))
	}
}

// run is what one arm did in its time.
type run struct {
	done    int
	elapsed time.Duration
	cpu     time.Duration // of this process, all threads
	mallocs uint64
	stats   sqlite.Stats // what the store did meanwhile
}

func (r run) rate() float64 { return float64(r.done) / r.elapsed.Seconds() }

// micros is how much of the processors a unit of work takes, in microseconds. On a busy machine it says more than the rate.
func (r run) micros() float64 { return float64(r.cpu.Microseconds()) / float64(r.done) }

func (r run) allocs() float64 { return float64(r.mallocs) / float64(r.done) }

func (r run) commits() float64 { return float64(r.stats.Commits) / float64(r.done) }

// measure runs work, which returns how much it has done. The heap is collected before, so that no arm pays for another.
func measure(s *sqlite.Store, work func() int) run {
	runtime.GC()
	var before, after runtime.MemStats
	stats := s.Stats()
	runtime.ReadMemStats(&before)
	cpu, began := processTime(), time.Now()
	done := work()
	r := run{done: done, elapsed: time.Since(began), cpu: processTime() - cpu}
	runtime.ReadMemStats(&after)
	r.mallocs = after.Mallocs - before.Mallocs
	now := s.Stats()
	r.stats = sqlite.Stats{
		Commits: now.Commits - stats.Commits, Updates: now.Updates - stats.Updates, Statements: now.Statements - stats.Statements,
	}
	return r
}

// series is the runs of one arm.
type series []run

func (s series) median(of func(run) float64) float64 {
	values := make([]float64, len(s))
	for i, r := range s {
		values[i] = of(r)
	}
	return median(values)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// spread reports the median and the range of the ratios of pairs.
func spread(b *testing.B, ratios []float64, name string) {
	b.ReportMetric(median(ratios), name)
	b.ReportMetric(slices.Min(ratios), name+"-min")
	b.ReportMetric(slices.Max(ratios), name+"-max")
}

// against reports the median and the range of the ratios of the rates of two arms, run by run.
func (s series) against(b *testing.B, base series, name string) {
	ratios := make([]float64, len(s))
	for i := range s {
		ratios[i] = s[i].rate() / base[i].rate()
	}
	spread(b, ratios, name)
}

// noTime removes ns/op, which says nothing about an operation that is a whole series.
func noTime(b *testing.B) { b.ReportMetric(0, "ns/op") }
