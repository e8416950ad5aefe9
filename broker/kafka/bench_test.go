package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

func sample(id string, version int64) convergo.Event {
	key := convergo.KeyFor("OrderPaid", id, version)
	return convergo.Event{
		Key: key, MessageID: "m-" + string(key), Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: id},
		Version: version, Payload: fmt.Appendf(nil, `{"id":%q,"version":%d}`, id, version), CreatedAt: time.UnixMicro(1_796_000_000_000_001).UTC(),
	}
}

// samples is n events of 100 aggregates, each aggregate's versions counting on from the round.
func samples(n, round int) []convergo.Event {
	events := make([]convergo.Event, n)
	for i := range events {
		events[i] = sample(fmt.Sprint("O-", i%100), int64(round*n/100+i/100+1))
	}
	return events
}

// BenchmarkPublish sends windows of 500 events to one node.
func BenchmarkPublish(b *testing.B) {
	server := testserver.Shared(b, &servers, "kafka", testserver.OpenKafka)
	broker, err := Open(b.Context(), settings(server.Addr))
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	sent := 0
	for round := 0; b.Loop(); round++ {
		for _, err := range broker.Publish(b.Context(), samples(500, round)) {
			if err != nil {
				b.Fatal(err)
			}
			sent++
		}
	}
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkConsume fetches and acknowledges 100 at a time.
func BenchmarkConsume(b *testing.B) {
	server := testserver.Shared(b, &servers, "kafka", testserver.OpenKafka)
	broker, err := Open(b.Context(), settings(server.Addr))
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	source, err := broker.Subscribe(b.Context(), "bench", []convergo.Subject{{Topic: "order"}})
	if err != nil {
		b.Fatal(err)
	}
	left, done := 0, 0
	for round := 0; b.Loop(); {
		if left == 0 {
			b.StopTimer()
			broker.Publish(b.Context(), samples(5000, round))
			left, round = 5000, round+1
			b.StartTimer()
		}
		got, err := source.Fetch(b.Context(), 100)
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range got {
			_ = d.Ack(b.Context())
		}
		left -= len(got)
		done += len(got)
	}
	b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "events/s")
}
