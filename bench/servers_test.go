package bench

import (
	"context"
	"encoding/base64"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/kafka"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/broker/rabbitmq"
	"github.com/convergo/convergo/broker/redis"
	"github.com/convergo/convergo/broker/rocketmq"
	"github.com/convergo/convergo/broker/webhook"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

// servers are those that the benchmarks share.
var servers testserver.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// source is an outbox's database.
type source interface {
	outbox.Store[convergo.Tx]
	relay.Store
	Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	OnEvents(wake func())
}

// target is a broker.
type target interface {
	relay.Publisher
	Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error)
}

func databases() map[string]func(b *testing.B) source {
	onMySQL := func(open func() (*testserver.MySQL, error), name string) func(b *testing.B) source {
		return func(b *testing.B) source {
			server := testserver.Shared(b, &servers, name, open)
			database, err := server.Database()
			must(b, err)
			s, err := mysql.Open(b.Context(), server.DSN(database), mysql.Options{})
			must(b, err)
			b.Cleanup(func() { must(b, s.Close()) })
			return s
		}
	}
	return map[string]func(b *testing.B) source{
		"sqlite": func(b *testing.B) source { return newStore(b) },
		"postgres": func(b *testing.B) source {
			server := testserver.Shared(b, &servers, "postgres", testserver.OpenDefaultPostgres)
			s, err := postgres.Open(b.Context(), server.DSN("postgres"), postgres.Options{Schema: server.Name("bench")})
			must(b, err)
			b.Cleanup(func() { must(b, s.Close()) })
			return s
		},
		"mariadb": onMySQL(testserver.OpenMariaDB, "mariadb"),
		"mysql":   onMySQL(testserver.OpenMySQL, "mysql"),
	}
}

// brokers start one after another and end with their benchmark: two cores have no room for all.
func brokers() map[string]func(b *testing.B) target {
	return map[string]func(b *testing.B) target{
		"nats": func(b *testing.B) target {
			s := testserver.Own(b, testserver.OpenNATS)
			t, err := nats.Open(b.Context(), nats.Config{URL: s.URL})
			must(b, err)
			b.Cleanup(func() { must(b, t.Close()) })
			return t
		},
		"nats-cluster": func(b *testing.B) target {
			s := testserver.Own(b, testserver.OpenNATSCluster)
			var urls []string
			for _, node := range s.Nodes {
				urls = append(urls, node.URL)
			}
			t, err := nats.Open(b.Context(), nats.Config{URL: strings.Join(urls, ",")})
			must(b, err)
			b.Cleanup(func() { must(b, t.Close()) })
			return t
		},
		"embedded": func(b *testing.B) target {
			t := openBroker(b)
			b.Cleanup(t.Close)
			return t
		},
		"webhook": openWebhook,
		"redis": func(b *testing.B) target {
			s := testserver.Own(b, testserver.OpenRedis)
			t, err := redis.Open(b.Context(), redis.Config{Addr: s.Addr})
			must(b, err)
			b.Cleanup(func() { must(b, t.Close()) })
			return t
		},
		"kafka": func(b *testing.B) target {
			s := testserver.Own(b, testserver.OpenKafka)
			t, err := kafka.Open(b.Context(), kafka.Config{Seeds: []string{s.Addr}, Replication: 1})
			must(b, err)
			b.Cleanup(func() { must(b, t.Close()) })
			return t
		},
		"rabbitmq": func(b *testing.B) target {
			s := testserver.Own(b, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
			t, err := rabbitmq.Open(b.Context(), rabbitmq.Config{Addrs: []string{s.Addr}, User: s.User, Password: s.Password})
			must(b, err)
			b.Cleanup(t.Close)
			return t
		},
		"rocketmq": func(b *testing.B) target {
			s := testserver.Own(b, testserver.OpenRocketMQ)
			t, err := rocketmq.Open(b.Context(), rocketmq.Config{NameServers: []string{s.NameServer}, Cluster: s.Cluster, LockTerm: s.LockTerm})
			must(b, err)
			b.Cleanup(func() { must(b, t.Close()) })
			return t
		},
	}
}

// called is a broker without a server: a receiver that the events are sent to.
type called struct {
	*webhook.Broker
	receiver *webhook.Receiver
}

func (c called) Subscribe(context.Context, string, []convergo.Subject) (inbox.Source, error) {
	return c.receiver, nil
}

func openWebhook(b *testing.B) target {
	secret, err := webhook.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	must(b, err)
	receiver, err := webhook.NewReceiver(webhook.ReceiverConfig{Secrets: []webhook.Secret{secret}})
	must(b, err)
	server := httptest.NewServer(receiver)
	b.Cleanup(server.Close)
	t, err := webhook.Open(b.Context(), webhook.Config{
		Endpoints: []webhook.Endpoint{{Name: "reader", URL: server.URL, Secrets: []webhook.Secret{secret}}},
		Allow:     []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PlainHTTP: true,
	})
	must(b, err)
	b.Cleanup(t.Close)
	return called{t, receiver}
}

// BenchmarkServers measures every database with NATS, PostgreSQL with every broker, and the pairs of the demo's days: how fast a backlog drains from the
// database until a consumer has acknowledged all of it, and at 500 events a second how long after the commit's answer a consumer
// has an event.
func BenchmarkServers(b *testing.B) {
	stores, targets := databases(), brokers()
	for _, pair := range [][2]string{
		{"sqlite", "nats"}, {"postgres", "nats"}, {"mariadb", "nats"}, {"mysql", "nats"},
		{"postgres", "redis"}, {"postgres", "kafka"}, {"postgres", "rabbitmq"}, {"postgres", "rocketmq"},
		{"postgres", "nats-cluster"}, {"mariadb", "rabbitmq"}, {"mysql", "rocketmq"}, {"sqlite", "redis"}, {"sqlite", "embedded"}, {"postgres", "webhook"},
	} {
		b.Run(pair[0]+"+"+pair[1], func(b *testing.B) {
			for range b.N {
				carry(b, stores[pair[0]](b), targets[pair[1]](b))
			}
		})
	}
}

// arrivals is when a consumer had what.
type arrivals struct {
	mu    sync.Mutex
	at    map[convergo.Key]time.Time
	count atomic.Int64
}

func (a *arrivals) read(ctx context.Context, b *testing.B, source inbox.Source) {
	for ctx.Err() == nil {
		deliveries, err := source.Fetch(ctx, batch)
		if err != nil {
			continue // the end, or an outage: the wait for all will tell
		}
		now := time.Now()
		a.mu.Lock()
		for _, d := range deliveries {
			if _, again := a.at[d.Event.Key]; !again {
				a.at[d.Event.Key] = now
				a.count.Add(1)
			}
		}
		a.mu.Unlock()
		for _, d := range deliveries {
			if err := d.Ack(ctx); err != nil && ctx.Err() == nil {
				b.Errorf("ack: %v", err)
			}
		}
	}
}

func carry(b *testing.B, store source, broker target) {
	ctx, cancel := context.WithCancel(context.Background())
	source, err := broker.Subscribe(ctx, "reader", []convergo.Subject{{Topic: "order"}})
	must(b, err)
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	events := size(backlogSize, 5_000) / 10
	seen := &arrivals{at: map[convergo.Key]time.Time{}}
	began := time.Now()
	for n := 0; n < events; n += 100 {
		var some []convergo.Event
		for i := range min(100, events-n) {
			some = append(some, event(n+i))
		}
		must(b, store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error { return box.Add(ctx, tx, some...) }))
	}
	b.ReportMetric(float64(events)/time.Since(began).Seconds(), "enqueued/s")
	r := relay.New(store, broker, relay.Config{Poll: 50 * time.Millisecond})
	store.OnEvents(r.Wake)
	var running sync.WaitGroup
	running.Go(func() { seen.read(ctx, b, source) })
	running.Go(func() { must(b, r.Run(ctx)) })
	began = time.Now()
	awaitArrivals(b, seen, int64(events))
	b.ReportMetric(float64(events)/time.Since(began).Seconds(), "drained/s")

	waits := pourIn(b, store, box, seen, events)
	b.ReportMetric(waits[len(waits)/2], "p50-ms")
	b.ReportMetric(waits[len(waits)*95/100], "p95-ms")
	b.ReportMetric(waits[len(waits)*99/100], "p99-ms")
	cancel()
	running.Wait()
}

func awaitArrivals(b *testing.B, seen *arrivals, goal int64) {
	b.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for seen.count.Load() < goal {
		if <-tick.C; time.Now().After(deadline) {
			b.Fatalf("%d of %d events arrived", seen.count.Load(), goal)
		}
	}
}

// pourIn writes 500 events a second, each in a transaction of its own and whether or not the last one is through, and returns how
// long each took from the commit's answer to its consumer, in milliseconds and in order.
func pourIn(b *testing.B, store source, box *outbox.Outbox[convergo.Tx], seen *arrivals, first int) []float64 {
	const rate = 500
	n := 10 * rate
	if testing.Short() {
		n = rate
	}
	answered := make([]time.Time, n)
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	var writing sync.WaitGroup
	for i := range n {
		<-tick.C
		writing.Go(func() {
			err := store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error { return box.Add(ctx, tx, event(first+i)) })
			if err != nil {
				b.Error(err)
			}
			answered[i] = time.Now()
		})
	}
	writing.Wait()
	awaitArrivals(b, seen, int64(first)+int64(n))
	var waits []float64
	for i := range n {
		key := convergo.KeyFor(event(first+i).Type, event(first+i).Aggregate.ID, event(first+i).Version)
		waits = append(waits, max(0, float64(seen.at[key].Sub(answered[i]).Microseconds())/1000))
	}
	slices.Sort(waits)
	return waits
}
