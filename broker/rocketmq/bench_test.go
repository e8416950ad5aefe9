package rocketmq

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

// BenchmarkPublish publishes as a relay does: batches of 256 events of 64 aggregates, each confirmed after the broker's flush.
func BenchmarkPublish(b *testing.B) {
	server := testserver.Shared(b, &servers, "rocketmq", testserver.OpenRocketMQ)
	broker, err := Open(b.Context(), configOf(server, fmt.Sprint("bench", os.Getpid(), "-")))
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	const batch = 256
	version := int64(0)
	publishBatch := func() {
		var events []convergo.Event
		for i := range batch {
			if i%64 == 0 {
				version++
			}
			e := paid(fmt.Sprint("O-", i%64), version)
			e.Payload = make([]byte, 300)
			events = append(events, e)
		}
		for i, err := range broker.Publish(b.Context(), events) {
			if err != nil {
				b.Fatalf("%s: %v", events[i].Key, err)
			}
		}
	}
	publishBatch()
	b.ResetTimer()
	for range b.N {
		publishBatch()
	}
	b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkConsume reads and acknowledges what BenchmarkPublish's like has left.
func BenchmarkConsume(b *testing.B) {
	server := testserver.Shared(b, &servers, "rocketmq", testserver.OpenRocketMQ)
	broker, err := Open(b.Context(), configOf(server, fmt.Sprint("drain", os.Getpid(), "-", b.N, "-")))
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	for done := 0; done < b.N; done += 64 {
		for _, err := range broker.Publish(b.Context(), spread(int64(done)+1)) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	s, err := broker.Subscribe(b.Context(), "points", []convergo.Subject{{Topic: "order"}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	b.ResetTimer()
	for done := 0; done < b.N; {
		got, err := s.Fetch(ctx, 64)
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range got {
			if err := d.Ack(ctx); err != nil {
				b.Fatal(err)
			}
		}
		done += len(got)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
