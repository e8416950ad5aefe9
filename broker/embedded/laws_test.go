package embedded

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
)

func TestEmbeddedObeysTheLawsOfBrokers(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) brokertest.Backend {
		cfg := Config{Dir: t.TempDir(), AckWait: time.Second}
		b := open(t, cfg)
		return brokertest.Backend{
			Broker: b,
			Guarantees: brokertest.Guarantees{
				Durable: true, OrderedPerAggregate: true, RecoversInOrder: true, Shares: true, KeepsHistory: true, DelaysReturns: true,
				Redelivers: time.Second,
			},
			Restart: func(t *testing.T) brokertest.Broker { b.Close(); return open(t, cfg) },
			Unroute: func(t *testing.T) {
				if err := b.js.DeleteStream(t.Context(), streamName); err != nil {
					t.Fatal(err)
				}
			},
			PublishRaw: func(ctx context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
				m := &nats.Msg{Subject: "ev." + s.String() + ".0", Data: payload, Header: nats.Header{}}
				for name, value := range headers {
					m.Header.Set(name, value)
				}
				_, err := b.js.PublishMsg(ctx, m)
				return err
			},
		}
	})
}
