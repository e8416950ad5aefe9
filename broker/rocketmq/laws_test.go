package rocketmq

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) {
	brokertest.Child(process())
	victimChild()
	flag.Parse()
	if err := waitTogether(); err != nil {
		panic(err)
	}
	os.Exit(servers.Run(m))
}

// waitTogether lets more tests run beside each other than there are processors, unless the caller says how many: they wait for the
// broker's next question most of their time.
func waitTogether() error {
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return nil
	}
	return flag.Set("test.parallel", "16")
}

var prefixes atomic.Int64

// prefix makes a name that no other test uses: topics and groups of its own.
func prefix() string { return fmt.Sprintf("t%d-", prefixes.Add(1)) }

func shared(t *testing.T) *testserver.RocketMQ {
	t.Helper()
	return testserver.Shared(t, &servers, "rocketmq", testserver.OpenRocketMQ)
}

func configOf(server *testserver.RocketMQ, prefix string) Config {
	return Config{NameServers: []string{server.NameServer}, Cluster: server.Cluster, Prefix: prefix, LockTerm: server.LockTerm}
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

// die cuts the connections, as the death of the process would.
func (b *Broker) die() {
	b.sending.close()
	b.reading.close()
}

// raw sends a message as a foreign program could: it knows the topic and the tag.
func (b *Broker) raw(ctx context.Context, subject convergo.Subject, headers map[string]string, payload []byte) error {
	parts, err := b.partitions(ctx, b.topicName(subject.Topic))
	if err != nil {
		return err
	}
	var properties strings.Builder
	for name, value := range headers {
		properties.WriteString(name + nameEnd + value + valueEnd)
	}
	properties.WriteString(propertyTags + nameEnd + subject.Type + valueEnd)
	return b.put(ctx, parts[0], []message{{body: payload, properties: properties.String()}})
}

// unroute deletes the topic of orders.
func (b *Broker) unroute(t *testing.T, server *testserver.RocketMQ) {
	t.Helper()
	name := b.topicName("order")
	parts, err := b.partitions(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	address, err := b.address(parts[0].Broker)
	if err != nil {
		t.Fatal(err)
	}
	const deleteInBroker, deleteInNameServer = 215, 216
	for code, address := range map[int]string{deleteInBroker: address, deleteInNameServer: server.NameServer} {
		if _, err := b.reading.call(t.Context(), address, request(code, fields("topic", name), nil)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRocketMQObeysTheLawsOfBrokers(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		server := shared(t)
		cfg := configOf(server, prefix())
		b := open(t, cfg)
		return brokertest.Backend{
			Broker: b,
			Guarantees: brokertest.Guarantees{
				Durable: true, SurvivesKill: true, OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, KeepsHistory: true,
				DelaysReturns: true, InstancesShare: true, HandsOver: server.LockTerm + 2*time.Second,
				// A message that arrives in the moment in which the broker puts a request aside is seen when it looks through those, every 5 s.
				Prompt: 10 * time.Second,
			},
			Restart: func(t *testing.T) brokertest.Broker {
				if err := server.Restart(); err != nil {
					t.Fatal(err)
				}
				return b
			},
			Kill: func(t *testing.T) {
				if err := server.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := server.Start(); err != nil {
					t.Fatal(err)
				}
			},
			Empty: func(t *testing.T) {
				if err := server.Empty(); err != nil {
					t.Fatal(err)
				}
			},
			Another: func(t *testing.T) (brokertest.Broker, func()) {
				other := open(t, cfg)
				return other, other.die
			},
			PublishRaw: b.raw,
			Unroute:    func(t *testing.T) { b.unroute(t, server) },
		}
	})
}
