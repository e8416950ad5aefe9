package redis

import (
	"context"
	"crypto/rand"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) {
	brokertest.Child(process())
	os.Exit(servers.Run(m))
}

// settings are those of a test: short terms, a prefix of its own on the server.
func settings(server *testserver.Redis) Config {
	return Config{Addr: server.Addr, Prefix: "test-" + rand.Text()[:8], AckWait: 1500 * time.Millisecond, Lease: 1500 * time.Millisecond}
}

func open(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil && b.client.Ping(context.Background()).Err() == nil {
			t.Error(err)
		}
	})
	return b
}

func restart(t *testing.T, server *testserver.Redis) {
	t.Helper()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
}

// die cuts the connections as the end of the process would: from here on nothing of it reaches the server.
func die(b *Broker) {
	_ = b.client.Close()
	_ = b.waiting.Close()
}

func TestRedisObeysTheLawsOfBrokers(t *testing.T) {
	server := testserver.Shared(t, &servers, "redis", testserver.OpenRedis)
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		cfg := settings(server)
		b := open(t, cfg)
		return brokertest.Backend{
			Broker: b,
			Guarantees: brokertest.Guarantees{
				Durable: true, OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, KeepsHistory: true, DelaysReturns: true,
				Redelivers: cfg.AckWait, SurvivesKill: true, InstancesShare: true, HandsOver: 2 * cfg.Lease, Prompt: 5 * time.Second,
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
			Empty: func(t *testing.T) {
				if err := server.Empty(); err != nil {
					t.Fatal(err)
				}
			},
			Another: func(t *testing.T) (brokertest.Broker, func()) {
				other := open(t, cfg)
				return other, func() { die(other) }
			},
			Unroute: func(t *testing.T) {
				for p := range b.cfg.Partitions {
					if err := b.client.Set(t.Context(), b.streamKey("order", p), "no stream", 0).Err(); err != nil {
						t.Fatal(err)
					}
				}
			},
			PublishRaw: func(ctx context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
				values := []any{payloadField, payload}
				for name, value := range headers {
					values = append(values, name, value)
				}
				return b.client.XAdd(ctx, &redis.XAddArgs{Stream: b.streamKey(s.Topic, 0), Values: values}).Err()
			},
		}
	})
}
