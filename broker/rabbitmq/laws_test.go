package rabbitmq

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) {
	brokertest.Child(process())
	os.Exit(servers.Run(m))
}

func openServer() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() }

func shared(t testing.TB) *testserver.RabbitMQ {
	t.Helper()
	return testserver.Shared(t, &servers, "rabbitmq", openServer)
}

func config(r *testserver.RabbitMQ) Config {
	return Config{Addrs: []string{r.Addr}, User: r.User, Password: r.Password, Prefix: r.Prefix(), Rebalance: 200 * time.Millisecond,
		Prefetch: 1000} // the laws leave hundreds of events of one aggregate unacknowledged
}

func open(t testing.TB, cfg Config) *Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	b, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// archive is a consumer of everything that the laws publish, so that nothing is unroutable only because a law's own consumer
// does not want it. Nobody reads its queues.
func archive(t *testing.T, b *Broker) {
	t.Helper()
	all := []convergo.Subject{{Topic: "order"}, {Topic: "ordering"}, {Topic: "payment"}, {Topic: "stock"}}
	s, err := b.Subscribe(t.Context(), "archive", all)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.(io.Closer).Close(); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// channel is a plain channel, as other programs have.
func channel(t testing.TB, r *testserver.RabbitMQ) *amqp.Channel {
	t.Helper()
	conn, err := r.Dial("/")
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	return ch
}

// unroute deletes all queues of the archive, and so what the events would be stored in.
func unroute(t *testing.T, r *testserver.RabbitMQ, b *Broker) {
	ch := channel(t, r)
	for p := range b.cfg.Partitions {
		_, err := ch.QueueDelete(b.queue("archive", p), false, false, false)
		must(t, err)
	}
}

// die cuts a broker's connections as the death of its process does.
func die(b *Broker) {
	for _, l := range []*link{b.publish, b.consume} {
		<-l.turn
		l.closed = true
		l.turn <- struct{}{}
		l.mu.Lock()
		_ = l.raw.Close()
		l.mu.Unlock()
	}
}

func backend(t *testing.T, r *testserver.RabbitMQ, cfg Config) brokertest.Backend {
	b := open(t, cfg)
	archive(t, b)
	return brokertest.Backend{
		Broker: b,
		Guarantees: brokertest.Guarantees{
			Durable: true, OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, DelaysReturns: true,
			SurvivesKill: true, InstancesShare: true, HandsOver: 5 * time.Second,
		},
		Restart: func(t *testing.T) brokertest.Broker {
			b.Close()
			must(t, r.Restart())
			return open(t, cfg)
		},
		Kill: func(t *testing.T) { must(t, r.Crash()) },
		Another: func(t *testing.T) (brokertest.Broker, func()) {
			other := open(t, cfg)
			return other, func() { die(other) }
		},
		Empty:   func(t *testing.T) { must(t, r.Empty()) },
		Unroute: func(t *testing.T) { unroute(t, r, b) },
		PublishRaw: func(ctx context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
			table := amqp.Table{}
			for name, value := range headers {
				table[name] = value
			}
			message := amqp.Publishing{Headers: table, Body: payload}
			return channel(t, r).PublishWithContext(ctx, b.exchange(s.Topic), s.Type+".0", true, false, message)
		},
	}
}

func TestRabbitMQObeysTheLawsOfBrokers(t *testing.T) {
	r := shared(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Backend { return backend(t, r, config(r)) })
}
