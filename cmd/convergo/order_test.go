package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/redis"
	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

// What the relays of the order drill are given, so that a take-over takes seconds and a crash costs few duplicates.
const (
	orderLease      = 2 * time.Second
	orderBatch      = 256
	orderAggregates = 500
	orderRelays     = 3
)

// orderEvents is how many events the drill carries: few in the tests, CONVERGO_ORDER_EVENTS in make drill.
func orderEvents(t *testing.T) int64 {
	t.Helper()
	text := os.Getenv("CONVERGO_ORDER_EVENTS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < orderAggregates {
		t.Fatalf("CONVERGO_ORDER_EVENTS=%s is not a number of at least %d", text, orderAggregates)
	}
	return n
}

// tally is what arrived.
type tally struct {
	mu         sync.Mutex
	last       map[string]int64 // highest version of each aggregate
	first      int64            // events that arrived for the first time
	duplicates int64
	inversions []string
}

// note counts an arrival. An aggregate's events must arrive for the first time in the order in which they were written, without a
// gap; a repeat of an earlier one is a duplicate.
func (c *tally) note(e convergo.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch last := c.last[e.Aggregate.ID]; {
	case e.Version <= last:
		c.duplicates++
	case e.Version == last+1:
		c.last[e.Aggregate.ID] = e.Version
		c.first++
	default:
		c.inversions = append(c.inversions, fmt.Sprintf("%s: %d came after %d", e.Aggregate.ID, e.Version, last))
	}
}

func (c *tally) arrived() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

// Item 1 of the laws for many processes: relays are killed and paused beyond their leases while events are written and carried.
func TestNoEventIsLostOrOutOfOrderWhileRelaysAreKilledAndPaused(t *testing.T) {
	total := orderEvents(t)
	database, broker := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres), testserver.Own(t, testserver.OpenRedis)
	schema := database.Name("orders")
	store, err := postgres.Open(t.Context(), database.DSN("postgres"), postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	reader, err := redis.Open(t.Context(), redis.Config{Addr: broker.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(total)*time.Millisecond)
	defer cancel()
	arrivals := &tally{last: map[string]int64{}}
	reading, stopReading := context.WithCancel(ctx)
	var read sync.WaitGroup
	defer read.Wait()
	defer stopReading()
	read.Go(func() { readAll(reading, t, reader, arrivals) })

	relays := startRelays(ctx, t, database.TCP("postgres", "disable")+"&schema="+schema, "redis://"+broker.Addr)
	var written atomic.Bool
	writing := make(chan error, 1)
	go func() { writing <- writeInOrder(ctx, store, total); written.Store(true) }()
	crashes := disturbRelays(ctx, t, relays, func() bool { return written.Load() && arrivals.arrived() >= total })
	if err := <-writing; err != nil {
		t.Fatal(err)
	}
	if n := arrivals.arrived(); n != total {
		t.Errorf("%d of %d events arrived", n, total)
	}
	if len(arrivals.inversions) > 0 {
		t.Errorf("%d inversions, the first: %s", len(arrivals.inversions), arrivals.inversions[0])
	}
	if most := int64(crashes) * orderBatch; arrivals.duplicates > most {
		t.Errorf("%d duplicates after %d crashes and pauses, want at most %d", arrivals.duplicates, crashes, most)
	}
	if crashes < 3 {
		t.Errorf("only %d crashes and pauses: the drill shows nothing", crashes)
	}
	t.Logf("%d events in %d aggregates, %d crashes and pauses, %d duplicates, %d inversions, %d lost", total, orderAggregates, crashes,
		arrivals.duplicates, len(arrivals.inversions), total-arrivals.arrived())
}

func readAll(ctx context.Context, t *testing.T, broker *redis.Broker, arrivals *tally) {
	source, err := broker.Subscribe(ctx, "reader", []convergo.Subject{{Topic: "order", Type: "OrderChanged"}})
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		deliveries, err := source.Fetch(ctx, 512)
		if err != nil && ctx.Err() == nil {
			t.Logf("fetch: %v", err)
			continue
		}
		for _, d := range deliveries {
			arrivals.note(d.Event)
			if err := d.Ack(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("ack: %v", err)
			}
		}
	}
}

func startRelays(ctx context.Context, t *testing.T, database, broker string) []*drill.Child {
	t.Helper()
	var relays []*drill.Child
	for i := range orderRelays {
		address, err := freeAddress(ctx)
		if err != nil {
			t.Fatal(err)
		}
		output := &output{}
		r := &drill.Child{Program: programFile(t), URL: "http://" + address, Output: output, Args: []string{
			"relay", "--name", fmt.Sprint("relay-", i), "--addr", address, "--lease", orderLease.String(), "--workers", "1", "--batch", fmt.Sprint(orderBatch),
			"--retry-base", "50ms", "--retry-cap", "500ms", "--log", "error", "--ready-lag", "1h",
		}, Env: []string{"CONVERGO_DATABASE=" + database, "CONVERGO_BROKER=" + broker}}
		if err := r.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Kill(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Log(output.String())
			}
		})
		relays = append(relays, r)
	}
	return relays
}

// writeInOrder writes the events: four writers, each with aggregates of its own, many events a transaction.
func writeInOrder(ctx context.Context, store *postgres.Store, total int64) error {
	const writers, perTransaction = 4, 100
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	errs := make([]error, writers)
	var all sync.WaitGroup
	for w := range int64(writers) {
		all.Go(func() {
			versions := map[int64]int64{}
			var batch []convergo.Event
			for n := w; n < total; n += writers {
				aggregate := n % orderAggregates
				versions[aggregate]++
				id := fmt.Sprintf("O-%d", aggregate)
				batch = append(batch, convergo.Event{
					Topic: "order", Type: "OrderChanged", Aggregate: convergo.Aggregate{Type: "order", ID: id}, Version: versions[aggregate], Payload: []byte(`{"paid":true}`),
				})
				if len(batch) < perTransaction && n+writers < total {
					continue
				}
				err := store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error { return box.Add(ctx, tx, batch...) })
				if err != nil {
					errs[w] = err
					return
				}
				batch = nil
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// disturbRelays kills and pauses relays, one after the other, until all is there, and tells how often.
func disturbRelays(ctx context.Context, t *testing.T, relays []*drill.Child, finished func() bool) (crashes int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	next := time.Now().Add(time.Second)
	for !finished() || crashes < 3 {
		select {
		case <-ctx.Done():
			return crashes
		case <-tick.C:
		}
		if time.Now().Before(next) {
			continue
		}
		r := relays[random.IntN(len(relays))]
		if crashes++; crashes%2 == 0 {
			pauseBeyondLease(ctx, t, r)
		} else if err := errors.Join(r.Kill(), r.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		next = time.Now().Add(orderLease + time.Duration(random.Int64N(int64(time.Second))))
	}
	return crashes
}

func pauseBeyondLease(ctx context.Context, t *testing.T, r *drill.Child) {
	t.Helper()
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(2 * orderLease):
	}
	if err := r.Resume(); err != nil {
		t.Fatal(err)
	}
}
