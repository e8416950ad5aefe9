package rabbitmq

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testserver"
)

var orders = []convergo.Subject{{Topic: "order", Type: "OrderPaid"}}

func paid(id string, version int64) convergo.Event {
	key := convergo.KeyFor("OrderPaid", id, version)
	return convergo.Event{
		Key: key, MessageID: "m-" + string(key), Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: id},
		Version: version, Payload: []byte("{}"), CreatedAt: time.UnixMicro(1_796_000_000_000_001).UTC(),
	}
}

func publish(t *testing.T, b *Broker, events ...convergo.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, err := range b.Publish(ctx, events) {
		must(t, err)
	}
}

func subscribe(t *testing.T, b *Broker, consumer string) inbox.Source {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := b.Subscribe(ctx, consumer, orders)
	must(t, err)
	return s
}

func fetch(t *testing.T, s inbox.Source, n int) []inbox.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []inbox.Delivery
	for len(all) < n {
		got, err := s.Fetch(ctx, n-len(all))
		must(t, err)
		all = append(all, got...)
	}
	return all
}

func TestCaseB05AnAckForWhatNoQueueTookIsUnroutableAndLaterItIsDeliveredOnce(t *testing.T) {
	b := open(t, config(shared(t)))
	err := b.Publish(t.Context(), []convergo.Event{paid("m-5", 1)})[0]
	if err == nil || !strings.Contains(err.Error(), "unroutable") || convergo.VerdictOf(err) != convergo.Wait {
		t.Fatalf("error %v with verdict %s, want unroutable, wait", err, convergo.VerdictOf(err))
	}
	s := subscribe(t, b, "payment")
	publish(t, b, paid("m-5", 1))
	got := fetch(t, s, 1)
	must(t, got[0].Ack(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if more, _ := s.Fetch(ctx, 1); len(more) > 0 {
		t.Errorf("%s came twice", more[0].Event.Key)
	}
}

func TestCaseB05AConnectionCutAfterTheWriteIsNotSent(t *testing.T) {
	var b *Broker
	cfg := config(shared(t))
	cut := true
	cfg.Probe = func(point string) {
		if point == "broker.sent" && cut {
			cut = false
			b.publish.mu.Lock()
			defer b.publish.mu.Unlock()
			_ = b.publish.raw.Close()
		}
	}
	b = open(t, cfg)
	s := subscribe(t, b, "payment")
	events := []convergo.Event{paid("A", 1), paid("A", 2)}
	for i, err := range b.Publish(t.Context(), events) {
		if err == nil || convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("event %d: error %v with verdict %s, want an outage", i, err, convergo.VerdictOf(err))
		}
	}
	// The connection comes back by itself.
	deadline := time.Now().Add(20 * time.Second)
	for err := b.Publish(t.Context(), events)[1]; err != nil; err = b.Publish(t.Context(), events)[1] {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	seen := map[int64]bool{}
	for len(seen) < 2 {
		d := fetch(t, s, 1)[0]
		seen[d.Event.Version] = true
		must(t, d.Ack(t.Context()))
	}
}

func TestUnroutableHoldsBackItsAggregateOnly(t *testing.T) {
	b := open(t, config(shared(t)))
	s := subscribe(t, b, "payment")
	lost := paid("A", 1)
	lost.Type = "OrderForgotten"
	errs := b.Publish(t.Context(), []convergo.Event{lost, paid("B", 1), paid("A", 2), paid("B", 2)})
	if errs[0] == nil || errs[1] != nil || errs[2] == nil || errs[3] != nil {
		t.Fatalf("errors %v", errs)
	}
	for _, d := range fetch(t, s, 2) {
		if d.Event.Aggregate.ID != "B" {
			t.Errorf("%s was sent after an earlier event of its aggregate failed", d.Event.Key)
		}
	}
}

// A program in another language declares the exchange as we do and binds a queue of its own, before anybody publishes.
func TestAQueueOfAnotherProgramGetsTheTypesThatItIsBoundTo(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	b := open(t, cfg)
	conn, err := amqp.Dial("amqp://" + r.User + ":" + r.Password + "@" + r.Addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.ExchangeDeclare(cfg.Prefix+"order", "topic", true, false, false, false, nil))
	q, err := ch.QueueDeclare(cfg.Prefix+"warehouse", true, false, false, false, nil)
	must(t, err)
	must(t, ch.QueueBind(q.Name, "OrderPaid.*", cfg.Prefix+"order", false, nil))
	deliveries, err := ch.Consume(q.Name, "", true, false, false, false, nil)
	must(t, err)

	event := paid("A-1", 3)
	event.Headers = map[string]string{"traceparent": "00-ab-cd-01"}
	publish(t, b, event)
	other := paid("A-2", 1)
	other.Type = "OrderShipped"
	if err := b.Publish(t.Context(), []convergo.Event{other})[0]; err == nil || !strings.Contains(err.Error(), "unroutable") {
		t.Errorf("no queue is bound for OrderShipped: %v", err)
	}
	select {
	case d := <-deliveries:
		key := fmt.Sprint("OrderPaid.", int(event.Aggregate.Lane())%8)
		if d.RoutingKey != key || d.MessageId != string(event.Key) || d.Type != "OrderPaid" || string(d.Body) != "{}" {
			t.Errorf("routing key %q, want %q; message id %q, type %q, body %q", d.RoutingKey, key, d.MessageId, d.Type, d.Body)
		}
		for name, want := range event.Wire() {
			if d.Headers[name] != want {
				t.Errorf("header %s is %v, want %q", name, d.Headers[name], want)
			}
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
}

func TestAnUnclaimedSubjectNeedsNoConsumer(t *testing.T) {
	cfg := config(shared(t))
	cfg.Unclaimed = []convergo.Subject{{Topic: "order"}}
	b := open(t, cfg)
	publish(t, b, paid("A", 1), paid("B", 1))
	warnings, err := b.Check(t.Context())
	must(t, err)
	if len(warnings) != 1 || !strings.Contains(warnings[0].String(), "order.*") {
		t.Errorf("warnings %v", warnings)
	}
}

// takesLess has the server take 100,000 bytes at most while a test runs.
func takesLess(t *testing.T, r *testserver.RabbitMQ) {
	t.Helper()
	limit := func(bytes int) {
		_, err := r.Control("eval", fmt.Sprintf("application:set_env(rabbit, max_message_size, %d).", bytes))
		must(t, err)
	}
	limit(100_000)
	t.Cleanup(func() { limit(134_217_728) })
}

func TestCaseB07TheServersOwnSizeLimitRefusesOneEventAndItsNeighborsGoThrough(t *testing.T) {
	r := shared(t)
	takesLess(t, r)
	b := open(t, config(r))
	s := subscribe(t, b, "payment")
	large := paid("m-2", 1)
	large.Payload = make([]byte, 120_000)
	errs := b.Publish(t.Context(), []convergo.Event{paid("m-1", 1), large, paid("m-3", 1), paid("m-2", 2)})
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the neighbors failed too: %v, %v", errs[0], errs[2])
	}
	if convergo.VerdictOf(errs[1]) != convergo.Park || !strings.Contains(errs[1].Error(), "120000 > 100000") {
		t.Errorf("error %v, want a permanent one with both sizes", errs[1])
	}
	if errs[3] == nil || convergo.VerdictOf(errs[3]) == convergo.Park {
		t.Errorf("the later event of its aggregate: %v", errs[3])
	}
	seen := map[convergo.Key]bool{}
	for len(seen) < 2 {
		seen[fetch(t, s, 1)[0].Event.Key] = true
	}
}

// The server may have closed the channel over the large one before its neighbors are given to it.
func TestWhatTheChannelRefusesAfterALargeEventIsSentOnAnotherOne(t *testing.T) {
	r := shared(t)
	takesLess(t, r)
	var o *outlet
	sent := 0
	cfg := config(r)
	cfg.Probe = func(point string) {
		if point != "broker.sent" || o == nil {
			return
		}
		if sent++; sent == 1 { // the large one
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for !o.ch.IsClosed() {
				<-tick.C
			}
		}
	}
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("m-0", 1))
	b.mu.Lock()
	o = b.idle[len(b.idle)-1]
	b.mu.Unlock()
	large := paid("m-1", 1)
	large.Payload = make([]byte, 120_000)
	errs := b.Publish(t.Context(), []convergo.Event{large, paid("m-2", 1), paid("m-3", 1), paid("m-1", 2)})
	if convergo.VerdictOf(errs[0]) != convergo.Park || errs[1] != nil || errs[2] != nil || errs[3] == nil {
		t.Errorf("answers: %v", errs)
	}
	seen := map[convergo.Key]bool{}
	for len(seen) < 3 {
		seen[fetch(t, s, 1)[0].Event.Key] = true
	}
}

func TestAFullQueueIsAnOutageAndNoEventsFault(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	cfg.Classic = true
	b := open(t, cfg)
	subscribe(t, b, "payment")
	queues := "^" + strings.ReplaceAll(cfg.Prefix, ".", `\.`) + "payment"
	_, err := r.Control("set_policy", "full", queues, `{"max-length":0,"overflow":"reject-publish"}`)
	must(t, err)
	t.Cleanup(func() {
		_, err := r.Control("clear_policy", "full")
		must(t, err)
	})
	var got error
	deadline := time.Now().Add(20 * time.Second)
	// A policy takes effect a moment later, and a message that is with the reader takes no room.
	for v := int64(1); got == nil && time.Now().Before(deadline); v++ {
		got = b.Publish(t.Context(), []convergo.Event{paid("A", v)})[0]
	}
	if convergo.VerdictOf(got) != convergo.Outage || !strings.Contains(fmt.Sprint(got), "refused") {
		t.Errorf("error %v with verdict %s, want an outage", got, convergo.VerdictOf(got))
	}
}

func TestAnAlarmOfTheServerPausesPublishingAndNotAcknowledging(t *testing.T) {
	r := shared(t)
	b := open(t, config(r))
	s := subscribe(t, b, "payment")
	publish(t, b, paid("A", 1))
	set := func(fraction string) {
		_, err := r.Control("set_vm_memory_high_watermark", fraction)
		must(t, err)
	}
	set("0.00001")
	t.Cleanup(func() { set("0.4") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	deadline := time.Now().Add(20 * time.Second)
	err := b.Publish(ctx, []convergo.Event{paid("A", 2)})[0]
	for v := int64(3); time.Now().Before(deadline) && (err == nil || !strings.Contains(err.Error(), "takes no publishes")); v++ {
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err = b.Publish(short, []convergo.Event{paid("A", v)})[0]
		cancel()
	}
	if convergo.VerdictOf(err) != convergo.Outage || !strings.Contains(err.Error(), "takes no publishes") {
		t.Fatalf("error %v, want the server's alarm", err)
	}
	warnings, err := b.Check(t.Context())
	must(t, err)
	if len(warnings) != 1 || !strings.Contains(warnings[0].Setting, "alarm") {
		t.Errorf("warnings %v", warnings)
	}
	must(t, fetch(t, s, 1)[0].Ack(t.Context()))
	set("0.4")
	again := b.Publish(t.Context(), []convergo.Event{paid("B", 1)})[0]
	for ; again != nil && time.Now().Before(deadline); again = b.Publish(t.Context(), []convergo.Event{paid("B", 1)})[0] {
	}
	must(t, again)
}

func TestAnotherNumberOfPartitionsIsRefusedWithTheRemedy(t *testing.T) {
	cfg := config(shared(t))
	open(t, cfg)
	cfg.Partitions = 4
	_, err := Open(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "partitions (Config.Partitions) is 4") || !strings.Contains(err.Error(), "'8'") {
		t.Errorf("error %v, want one that names both numbers", err)
	}
}

func TestAQueueOfAnotherTypeIsRefusedWithTheRemedy(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	b := open(t, cfg)
	ch := channel(t, r)
	_, err := ch.QueueDeclare(b.queue("payment", 3), true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	must(t, err)
	_, err = b.Subscribe(t.Context(), "payment", orders)
	if err == nil || !strings.Contains(err.Error(), "delete it") || convergo.VerdictOf(err) == convergo.Outage {
		t.Errorf("error %v", err)
	}
}

func TestAWrongPasswordIsToldWithoutIt(t *testing.T) {
	cfg := config(shared(t))
	cfg.Password = "a-very-wrong-secret"
	_, err := Open(t.Context(), cfg)
	if err == nil || strings.Contains(err.Error(), cfg.Password) {
		t.Errorf("error %v", err)
	}
}

func TestTLSAndAnotherVirtualHostAndUser(t *testing.T) {
	r := shared(t)
	for _, command := range [][]string{
		{"add_vhost", "shop"}, {"add_user", "ann", "her-secret"},
		{"set_permissions", "-p", "shop", "ann", "^convergo\\.", "^(convergo\\.|amq\\.default)", "^convergo\\."},
	} {
		_, err := r.Control(command...)
		must(t, err)
	}
	cfg := Config{Addrs: []string{r.TLSAddr}, VHost: "shop", User: "ann", Password: "her-secret", TLS: &tls.Config{RootCAs: r.Roots}}
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("A", 1))
	must(t, fetch(t, s, 1)[0].Ack(t.Context()))
	cfg.TLS = &tls.Config{}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
}

func BenchmarkPublish(b *testing.B) {
	broker := open(b, config(shared(b)))
	source, err := broker.Subscribe(b.Context(), "payment", orders)
	must(b, err)
	go func() {
		for b.Context().Err() == nil {
			got, _ := source.Fetch(b.Context(), 256)
			for _, d := range got {
				_ = d.Ack(b.Context())
			}
		}
	}()
	for b.Loop() {
		var events []convergo.Event
		for i := range 512 {
			events = append(events, paid(fmt.Sprint("O-", i), 1))
		}
		for _, err := range broker.Publish(b.Context(), events) {
			must(b, err)
		}
	}
	b.ReportMetric(float64(b.N)*512/b.Elapsed().Seconds(), "events/s")
}
