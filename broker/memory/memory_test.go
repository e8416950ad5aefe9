package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/broker/memory"
)

func TestMemoryObeysTheLawsOfBrokers(t *testing.T) {
	brokertest.Run(t, func(*testing.T) brokertest.Backend {
		b := memory.New(memory.Config{Visibility: 500 * time.Millisecond})
		return brokertest.Backend{
			Broker: b,
			Guarantees: brokertest.Guarantees{
				OrderedPerAggregate: true, Shares: true, KeepsHistory: true, DelaysReturns: true, Redelivers: 500 * time.Millisecond,
				InstancesShare: true, HandsOver: 500 * time.Millisecond,
			},
			// What a dead process held is delivered to another one when its time is over.
			Another: func(*testing.T) (brokertest.Broker, func()) { return b, func() {} },
			PublishRaw: func(_ context.Context, s convergo.Subject, headers map[string]string, payload []byte) error {
				b.PublishRaw(s, headers, payload)
				return nil
			},
		}
	})
}
