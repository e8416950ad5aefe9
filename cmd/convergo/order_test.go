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
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

// What the relays of the order drill are given, so that a take-over takes seconds and a crash costs few duplicates.
const (
	orderLease      = 2 * time.Second
	orderBatch      = 256
	orderAggregates = 500
	orderRelays     = 3
	orderCrashes    = 6 // at least, while events are written
)

// orderEvents is how many events the drill carries at least: few and slowly in the tests, CONVERGO_ORDER_EVENTS and as fast as can
// be in make drill. They are written until there were enough crashes too.
func orderEvents(t *testing.T) (least int64, pace time.Duration) {
	t.Helper()
	text := os.Getenv("CONVERGO_ORDER_EVENTS")
	if text == "" {
		return 30_000, 100 * time.Millisecond
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < orderAggregates {
		t.Fatalf("CONVERGO_ORDER_EVENTS=%s is not a number of at least %d", text, orderAggregates)
	}
	return n, time.Microsecond
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
	least, pace := orderEvents(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(least)*time.Millisecond)
	defer cancel()
	arrivals := &tally{last: map[string]int64{}}
	reading, stopReading := context.WithCancel(ctx)
	var read sync.WaitGroup
	defer read.Wait()
	defer stopReading()
	read.Go(func() { readAll(reading, t, reader, arrivals) })

	relays := startRelays(ctx, t, database.TCP("postgres", "disable")+"&schema="+schema, "redis://"+broker.Addr)
	w := &writers{store: store, least: least, pace: pace}
	writing := make(chan error, 1)
	go func() { writing <- w.run(ctx); w.done.Store(true) }()
	disturbRelays(ctx, t, relays, w, func() bool { return w.done.Load() && arrivals.arrived() >= w.written.Load() })
	if err := <-writing; err != nil {
		t.Fatal(err)
	}
	total, crashes := w.written.Load(), w.crashes.Load()
	if n := arrivals.arrived(); n != total {
		t.Errorf("%d of %d events arrived", n, total)
	}
	if len(arrivals.inversions) > 0 {
		t.Errorf("%d inversions, the first: %s", len(arrivals.inversions), arrivals.inversions[0])
	}
	if most := crashes * orderBatch; arrivals.duplicates > most {
		t.Errorf("%d duplicates after %d crashes and pauses, want at most %d", arrivals.duplicates, crashes, most)
	}
	if crashes < orderCrashes {
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
		address, err := freeport.Address()
		if err != nil {
			t.Fatal(err)
		}
		output := &testlog.Lines{}
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

// writers write events: each has aggregates of its own, and puts many events into a transaction.
type writers struct {
	store            *postgres.Store
	least            int64
	pace             time.Duration // between two transactions of a writer
	crashes, written atomic.Int64
	done             atomic.Bool
}

func (w *writers) run(ctx context.Context) error {
	const many = 4
	errs := make([]error, many)
	var all sync.WaitGroup
	for i := range int64(many) {
		all.Go(func() { errs[i] = w.write(ctx, i, many) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (w *writers) write(ctx context.Context, first, many int64) error {
	const perTransaction = 100
	box := outbox.New[convergo.Tx](w.store, outbox.Config{})
	versions := map[int64]int64{}
	tick := time.NewTicker(w.pace)
	defer tick.Stop()
	for n := first; n < w.least || w.crashes.Load() < orderCrashes; {
		var batch []convergo.Event
		for range perTransaction {
			aggregate := n % orderAggregates
			versions[aggregate]++
			batch = append(batch, convergo.Event{
				Topic: "order", Type: "OrderChanged", Aggregate: convergo.Aggregate{Type: "order", ID: fmt.Sprintf("O-%d", aggregate)},
				Version: versions[aggregate], Payload: []byte(`{"paid":true}`),
			})
			n += many
		}
		if err := w.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error { return box.Add(ctx, tx, batch...) }); err != nil {
			return err
		}
		w.written.Add(perTransaction)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// disturbRelays kills and pauses relays, one after the other, until all is there.
func disturbRelays(ctx context.Context, t *testing.T, relays []*drill.Child, w *writers, finished func() bool) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	next := time.Now().Add(time.Second)
	for !finished() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Now().Before(next) {
			continue
		}
		r := relays[random.IntN(len(relays))]
		if w.crashes.Load()%2 == 1 {
			pauseBeyondLease(ctx, t, r)
		} else if err := errors.Join(r.Kill(), r.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		w.crashes.Add(1)
		next = time.Now().Add(time.Duration(random.Int64N(int64(orderLease))))
	}
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
