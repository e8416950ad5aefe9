package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

// A server that comes back without its data takes an event as soon as one queue is bound for it, and confirms it, though the queues of
// other consumers are not made again yet: they would never get it. So every publisher finds out by itself whether the server is still
// the one that it knew, and holds everything back for a while when it is not.
//
// It knows it by its witness, a queue that nobody else declares. Each process has one of its own: one for all would be there again as
// soon as the first process had made it, and the others would see nothing.
type witness struct {
	turn chan struct{} // holds one token: whoever has it may look at and change what is below
	name string        // of the queue; "" before the first connection
	seen *amqp.Connection
	// bare: the server had lost its data, and this process's subscriptions are not all made again yet.
	bare  bool
	until time.Time // nothing is published before
}

// forgotten is how long the queue of a process that died, or is cut off, stays.
const forgotten = time.Hour

// intact is nil when what is published on the connection can reach every consumer that this process knows, and had time to reach the
// others'. It asks the server once per connection.
func (b *Broker) intact(ctx context.Context, conn *amqp.Connection) error {
	w := &b.witness
	select {
	case <-w.turn:
		defer func() { w.turn <- struct{}{} }()
	case <-ctx.Done():
		return convergo.Unreachable(ctx.Err())
	}
	if w.seen != conn {
		lost, err := b.testify(conn)
		if lost { // whatever failed since: the next look may find the new witness
			w.bare, w.until = true, time.Now().Add(b.cfg.Timeout)
			b.cfg.Log.Warn("rabbitmq has lost its data: the queues are made again, and nothing is published until all processes had time for "+
				"that; `convergo replay --since` refills them from the outbox when all consumers run", "wait", b.cfg.Timeout)
		}
		if err != nil {
			return outage(fmt.Errorf("queue %s: %w", w.name, err))
		}
		w.seen = conn
	}
	if w.bare {
		if err := b.restore(ctx, conn); err != nil { // no event's fault, whatever it is
			return outage(fmt.Errorf("rabbitmq has lost its data, and its queues cannot be made again: %w", err))
		}
		w.bare = false
	}
	if left := time.Until(w.until); left > 0 {
		return outage(fmt.Errorf("rabbitmq has lost its data: nothing is published for another %v, until all consumers have made their queues again",
			left.Round(time.Second/10)))
	}
	return nil
}

// testify tells whether the witness is gone, and makes sure that there is one as long as the connection lives.
func (b *Broker) testify(conn *amqp.Connection) (lost bool, err error) {
	w := &b.witness
	if w.name != "" {
		err := isQueue(conn, w.name)
		switch {
		case gone(err):
			lost = true
		case refused(err, amqp.NotFound): // its node is away, or it alone has trouble; nothing is known of the others
			w.name = ""
		case err != nil:
			return false, err
		}
	}
	if w.name == "" {
		w.name = b.cfg.Prefix + "witness." + rand.Text()
	}
	ch, err := conn.Channel()
	if err != nil {
		return false, err
	}
	_, err = ch.QueueDeclare(w.name, true, false, false, false, amqp.Table{
		amqp.QueueTypeArg: amqp.QueueTypeClassic, amqp.QueueTTLArg: forgotten.Milliseconds(),
	})
	if err == nil { // a queue that is read does not expire
		_, err = ch.Consume(w.name, "", true, false, false, false, nil)
	}
	if err != nil {
		discard(ch)
	}
	return lost, err
}

// restore makes again what this process has declared. What belongs to others they make themselves.
func (b *Broker) restore(ctx context.Context, conn *amqp.Connection) error {
	b.forgetExchanges()
	if err := ask(conn, b.declareMarker); err != nil {
		return err
	}
	b.mu.Lock()
	names := map[string][]string{}
	for consumer, s := range b.subscriptions {
		s.mu.Lock()
		names[consumer] = s.names
		s.mu.Unlock()
	}
	b.mu.Unlock()
	for consumer, subjects := range names {
		if err := b.establish(ctx, consumer, subjects); err != nil {
			return fmt.Errorf("of %s: %w", consumer, err)
		}
	}
	return nil
}

// withdraw takes the witness away.
func (b *Broker) withdraw() {
	w := &b.witness
	patience := time.NewTimer(b.cfg.Timeout)
	defer patience.Stop()
	select {
	case <-w.turn:
		defer func() { w.turn <- struct{}{} }()
	case <-patience.C: // somebody still waits for the server; the queue goes by itself
		return
	}
	if w.seen == nil || w.seen.IsClosed() {
		return
	}
	conn, name := w.seen, w.name
	gone := make(chan error, 1)
	go func() {
		gone <- ask(conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		})
	}()
	err := errors.New("no answer in time")
	select {
	case err = <-gone:
	case <-patience.C:
	}
	if err != nil {
		b.cfg.Log.Debug("rabbitmq: a queue stays for a while", "queue", name, "for", forgotten, "error", err)
	}
}
