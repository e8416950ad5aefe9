package nats_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testserver"
)

func paid(id string, version int64) convergo.Event {
	key := convergo.KeyFor("OrderPaid", id, version)
	return convergo.Event{
		Key: key, MessageID: fmt.Sprint("m-", key), Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: id},
		Version: version, Payload: []byte(`{"n":1}`), CreatedAt: time.UnixMicro(1_796_000_000_000_000).UTC(),
	}
}

func publish(t *testing.T, b *nats.Broker, events ...convergo.Event) {
	t.Helper()
	for i, err := range b.Publish(t.Context(), events) {
		if err != nil {
			t.Fatal(events[i].Key, err)
		}
	}
}

func subscribe(t *testing.T, b *nats.Broker, consumer string, types ...string) inbox.Source {
	t.Helper()
	var subjects []convergo.Subject
	for _, typ := range types {
		subjects = append(subjects, convergo.Subject{Topic: "order", Type: typ})
	}
	if len(types) == 0 {
		subjects = []convergo.Subject{{Topic: "order"}}
	}
	s, err := b.Subscribe(t.Context(), consumer, subjects)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fetch acknowledges n events and returns their keys.
func fetch(t *testing.T, s inbox.Source, n int) (keys []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(keys) < n {
		got, err := s.Fetch(ctx, n-len(keys))
		if err != nil {
			t.Fatalf("fetch after %d of %d: %v", len(keys), n, err)
		}
		for _, d := range got {
			keys = append(keys, string(d.Event.Key))
			if err := d.Ack(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	return keys
}

func nothing(t *testing.T, s inbox.Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	got, _ := s.Fetch(ctx, 1) // the error is the end of ctx
	if len(got) > 0 {
		t.Errorf("came, and must not: %s", got[0].Event.Key)
	}
}

func pending(t *testing.T, b *nats.Broker, consumer string) int64 {
	t.Helper()
	all, err := b.Pending(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all[consumer]
}

// direct is a connection of our own to the server.
func direct(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	conn, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func single(t *testing.T) *testserver.NATS {
	t.Helper()
	return testserver.Shared(t, &servers, "nats", testserver.OpenNATS)
}

func TestARepeatIsStoredOnceAndAReplayOnceMore(t *testing.T) {
	b := open(t, config(single(t)))
	s := subscribe(t, b, "payment")
	e := paid("O-1", 1)
	e.Position = 41
	publish(t, b, e)
	publish(t, b, e) // a relay died before it could note that the event was sent
	e.Position = 77  // an operator made it pending once more
	publish(t, b, e)
	publish(t, b, e)
	fetch(t, s, 2)
	nothing(t, s)
}

func TestPendingCountsWhatIsNotAcknowledged(t *testing.T) {
	b := open(t, config(single(t)))
	s := subscribe(t, b, "payment", "OrderPaid")
	subscribe(t, b, "ledger", "OrderPaid", "OrderClosed")
	for v := range int64(5) {
		publish(t, b, paid(fmt.Sprint("O-", v), 1))
	}
	other := paid("O-9", 1)
	other.Type = "OrderClosed"
	publish(t, b, other)
	fetch(t, s, 2)
	deadline := time.Now().Add(5 * time.Second)
	for pending(t, b, "payment") != 3 && time.Now().Before(deadline) {
	}
	if p, l := pending(t, b, "payment"), pending(t, b, "ledger"); p != 3 || l != 6 {
		t.Errorf("pending %d and %d, want 3 and 6", p, l)
	}
}

func TestAnotherNumberOfPartitionsIsRefusedWithTheRemedy(t *testing.T) {
	cfg := config(single(t))
	open(t, cfg)
	cfg.Partitions = 4
	_, err := nats.Open(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "has 8 partitions and partitions (Config.Partitions) is 4: set that to 8") {
		t.Errorf("error %v", err)
	}
}

func TestAStreamOfSomebodyElseIsRefused(t *testing.T) {
	server := single(t)
	cfg := config(server)
	_, err := direct(t, server.URL).CreateStream(t.Context(), jetstream.StreamConfig{Name: cfg.Stream, Subjects: []string{cfg.Prefix + ".>"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "name another one (Config.Stream)") {
		t.Errorf("error %v", err)
	}
}

func TestTwoStreamsCannotHaveOnePrefix(t *testing.T) {
	cfg := config(single(t))
	open(t, cfg)
	cfg.Stream += "x"
	cfg.Timeout = time.Minute // nobody may wait for that to get better
	start := time.Now()
	_, err := nats.Open(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "overlap") || time.Since(start) >= cfg.Timeout {
		t.Errorf("error %v after %s", err, time.Since(start))
	}
}

// The stream was deleted and made again, as after a loss of all servers: the sequences that were read belong to other events.
func TestAStreamThatWasMadeAnewIsReadFromItsBeginning(t *testing.T) {
	cfg := config(single(t))
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	for v := int64(1); v <= 20; v++ {
		publish(t, b, paid("O-1", v))
	}
	fetch(t, s, 20)
	if err := b.DeleteStream(); err != nil {
		t.Fatal(err)
	}
	other := open(t, cfg) // makes it again
	publish(t, other, paid("O-1", 21), paid("O-1", 22))
	if got := fetch(t, s, 2); !slices.Equal(got, []string{"OrderPaid:O-1:v21", "OrderPaid:O-1:v22"}) {
		t.Errorf("got %v", got)
	}
}

// The new stream has grown beyond what was read of the old one before anybody looks.
func TestThePositionOfAnotherStreamOfTheSameNameMeansNothing(t *testing.T) {
	cfg := config(single(t))
	b := open(t, cfg)
	for v := int64(1); v <= 20; v++ {
		publish(t, b, paid("O-1", v))
	}
	fetch(t, subscribe(t, b, "payment"), 20)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, cfg)
	if err := b.DeleteStream(); err != nil {
		t.Fatal(err)
	}
	b = open(t, cfg)
	for v := int64(21); v <= 50; v++ {
		publish(t, b, paid("O-1", v))
	}
	if got := fetch(t, subscribe(t, b, "payment"), 30); got[0] != "OrderPaid:O-1:v21" || got[29] != "OrderPaid:O-1:v50" {
		t.Errorf("got %v", got)
	}
}

func TestThePositionBeyondTheEndOfTheStreamIsPutRight(t *testing.T) {
	cfg := config(single(t))
	b := open(t, cfg)
	first := subscribe(t, b, "payment")
	publish(t, b, paid("O-1", 1))
	fetch(t, first, 1)
	if err := first.(interface{ Close() error }).Close(); err != nil {
		t.Fatal(err)
	}
	// The stream loses its end, here: the position says more than was ever there.
	if err := b.MovePosition(t.Context(), "payment", paid("O-1", 1).Aggregate, 1000); err != nil {
		t.Fatal(err)
	}
	publish(t, b, paid("O-1", 2), paid("O-1", 3))
	s := subscribe(t, b, "payment")
	var got []string
	for len(got) == 0 || got[len(got)-1] != "OrderPaid:O-1:v3" {
		got = append(got, fetch(t, s, 1)...)
	}
	if !slices.Contains(got, "OrderPaid:O-1:v2") {
		t.Errorf("got %v", got)
	}
}

// During a roll-out the old version of a program does not know the new event; it must not pass over it.
func TestInstancesWithOlderSubjectsReadByTheNewerOnes(t *testing.T) {
	cfg := config(single(t))
	old, fresh := open(t, cfg), open(t, cfg)
	before := subscribe(t, old, "payment", "OrderPaid")
	publish(t, old, paid("O-1", 1))
	fetch(t, before, 1)
	subscribe(t, fresh, "payment", "OrderPaid", "OrderClosed")
	// The new version is taken back, or stands still for a moment: what only it knows is not passed over.
	if err := fresh.Close(); err != nil {
		t.Fatal(err)
	}
	var events []convergo.Event
	for i := range 40 {
		e := paid(fmt.Sprint("O-", i+2), 1)
		e.Type = "OrderClosed"
		events = append(events, e, paid(fmt.Sprint("O-", i+2), 2))
	}
	publish(t, old, events...)
	fetch(t, before, len(events))
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, cfg)
	s := subscribe(t, again, "payment", "OrderPaid")
	closed := paid("O-1", 2)
	closed.Type = "OrderClosed"
	publish(t, again, closed)
	if got := fetch(t, s, 1); got[0] != string(closed.Key) {
		t.Errorf("got %v", got)
	}
}

// An instance that joins waits for what the other is working on: nothing comes twice because of it.
func TestAPartitionChangesHandsOnlyWhenNothingOfItIsBeingWorkedOn(t *testing.T) {
	cfg := config(single(t))
	one, two := open(t, cfg), open(t, cfg)
	s := subscribe(t, one, "payment")
	var events []convergo.Event
	for i := range 40 {
		events = append(events, paid(fmt.Sprint("O-", i), 1))
	}
	publish(t, one, events...)
	var held []inbox.Delivery
	for len(held) < len(events) {
		got, err := s.Fetch(t.Context(), len(events))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, got...)
	}
	joined := subscribe(t, two, "payment")
	nothing(t, joined)
	for _, d := range held {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range events {
		events[i] = paid(fmt.Sprint("O-", i), 2)
	}
	publish(t, one, events...)
	for _, key := range fetch(t, joined, 10) {
		if !strings.HasSuffix(key, ":v2") {
			t.Errorf("%s came to the second instance after the first was done with it", key)
		}
	}
}

// A handler that kills its process is found by the number of its deliveries, also when each is to another process.
func TestADeliveryAfterADeathSaysThatItIsNotTheFirst(t *testing.T) {
	cfg := config(single(t))
	publish(t, open(t, cfg), paid("O-1", 1))
	for want := 1; want <= 3; want++ {
		b := open(t, cfg)
		s := subscribe(t, b, "payment")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got, err := s.Fetch(ctx, 1)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Attempt != want {
			t.Errorf("attempt %d, want %d", got[0].Attempt, want)
		}
		b.Die()
	}
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	fetch(t, s, 1)
	publish(t, b, paid("O-1", 2))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if got, err := s.Fetch(ctx, 1); err != nil || got[0].Attempt != 1 {
		t.Errorf("the next event: %v, %v", got, err)
	}
}

func TestCloseEndsAWaitingFetchAndFailsLaterCallsAsAnOutage(t *testing.T) {
	b := open(t, config(single(t)))
	s := subscribe(t, b, "payment")
	ended := make(chan error, 1)
	go func() { _, err := s.Fetch(context.Background(), 1); ended <- err }()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("fetch: %v", err)
	}
	if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("publish: %v", err)
	}
	if _, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}}); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("subscribe: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error("again: ", err)
	}
}

func TestWhileTheServerIsAwayEverythingIsAnOutageAtOnce(t *testing.T) {
	server := testserver.Own(t, testserver.OpenNATS)
	cfg := config(server)
	cfg.Timeout = time.Minute
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	if err := server.Nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("publish: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), cfg.Timeout)
	defer cancel()
	if _, err := s.Fetch(ctx, 1); convergo.VerdictOf(err) != convergo.Outage || ctx.Err() != nil {
		t.Errorf("fetch: %v", err)
	}
	if took := time.Since(start); took >= cfg.Timeout {
		t.Errorf("took %s", took)
	}
	if err := server.Nodes[0].Start(); err != nil {
		t.Fatal(err)
	}
	if err := server.Ready(); err != nil {
		t.Fatal(err)
	}
	for b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0] != nil {
		if time.Since(start) > 2*time.Minute {
			t.Fatal("the broker does not find the server again")
		}
	}
	for {
		got, err := s.Fetch(t.Context(), 1)
		if err == nil && got[0].Event.Version == 1 {
			return
		}
		if time.Since(start) > 2*time.Minute {
			t.Fatal("the source does not find the server again: ", err)
		}
	}
}
