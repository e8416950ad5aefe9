package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) {
	brokertest.Child(process())
	os.Exit(servers.Run(m))
}

// settings are those of a test: one node, short terms, a prefix of its own on the server.
func settings(addr string) Config {
	return Config{
		Seeds: []string{addr}, Prefix: "test-" + rand.Text()[:8] + ".", Replication: 1,
		AckWait: 1500 * time.Millisecond, Session: 2 * time.Second, Timeout: 5 * time.Second,
	}
}

func open(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// network is the connections of one process, which can be cut for good.
type network struct {
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
}

func (n *network) dial(ctx context.Context, kind, host string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return nil, errors.New("this process is dead")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, kind, host)
	if err == nil {
		n.conns = append(n.conns, c)
	}
	return c, err
}

// die cuts the connections as the end of the process would: from here on nothing of it reaches the server.
func (n *network) die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = true
	for _, c := range n.conns {
		_ = c.Close()
	}
}

func restart(t *testing.T, server *testserver.Kafka) {
	t.Helper()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
}

func TestKafkaObeysTheLawsOfBrokers(t *testing.T) {
	server := testserver.Shared(t, &servers, "kafka", testserver.OpenKafka)
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		cfg := settings(server.Addr)
		b := open(t, cfg)
		return brokertest.Backend{
			Broker: b,
			Guarantees: brokertest.Guarantees{
				Durable: true, GathersAcks: true,
				OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, KeepsHistory: true, DelaysReturns: true,
				Redelivers: cfg.AckWait, SurvivesKill: true, InstancesShare: true, HandsOver: cfg.Session + 4*time.Second, Prompt: 5 * time.Second,
			},
			Restart: func(t *testing.T) brokertest.Broker {
				if err := server.Stop(syscall.SIGTERM, time.Minute); err != nil {
					t.Fatal(err)
				}
				restart(t, server)
				return b
			},
			Kill: func(t *testing.T) {
				if err := server.Kill(); err != nil {
					t.Fatal(err)
				}
				restart(t, server)
			},
			Another: func(t *testing.T) (brokertest.Broker, func()) {
				var n network
				mortal := cfg
				mortal.dial = n.dial
				return open(t, mortal), n.die
			},
			Empty: func(t *testing.T) { testserver.Must(t, server.Empty()) },
			Unroute: func(t *testing.T) {
				if _, err := b.prepare(t.Context(), "order"); err != nil {
					t.Fatal(err)
				}
				if _, err := b.admin.DeleteTopics(t.Context(), b.topicName("order")); err != nil {
					t.Fatal(err)
				}
				for made := true; made; { // the node follows its controller
					var err error
					if made, err = b.look(t.Context(), "order"); err != nil {
						t.Fatal(err)
					}
				}
			},
			PublishRaw: func(ctx context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
				r := &kgo.Record{Topic: b.topicName(s.Topic), Value: payload}
				for name, value := range headers {
					r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
				}
				return b.client.ProduceSync(ctx, r).FirstErr()
			},
		}
	})
}
