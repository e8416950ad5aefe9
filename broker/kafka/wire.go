package kafka

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo"
)

// overhead is more than a batch adds to its records, and recordOverhead and headerOverhead more than a record and a header
// add to their bytes: lengths, offsets, times.
const (
	overhead       = 128
	recordOverhead = 32
	headerOverhead = 10
)

func (b *Broker) record(e convergo.Event) *kgo.Record {
	wire := e.Wire()
	r := &kgo.Record{
		Topic: b.topicName(e.Topic), Partition: b.partitionOf(e.Aggregate), Key: []byte(e.Aggregate.String()), Value: e.Payload,
		Headers: make([]kgo.RecordHeader, 0, len(wire)),
	}
	if r.Value == nil {
		r.Value = []byte{} // nil would be a tombstone
	}
	for name, value := range wire {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return r
}

// sizeOf is at least the record's size within a batch, uncompressed.
func sizeOf(r *kgo.Record) int {
	size := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += headerOverhead + len(h.Key) + len(h.Value)
	}
	return size
}

func eventOf(r *kgo.Record) (convergo.Event, error) {
	headers := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	return convergo.FromWire(headers, r.Value)
}
