package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

// A machine's other work comes and goes; two variants can be compared when they take turns. Each round runs all variants, one
// after another in a changing order, and the ratio of a round is of its own runs. The median is reported.
const (
	rounds    = 9
	roundTime = 1500 * time.Millisecond
)

type variant struct {
	name  string
	store *postgres.Store
	event func(ctx context.Context, tx convergo.Tx, e convergo.Event) error
}

var runs atomic.Int64

// rate is how many business transactions a second the clients make: one row updated, and what the variant adds.
func rate(b *testing.B, v variant, clients int) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), roundTime)
	defer cancel()
	run := runs.Add(1)
	var done atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for c := range clients {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				e := event(fmt.Sprint("bench-", run, "-", c, "-", n), 1)
				e.Payload = []byte(strings.Repeat("x", 200))
				err := v.store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
					if _, err := tx.ExecContext(ctx, "UPDATE account SET n = n + 1 WHERE id = ?", rand.IntN(10_000)); err != nil {
						return err
					}
					return v.event(ctx, tx, e)
				})
				if err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	return float64(done.Load()) / time.Since(began).Seconds()
}

// compare reports each variant's median rate, and the median of its ratio to the first.
func compare(b *testing.B, clients int, variants ...variant) {
	b.Helper()
	rates, ratios := map[string][]float64{}, map[string][]float64{}
	for round := range rounds + 1 {
		of := map[string]float64{}
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			of[v.name] = rate(b, v, clients)
		}
		if round == 0 {
			continue // warm-up
		}
		for name, r := range of {
			rates[name] = append(rates[name], r)
			ratios[name] = append(ratios[name], r/of[variants[0].name])
		}
	}
	for _, v := range variants {
		slices.Sort(rates[v.name])
		slices.Sort(ratios[v.name])
		b.ReportMetric(rates[v.name][rounds/2], v.name+"/s")
		if v.name != variants[0].name {
			list := ratios[v.name]
			b.ReportMetric(list[rounds/2], v.name+"/"+variants[0].name)
			b.Logf("%d clients: %s/%s %.3f (%.3f to %.3f)", clients, v.name, variants[0].name, list[rounds/2], list[0], list[rounds-1])
		}
	}
	b.ReportMetric(0, "ns/op")
}

func benchStore(b *testing.B, server *testserver.Postgres, schema string, notify time.Duration) *postgres.Store {
	b.Helper()
	return openOn(b, server.DSN("postgres"), postgres.Options{Schema: schema, MaxConns: 40, Notify: notify})
}

const handWritten = `INSERT INTO %s (created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
	topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload) VALUES (?, 0, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, '{}', ?)`

func byHand(table string) func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	query := fmt.Sprintf(handWritten, table)
	return func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
		key, aggregate := e.Key.Digest(), e.Aggregate.Digest()
		_, err := tx.ExecContext(ctx, query, e.CreatedAt.UnixMicro(), int(e.Aggregate.Lane()), e.Version, key[:], aggregate[:], e.Topic, e.Type,
			e.Aggregate.Type, e.Aggregate.ID, e.MessageID, string(e.Key), e.Payload)
		return err
	}
}

// hand: an INSERT of the same row into outbox_event by hand. convergo: Insert. plain: an INSERT of the same row into a table of
// one's own with the same indexes, where a status column is what makes it pending. none: the business row alone.
func BenchmarkABusinessTransactionWithAnEvent(b *testing.B) {
	server := shared(b)
	schema := server.Name("bench")
	s := benchStore(b, server, schema, -1)
	exec(b, s, "CREATE TABLE account (id INTEGER PRIMARY KEY, n BIGINT NOT NULL) WITH (fillfactor = 50)",
		"INSERT INTO account SELECT generate_series(0, 9999), 0",
		`CREATE TABLE outbox_plain (LIKE outbox_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY,
			status SMALLINT NOT NULL DEFAULT 0)`,
		"ALTER TABLE outbox_plain ADD PRIMARY KEY (id)", "CREATE UNIQUE INDEX ON outbox_plain (key_digest)",
		"CREATE INDEX ON outbox_plain (lane, id) WHERE status = 0")
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			compare(b, clients,
				variant{"hand", s, byHand("outbox_event")},
				variant{"convergo", s, func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
					_, err := s.Insert(ctx, tx, []convergo.Event{e})
					return err
				}},
				variant{"plain", s, byHand("outbox_plain")},
				variant{"none", s, func(context.Context, convergo.Tx, convergo.Event) error { return nil }})
		})
	}
}

func BenchmarkWakeUps(b *testing.B) {
	server := shared(b)
	schema := server.Name("wakes")
	off, on := benchStore(b, server, schema, -1), benchStore(b, server, schema, 0)
	benchStore(b, server, schema, 0) // somebody who listens
	exec(b, off, "CREATE TABLE account (id INTEGER PRIMARY KEY, n BIGINT NOT NULL) WITH (fillfactor = 50)",
		"INSERT INTO account SELECT generate_series(0, 9999), 0")
	with := func(name string, s *postgres.Store) variant {
		return variant{name, s, func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
			_, err := s.Insert(ctx, tx, []convergo.Event{e})
			return err
		}}
	}
	compare(b, 32, with("off", off), with("on", on))
}
