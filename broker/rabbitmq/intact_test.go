package rabbitmq

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

// insist publishes until the event is confirmed.
func insist(t *testing.T, b *Broker, e convergo.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := b.Publish(ctx, []convergo.Event{e})[0]
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// Three processes: one publishes, and two consumers find their way back to the server at different times.
func TestAnEventThatIsPublishedAfterALossReachesTheConsumerThatComesBackLast(t *testing.T) {
	r := testserver.Own(t, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
	var log testlog.Lines
	cfg := config(r)
	late := cfg
	late.Reconnect = convergo.Backoff{Base: 2 * time.Second, Cap: 2 * time.Second}
	cfg.Log, cfg.Timeout = slog.New(slog.NewTextHandler(&log, nil)), 8*time.Second
	publisher := open(t, cfg)
	first, last := subscribe(t, open(t, cfg), "first"), subscribe(t, open(t, late), "last")
	publish(t, publisher, paid("O-1", 1))
	for _, d := range append(fetch(t, first, 1), fetch(t, last, 1)...) {
		must(t, d.Ack(t.Context()))
	}
	must(t, r.Empty())
	insist(t, publisher, paid("O-1", 2))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for name, s := range map[string]inbox.Source{"first": first, "last": last} {
		var got []inbox.Delivery
		for len(got) == 0 {
			var err error
			if got, err = s.Fetch(ctx, 1); ctx.Err() != nil {
				t.Fatalf("%s has got nothing: %v", name, err)
			}
		}
		if v := got[0].Event.Version; v != 2 {
			t.Errorf("%s has got version %d", name, v)
		}
	}
	if !strings.Contains(log.String(), "rabbitmq has lost its data") || !strings.Contains(log.String(), "convergo replay --since") {
		t.Error("the log does not tell of the loss and its remedy")
	}
}

// A connection that breaks is no loss: nothing is held back.
func TestAServerThatWasRestartedIsIntact(t *testing.T) {
	r := testserver.Own(t, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
	var log testlog.Lines
	cfg := config(r)
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	publish(t, b, paid("O-1", 1))
	must(t, r.Restart())
	insist(t, b, paid("O-1", 2))
	if strings.Contains(log.String(), "lost its data") {
		t.Error("a restart is taken for a loss")
	}
	for seen := int64(0); seen < 2; {
		got, err := s.Fetch(t.Context(), 1)
		if err != nil {
			continue
		}
		for _, d := range got {
			seen = max(seen, d.Event.Version)
			_ = d.Ack(t.Context()) // one that fails comes again
		}
	}
}

// The new witness is made, and then something goes wrong: the next look finds it, and must not forget that the one of before was gone.
func TestALossIsRememberedWhateverFailsWhileItIsSeen(t *testing.T) {
	r := shared(t)
	may := func(read string) {
		_, err := r.Control("set_permissions", "writer", ".*", ".*", read)
		must(t, err)
	}
	_, err := r.Control("add_user", "writer", "her-secret")
	must(t, err)
	may(".*")
	cfg := config(r)
	cfg.User, cfg.Password, cfg.Timeout = "writer", "her-secret", time.Minute
	b := open(t, cfg)
	subscribe(t, b, "payment")
	publish(t, b, paid("O-1", 1))
	_, err = channel(t, r).QueueDelete(b.witness.name, false, false, false)
	must(t, err)
	may("^((?!witness).)*$") // so that it cannot be read
	b.publish.mu.Lock()
	_ = b.publish.raw.Close()
	b.publish.mu.Unlock()
	refusal := func(says string) {
		t.Helper()
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for deadline := time.Now().Add(20 * time.Second); ; <-again.C {
			err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 2)})[0]
			switch {
			case err == nil:
				t.Fatal("it was published")
			case strings.Contains(err.Error(), says):
				return
			case time.Now().After(deadline):
				t.Fatal(err)
			}
		}
	}
	refusal("ACCESS_REFUSED")
	may(".*")
	refusal("nothing is published for another")
}

// Others use another number of partitions since the loss: that is no event's fault, and spends no attempts.
func TestWhatKeepsTheQueuesFromBeingMadeAgainIsAnOutage(t *testing.T) {
	r := shared(t)
	b := open(t, config(r))
	subscribe(t, b, "payment")
	publish(t, b, paid("O-1", 1))
	ch := channel(t, r)
	for _, name := range []string{b.witness.name, b.cfg.Prefix + partitionsQueue} {
		_, err := ch.QueueDelete(name, false, false, false)
		must(t, err)
	}
	other := Broker{cfg: b.cfg}
	other.cfg.Partitions = 4
	must(t, other.declareMarker(ch))
	b.publish.mu.Lock()
	_ = b.publish.raw.Close()
	b.publish.mu.Unlock()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-again.C {
		err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 2)})[0]
		if convergo.VerdictOf(err) != convergo.Outage || time.Now().After(deadline) {
			t.Fatalf("%s: %v", convergo.VerdictOf(err), err)
		}
		if strings.Contains(err.Error(), "another number") {
			return
		}
	}
}

// A publish that its relay has given up may still wait for a server that does not answer.
func TestCloseWaitsForNobodyWhoLooksForTheWitness(t *testing.T) {
	cfg := config(shared(t))
	cfg.Timeout = 2 * time.Second
	b := open(t, cfg)
	<-b.witness.turn // and never again
	closed := make(chan struct{})
	go func() { b.Close(); close(closed) }()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case <-closed:
	case <-patience.C:
		t.Error("it does not end")
		b.witness.turn <- struct{}{}
	}
}

// The words are those of RabbitMQ 3.10. Not only a publisher looks: a subscription told of lost data while a node was away.
func TestAQueueThatTheServerCannotReachIsNotGone(t *testing.T) {
	for reason, want := range map[string]bool{
		"NOT_FOUND - no queue 'convergo.payment.0' in vhost '/'":                                                     true,
		"NOT_FOUND - home node 'rabbit@two' of durable queue 'convergo.down.0' in vhost '/' is down or inaccessible": false,
		"NOT_FOUND - queue 'convergo.payment.0' in vhost '/' has crashed and failed to restart":                      false,
		"NOT_FOUND - queue 'convergo.payment.0' in vhost '/' process is stopped by supervisor":                       false,
		"NOT_FOUND - failed to perform operation on queue 'convergo.payment.0' in vhost '/' due to timeout":          false,
		"NOT_FOUND - no exchange 'convergo.order' in vhost '/'":                                                      true,
		"NOT_FOUND - no queue 'convergo.down.0' in vhost '/'":                                                        true,
	} {
		err := fmt.Errorf("read queue: %w", &amqp.Error{Code: amqp.NotFound, Reason: reason})
		if gone(err) != want {
			t.Errorf("%v: gone: %t", err, !want)
		}
	}
	if gone(&amqp.Error{Code: amqp.AccessRefused}) || gone(nil) {
		t.Error("another refusal says that something is gone")
	}
}
