package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testlog"
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

func subscribe(t *testing.T, b *Broker, consumer string) inbox.Source {
	t.Helper()
	s, err := b.Subscribe(t.Context(), consumer, []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, b *Broker, events ...convergo.Event) {
	t.Helper()
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatal(events[i].Key, err)
		}
	}
}

func pending(t *testing.T, b *Broker, consumer string) int64 {
	t.Helper()
	all, err := b.Pending(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all[consumer]
}

func TestTheMessageIDOfAnEventOutsideAnOutboxIsItsKey(t *testing.T) {
	b := open(t, Config{})
	e := event("order", "OrderPaid", "O-1", 7)
	publish(t, b, e)
	stream, err := b.js.Stream(t.Context(), streamName)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "ev.order.OrderPaid.0" || m.Header.Get("Nats-Msg-Id") != string(e.Key) || m.Header.Get(convergo.HeaderKey) != string(e.Key) {
		t.Errorf("subject %q, headers %v", m.Subject, m.Header)
	}
}

func TestARepeatIsStoredOnceAndAReplayOnceMore(t *testing.T) {
	b := open(t, Config{})
	e := event("order", "OrderPaid", "O-1", 1)
	e.Position = 41
	s := subscribe(t, b, "payment")
	publish(t, b, e)
	publish(t, b, e)
	if n := pending(t, b, "payment"); n != 1 {
		t.Errorf("%d stored after a repeat, want 1", n)
	}
	e.Position++ // it was made pending once more
	publish(t, b, e)
	publish(t, b, e)
	if n := pending(t, b, "payment"); n != 2 {
		t.Errorf("%d stored after a replay, want 2", n)
	}
	for range 2 {
		got, err := s.Fetch(t.Context(), 1)
		if err != nil || got[0].Event.Key != e.Key {
			t.Fatal(got, err)
		}
	}
}

func TestARepeatWhoseFirstCopyIsGoneIsStoredAgain(t *testing.T) {
	b := open(t, Config{})
	e := event("order", "OrderPaid", "O-1", 1)
	subscribe(t, b, "payment")
	publish(t, b, e)
	stream, err := b.js.Stream(t.Context(), streamName)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	publish(t, b, e)
	if n := pending(t, b, "payment"); n != 1 {
		t.Errorf("%d stored, want 1", n)
	}
}

func TestPendingCountsTheUndeliveredAndTheUnacknowledged(t *testing.T) {
	b := open(t, Config{})
	s := subscribe(t, b, "payment")
	for v := int64(1); v <= 5; v++ {
		publish(t, b, event("order", "OrderPaid", "O-1", v))
	}
	got, err := s.Fetch(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if n := pending(t, b, "payment"); n != 5 {
		t.Errorf("%d pending, want 5", n)
	}
	if err := got[0].Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); pending(t, b, "payment") != 4; {
		if time.Now().After(end) {
			t.Fatalf("%d pending, want 4", pending(t, b, "payment"))
		}
	}
}

func TestCloseTakesEveryAcknowledgementAlong(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	var events []convergo.Event
	for v := int64(1); v <= 2000; v++ {
		events = append(events, event("order", "OrderPaid", fmt.Sprint("O-", v%100), v))
	}
	publish(t, b, events...)
	for n := 0; n < len(events); {
		got, err := s.Fetch(t.Context(), 500)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if err := d.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n += len(got)
	}
	b.Close()
	if n := pending(t, open(t, cfg), "payment"); n != 0 {
		t.Errorf("%d acknowledged events are pending again", n)
	}
}

func TestCloseEndsAWaitingFetchAndFailsLaterCallsAsAnOutage(t *testing.T) {
	b := open(t, Config{})
	s := subscribe(t, b, "payment")
	ended := make(chan error, 1)
	go func() { _, err := s.Fetch(context.Background(), 1); ended <- err }()
	b.Close()
	if err := <-ended; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("fetch: %v", err)
	}
	if err := b.Publish(t.Context(), []convergo.Event{event("order", "OrderPaid", "O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("publish: %v", err)
	}
	if _, err := b.Pending(t.Context()); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("pending: %v", err)
	}
	b.Close()
}

func TestASecondBrokerOnTheSameFolderIsRefused(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	first := open(t, cfg)
	b, err := Open(t.Context(), cfg)
	if err == nil {
		b.Close()
	}
	if err == nil || !strings.Contains(err.Error(), cfg.Dir) || !strings.Contains(err.Error(), "another broker runs there") {
		t.Errorf("%v, want that another broker runs there", err)
	}
	first.Close()
	open(t, cfg)
}

func TestAFolderThatCannotBeUsedIsAClearError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, "/proc/nothing"} {
		b, err := Open(t.Context(), Config{Dir: dir})
		if err == nil {
			b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), dir) || !strings.HasPrefix(err.Error(), "embedded broker") {
			t.Errorf("Dir %q: %v", dir, err)
		}
	}
}

func TestTheServersLinesGoToTheLoggerOnly(t *testing.T) {
	var lines testlog.Lines
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	open(t, Config{Log: log}).Close()
	if text := lines.String(); !strings.Contains(text, "level=DEBUG") || strings.Contains(text, "level=INFO") {
		t.Errorf("log: %s", text)
	}
}

func TestDurabilitySaysWhatAPowerCutLoses(t *testing.T) {
	if text := open(t, Config{SyncInterval: 7 * time.Second}).Durability(); !strings.Contains(text, "7s") {
		t.Error(text)
	}
	if text := open(t, Config{SyncAlways: true}).Durability(); !strings.Contains(text, "neither") {
		t.Error(text)
	}
}
