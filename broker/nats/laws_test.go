package nats_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) {
	brokertest.Child(process())
	os.Exit(servers.Run(m))
}

// names makes streams of a shared server distinct.
var names atomic.Int64

func config(s *testserver.NATS) nats.Config {
	n := names.Add(1)
	return nats.Config{
		URL: s.URL, Stream: fmt.Sprint("LAW", n), Prefix: fmt.Sprint("law", n), Lease: 2 * time.Second, Timeout: 5 * time.Second,
	}
}

func open(t testing.TB, cfg nats.Config) *nats.Broker {
	t.Helper()
	b, err := nats.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() }) // fails when the test has taken the server away
	return b
}

func backend(t *testing.T, server *testserver.NATS, ackWait time.Duration) brokertest.Backend {
	cfg := config(server)
	cfg.AckWait = ackWait
	b := open(t, cfg)
	return brokertest.Backend{
		Broker: b,
		Guarantees: brokertest.Guarantees{
			Durable: true, OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, KeepsHistory: true, DelaysReturns: true,
			Redelivers: cfg.AckWait, SurvivesKill: true, InstancesShare: true, HandsOver: 4 * time.Second,
			Prompt: 6 * time.Second, // of a cluster that has just chosen its leaders
		},
		Another: func(t *testing.T) (brokertest.Broker, func()) {
			other := open(t, cfg)
			return other, other.Die
		},
		Unroute: func(t *testing.T) {
			if err := b.DeleteStream(); err != nil {
				t.Fatal(err)
			}
		},
		PublishRaw: func(ctx context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
			return b.PublishRaw(ctx, s.String()+".0", headers, payload)
		},
		Restart: func(t *testing.T) brokertest.Broker {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			restart(t, server, func(n *testserver.NATSNode) error { return n.Stop(15, 10*time.Second) })
			return open(t, cfg)
		},
		Kill: func(t *testing.T) { restart(t, server, (*testserver.NATSNode).Kill) },
		Empty: func(t *testing.T) {
			if err := server.Empty(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// restart ends every node and starts it again.
func restart(t *testing.T, s *testserver.NATS, end func(*testserver.NATSNode) error) {
	t.Helper()
	for _, n := range s.Nodes {
		if err := end(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range s.Nodes {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Ready(); err != nil {
		t.Fatal(err)
	}
}

func TestNATSObeysTheLawsOfBrokers(t *testing.T) {
	t.Parallel()
	server := testserver.Own(t, testserver.OpenNATS)
	brokertest.Run(t, func(t *testing.T) brokertest.Backend { return backend(t, server, time.Second) })
}

func TestANATSClusterObeysTheLawsOfBrokers(t *testing.T) {
	t.Parallel()
	server := testserver.Own(t, testserver.OpenNATSCluster)
	brokertest.Run(t, func(t *testing.T) brokertest.Backend { return backend(t, server, 2*time.Second) })
}
