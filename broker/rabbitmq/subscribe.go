package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Subscribe declares the consumer's queues, binds them to the subjects, and begins to read. What any instance has bound before stays
// bound: it may be one of a newer version that is away for a moment. A new consumer gets what is published from now on. To unbind a
// subject for good stop the consumer's instances, purge the queue that is named like the consumer with ".subjects", and delete the
// bindings.
//
// The sources of one consumer in one Broker share its deliveries; so do the instances in several processes. A partition is read
// by one of them at a time, so that each aggregate's events come in order. The source implements io.Closer.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	if b.cfg.LookOnly {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, errLookOnly)
	}
	names, err := namesOf(subjects)
	if err == nil {
		err = b.validateConsumer(consumer)
	}
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: subscribe %s: %w", consumer, err)
	}
	if err := b.establish(ctx, consumer, names); err != nil {
		return nil, fmt.Errorf("rabbitmq: subscribe %s: %w", consumer, err)
	}
	src := b.reader(consumer, names)
	if err := src.sub.started(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("rabbitmq: subscribe %s: %w", consumer, outage(err)), src.Close())
	}
	return src, nil
}

// reader adds a source to the consumer's subscription, which it begins if need be.
func (b *Broker) reader(consumer string, names []string) *source {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subscriptions[consumer]
	if s == nil {
		s = newSubscription(b, consumer, names)
		b.subscriptions[consumer] = s
	}
	return s.source(names)
}

// started waits until every queue has answered to its reader. A new quorum queue answers when its first log entry is on disk;
// one whose server was killed before that never has a leader again (RabbitMQ 3.10: an empty log starts no election).
func (s *subscription) started(ctx context.Context) error {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

func (b *Broker) validateConsumer(consumer string) error {
	const most = 255 - 50 - 10 // a queue's name, the prefix, the longest ending
	if err := convergo.Key(consumer).Validate(); err != nil {
		return fmt.Errorf("the consumer's name %w", err)
	}
	if n := len(consumer); n > most {
		return fmt.Errorf("the consumer's name is too long: %d > %d bytes", n, most)
	}
	return nil
}

// namesOf is the subjects as text, sorted, none within another.
func namesOf(subjects []convergo.Subject) ([]string, error) {
	if len(subjects) == 0 {
		return nil, errors.New("no subjects: a consumer needs at least one")
	}
	whole := map[string]bool{}
	for _, s := range subjects {
		if err := s.Validate(); err != nil {
			return nil, err
		}
		whole[s.Topic] = whole[s.Topic] || s.Type == ""
	}
	var names []string
	for _, s := range subjects {
		if whole[s.Topic] {
			s.Type = ""
		}
		names = append(names, s.String())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// establish makes the server's side what the subscription needs. One program at a time does it for a consumer. What it is about to
// bind is written down before, so that whoever makes a lost queue again binds all that any instance has asked for.
func (b *Broker) establish(ctx context.Context, consumer string, names []string) error {
	select {
	case <-b.subscribing:
		defer func() { b.subscribing <- struct{}{} }()
	case <-ctx.Done():
		return convergo.Unreachable(ctx.Err())
	}
	conn, err := b.consume.get(ctx)
	if err != nil {
		return err
	}
	unlock, err := b.lock(ctx, conn, consumer)
	if err != nil {
		return err
	}
	defer unlock()
	notes := b.beside(consumer, subjectsQueue)
	if err := b.declareQueues(conn, consumer, notes); err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return outage(err)
	}
	defer func() { _ = closeQuietly(ch) }() // before the lock is given up
	if err := ch.Confirm(false); err != nil {
		return outage(err)
	}
	if err := b.declareMarker(ch); err != nil {
		return err
	}
	bound, last, err := readNotes(ch, notes)
	if err != nil {
		return outage(err)
	}
	return b.rebind(ctx, ch, consumer, names, bound, last)
}

// declareQueues declares what holds the consumer's events and notes.
func (b *Broker) declareQueues(conn *amqp.Connection, consumer, notes string) error {
	anyFresh, err := b.declareQueue(conn, notes, false)
	if err != nil {
		return err
	}
	for p := range b.cfg.Partitions {
		fresh, err := b.declareQueue(conn, b.queue(consumer, p), true)
		if err != nil {
			return err
		}
		anyFresh = anyFresh || fresh
	}
	if anyFresh && !b.cfg.Classic {
		return b.anchor(conn, consumer)
	}
	return nil
}

// rebind binds names and what is in bound, and writes them down. last is the tag of the newest note, 0 when there is none.
func (b *Broker) rebind(ctx context.Context, ch *amqp.Channel, consumer string, names, bound []string, last uint64) error {
	all := slices.Concat(names, bound)
	slices.Sort(all)
	all = slices.Compact(all)
	if err := note(ctx, ch, b.beside(consumer, subjectsQueue), all); err != nil {
		return outage(err)
	}
	if last > 0 {
		if err := ch.Ack(last, true); err != nil {
			return outage(err)
		}
	}
	for _, name := range all {
		topic, _ := b.binding(name, 0)
		if err := b.declareExchange(ch, topic[len(b.cfg.Prefix):]); err != nil {
			return err
		}
	}
	for p := range b.cfg.Partitions {
		queue := b.queue(consumer, p)
		for _, name := range all {
			exchange, key := b.binding(name, p)
			if err := ch.QueueBind(queue, key, exchange, false, nil); err != nil {
				return outage(fmt.Errorf("bind queue %s to %s: %w", queue, name, err))
			}
		}
	}
	return nil
}

// readNotes takes all notes of a consumer: what may be bound is what any of them says.
func readNotes(ch *amqp.Channel, queue string) (bound []string, last uint64, err error) {
	for {
		d, ok, err := ch.Get(queue, false)
		if err != nil {
			return nil, 0, fmt.Errorf("read queue %s: %w", queue, err)
		}
		if !ok {
			return bound, last, nil
		}
		last = d.DeliveryTag
		var names []string
		if err := json.Unmarshal(d.Body, &names); err != nil {
			return nil, 0, fmt.Errorf("queue %s holds a message that is not ours: purge the queue: %w", queue, err)
		}
		bound = append(bound, names...)
	}
}

// note writes down what may be bound.
func note(ctx context.Context, ch *amqp.Channel, queue string, names []string) error {
	text, err := json.Marshal(names)
	if err != nil {
		return err
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{
		ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: text,
	})
	if err != nil {
		return err
	}
	stored, err := confirm.WaitContext(ctx)
	if err == nil && !stored {
		err = fmt.Errorf("queue %s did not take a note", queue)
	}
	return err
}

// lock makes the caller the only one, on all connections of the server, who changes the consumer's bindings. The lock is a queue that
// belongs to the connection: it goes with it.
func (b *Broker) lock(ctx context.Context, conn *amqp.Connection, consumer string) (unlock func(), err error) {
	name := b.beside(consumer, lockQueue)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		ch, err := conn.Channel()
		if err != nil {
			return nil, outage(err)
		}
		_, err = ch.QueueDeclare(name, false, false, true, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
		if err == nil {
			return func() {
				if _, err := ch.QueueDelete(name, false, false, false); err != nil {
					b.cfg.Log.Warn("the lock of a subscription goes only with the connection", "queue", name, "error", err)
				}
				discard(ch)
			}, nil
		}
		if !refused(err, amqp.ResourceLocked) {
			return nil, outage(fmt.Errorf("lock %s: %w", name, err))
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, outage(fmt.Errorf("lock %s: another program has it: %w", name, ctx.Err()))
		}
	}
}
