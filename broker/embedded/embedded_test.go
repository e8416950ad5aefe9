package embedded

import (
	"fmt"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func event(topic, eventType, id string, version int64) convergo.Event {
	key := convergo.KeyFor(eventType, id, version)
	return convergo.Event{
		Key: key, MessageID: fmt.Sprintf("m-%s", key), Topic: topic, Type: eventType, Aggregate: convergo.Aggregate{Type: topic, ID: id},
		Version: version, Payload: []byte(`{"n":1}`), CreatedAt: time.UnixMicro(1_796_000_000_000_000).UTC(),
	}
}

func open(t *testing.T, cfg Config) *Broker {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	b, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestWhatIsPublishedIsFetched(t *testing.T) {
	b := open(t, Config{})
	var events []convergo.Event
	for i := range 1000 {
		events = append(events, event("order", "OrderPaid", fmt.Sprint("O-", i%10), int64(i)))
	}
	start := time.Now()
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	t.Log("published", time.Since(start))
	s, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order", Type: "OrderPaid"}})
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	n := 0
	for n < 1000 {
		got, err := s.Fetch(t.Context(), 128)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if d.Malformed != nil || d.Event.Version != int64(n) {
				t.Fatal(d.Malformed, d.Event.Version, n)
			}
			n++
			if err := d.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Log("fetched", time.Since(start))
}
