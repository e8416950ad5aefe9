package nats_test

import (
	"fmt"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

// The servers sync every write; see testserver. One operation is one event, published in batches of 500 as a relay does.
func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		name string
		open func() (*testserver.NATS, error)
	}{{"single", testserver.OpenNATS}, {"cluster", testserver.OpenNATSCluster}} {
		b.Run(c.name, func(b *testing.B) {
			server := testserver.Own(b, c.open)
			broker := open(b, config(server))
			batch := make([]convergo.Event, 500)
			version := int64(0)
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += len(batch) {
				version++
				for i := range batch {
					batch[i] = paid(fmt.Sprint("O-", i), version)
					batch[i].Payload = payload()
				}
				for _, err := range broker.Publish(b.Context(), batch[:min(len(batch), b.N-n)]) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func payload() []byte { return make([]byte, 300) }
