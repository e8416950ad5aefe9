package bench

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
)

// notes is a publisher that stores nothing: it notes when it was given what, and refuses one aggregate.
type notes struct {
	arrivals
	refuse convergo.Aggregate
}

func (p *notes) Publish(_ context.Context, events []convergo.Event) []error {
	now, results := time.Now(), make([]error, len(events))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range events {
		if e.Aggregate == p.refuse {
			results[i] = errors.New("refused")
			continue
		}
		if _, again := p.at[e.Key]; !again {
			p.at[e.Key] = now
			p.count.Add(1)
		}
	}
	return results
}

// lineup is an outbox with its relay, and how many of the shop's events were written to it.
type lineup struct {
	store     source
	box       *outbox.Outbox[convergo.Tx]
	publisher *notes
	written   int
}

func newLineup(store source) *lineup {
	l := &lineup{store: store, box: outbox.New[convergo.Tx](store, outbox.Config{}), publisher: &notes{refuse: convergo.Aggregate{Type: "order", ID: "stuck"}}}
	l.publisher.at = map[convergo.Key]time.Time{}
	return l
}

func (l *lineup) write(b *testing.B, n int, make func(i int) convergo.Event) {
	b.Helper()
	for from := 0; from < n; from += 1000 {
		var some []convergo.Event
		for i := from; i < min(from+1000, n); i++ {
			some = append(some, make(i))
		}
		must(b, l.store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error { return l.box.Add(ctx, tx, some...) }))
	}
}

// relayed runs the relay around f.
func (l *lineup) relayed(b *testing.B, f func()) {
	b.Helper()
	ctx, stop := context.WithCancel(context.Background())
	// What failed once is not tried again during the benchmark: the queue behind it stays as long as it is.
	r := relay.New(l.store, l.publisher, relay.Config{Batch: batch, Poll: 50 * time.Millisecond, Backoff: convergo.Backoff{Base: time.Hour, Cap: time.Hour}})
	l.store.OnEvents(r.Wake)
	var running sync.WaitGroup
	running.Go(func() { must(b, r.Run(ctx)) })
	f()
	stop()
	running.Wait()
}

// drain writes n events and returns how many the relay sends a second.
func (l *lineup) drain(b *testing.B, n int) (rate float64) {
	b.Helper()
	first := l.written
	l.write(b, n, func(i int) convergo.Event { return event(first + i) })
	l.written += n
	began := time.Now()
	l.relayed(b, func() { awaitArrivals(b, &l.publisher.arrivals, int64(l.written)) })
	return float64(n) / time.Since(began).Seconds()
}

// stuck makes n events wait behind one that failed.
func (l *lineup) stuck(b *testing.B, n int) {
	b.Helper()
	l.write(b, n, func(i int) convergo.Event {
		e := event(i)
		e.Aggregate, e.Version = l.publisher.refuse, int64(i+1)
		return e
	})
	// The others behind them in the lane arrive when all of those were put aside.
	l.drain(b, 40*convergo.Lanes)
}

// stream writes 500 events a second and returns the 99th percentile from the commit's answer to the publisher, in milliseconds.
func (l *lineup) stream(b *testing.B) (p99 float64) {
	b.Helper()
	l.relayed(b, func() {
		waits := pourIn(b, l.store, l.box, &l.publisher.arrivals, l.written)
		l.written += len(waits)
		p99 = waits[len(waits)*99/100]
	})
	return p99
}

// besideOpenWriter runs f while a transaction that has written an event stays open.
func (l *lineup) besideOpenWriter(b *testing.B, f func()) {
	b.Helper()
	wrote, end, never := make(chan struct{}), make(chan struct{}), errors.New("never meant to commit")
	var open sync.WaitGroup
	open.Go(func() {
		var once sync.Once
		err := l.store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			e := event(0)
			e.Aggregate.ID = "open"
			err := l.box.Add(ctx, tx, e)
			once.Do(func() { close(wrote) })
			<-end
			return errors.Join(err, never)
		})
		if !errors.Is(err, never) {
			b.Errorf("the open transaction: %v", err)
		}
	})
	<-wrote
	f()
	close(end)
	open.Wait()
}

// BenchmarkTrouble shows what trouble elsewhere costs the others: one aggregate that is stuck with 50,000 events behind it, and a
// transaction that wrote an event and stays open. Pairs with the same thing without trouble, on every database with concurrent writers.
func BenchmarkTrouble(b *testing.B) {
	stores := databases()
	for _, name := range []string{"postgres", "mariadb", "mysql"} {
		b.Run(name+"/stuck", func(b *testing.B) {
			clean, blocked := newLineup(stores[name](b)), newLineup(stores[name](b))
			blocked.stuck(b, size(backlogSize, 5_000)/4)
			clean.drain(b, 5*convergo.Lanes)
			var rates, ratios []float64
			for b.Loop() {
				for i := range pairs() {
					var with, without float64
					arms := []func(){
						func() { without = clean.drain(b, size(backlogSize, 5_000)/10) },
						func() { with = blocked.drain(b, size(backlogSize, 5_000)/10) },
					}
					arms[i%2]() // the first of a pair is at times the one, at times the other
					arms[1-i%2]()
					rates, ratios = append(rates, with), append(ratios, with/without)
				}
			}
			noTime(b)
			b.ReportMetric(median(rates), "events/s")
			spread(b, ratios, "of-clean")
		})
		b.Run(name+"/open", func(b *testing.B) {
			l := newLineup(stores[name](b))
			l.drain(b, 5*convergo.Lanes)
			var clean, ratios []float64
			for b.Loop() {
				for i := range pairs() {
					var with, without float64
					arms := []func(){
						func() { without = l.stream(b) },
						func() { l.besideOpenWriter(b, func() { with = l.stream(b) }) },
					}
					arms[i%2]()
					arms[1-i%2]()
					clean, ratios = append(clean, without), append(ratios, with/without)
				}
			}
			noTime(b)
			b.ReportMetric(median(clean), "clean-p99-ms")
			spread(b, ratios, "of-clean")
		})
	}
}
