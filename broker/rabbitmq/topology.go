package rabbitmq

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func (b *Broker) exchange(topic string) string { return b.cfg.Prefix + topic }

func (b *Broker) queue(consumer string, partition int) string {
	return b.cfg.Prefix + consumer + "." + strconv.Itoa(partition)
}

// Names of a consumer's other queues, and the one of all.
const (
	subjectsQueue   = "subjects"
	membersQueue    = "members"
	lockQueue       = "lock"
	anchorQueue     = "anchor"
	partitionsQueue = "partitions"
)

func (b *Broker) beside(consumer, what string) string { return b.cfg.Prefix + consumer + "." + what }

func (b *Broker) partition(a convergo.Aggregate) int { return int(a.Lane()) % b.cfg.Partitions }

func (b *Broker) routingKey(e convergo.Event) string {
	return e.Type + "." + strconv.Itoa(b.partition(e.Aggregate))
}

// binding is the exchange and the key under which a partition gets a subject, given as its String.
func (b *Broker) binding(subject string, partition int) (exchange, key string) {
	topic, eventType, _ := strings.Cut(subject, ".")
	return b.exchange(topic), eventType + "." + strconv.Itoa(partition)
}

// declareMarker keeps the number of partitions where every program sees it: as a setting of a queue that holds nothing. The
// server compares it at each declaration, atomically.
func (b *Broker) declareMarker(ch *amqp.Channel) error {
	name := b.cfg.Prefix + partitionsQueue
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
		amqp.QueueTypeArg: amqp.QueueTypeClassic, amqp.QueueMaxLenArg: int64(b.cfg.Partitions),
	})
	switch {
	case err == nil:
		return nil
	case refused(err, amqp.PreconditionFailed):
		return fmt.Errorf("partitions (Config.Partitions) is %d and others with prefix %q use another number (received ours, current theirs: %w): "+
			"use theirs; or stop everything, let the consumers empty their queues, delete the queues whose names begin with the prefix, "+
			"and start with the new number",
			b.cfg.Partitions, b.cfg.Prefix, err)
	default:
		return outage(err)
	}
}

// ensureExchange declares the topic's exchange, once per connection.
func (b *Broker) ensureExchange(conn *amqp.Connection, topic string) error {
	b.mu.Lock()
	known := b.declared[topic] == conn
	b.mu.Unlock()
	if known {
		return nil
	}
	ch, err := conn.Channel()
	if err != nil {
		return outage(err)
	}
	defer discard(ch)
	if err := b.declareExchange(ch, topic); err != nil {
		return err
	}
	b.mu.Lock()
	b.declared[topic] = conn
	b.mu.Unlock()
	return nil
}

// forgetExchanges makes the next publishes declare theirs again.
func (b *Broker) forgetExchanges() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.declared)
}

func (b *Broker) declareExchange(ch *amqp.Channel, topic string) error {
	err := ch.ExchangeDeclare(b.exchange(topic), amqp.ExchangeTopic, true, false, false, false, nil)
	if refused(err, amqp.PreconditionFailed) {
		return fmt.Errorf("exchange %s exists with other settings: delete it, or use another prefix (Config.Prefix): %w", b.exchange(topic), err)
	}
	if err != nil {
		return outage(fmt.Errorf("exchange %s: %w", b.exchange(topic), err))
	}
	return nil
}

// queueArguments of a queue that must lose nothing. Versions from 4.0 drop a message after 20 deliveries unless told otherwise;
// older ones have no limit, and refuse to be told so.
func (b *Broker) queueArguments(conn *amqp.Connection) amqp.Table {
	if b.cfg.Classic {
		return amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}
	}
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	if b.cfg.Replicas > 0 {
		args["x-quorum-initial-group-size"] = int64(b.cfg.Replicas)
	}
	if major(conn) >= 4 {
		args[deliveryLimit] = int64(-1)
	}
	return args
}

const deliveryLimit = "x-delivery-limit"

// major is the server's version before the first point; 0 when it does not tell.
func major(conn *amqp.Connection) int {
	version, _ := conn.Properties["version"].(string)
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// declareQueue declares a durable queue and tells whether it is a new one. A queue of before an upgrade to 4.0 has no delivery
// limit of its own and cannot get one: then it is used as it is, and Check tells.
func (b *Broker) declareQueue(conn *amqp.Connection, name string, single bool) (fresh bool, err error) {
	args := b.queueArguments(conn)
	if single {
		args["x-single-active-consumer"] = true
	}
	err = ask(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	fresh = refused(err, amqp.NotFound)
	err = declare(conn, name, args)
	if _, limited := args[deliveryLimit]; limited && refused(err, amqp.PreconditionFailed) && strings.Contains(err.Error(), deliveryLimit) {
		delete(args, deliveryLimit)
		if err = declare(conn, name, args); err == nil {
			b.warn(relay.Warning{
				Setting: "delivery-limit of queue " + name, Value: "the server's default",
				Want:  "-1, which a queue has from its making: let it run empty, delete it and subscribe again",
				Loses: "an event whose consumers die 20 times while they have it",
			})
		}
	}
	switch {
	case err == nil:
		return fresh, nil
	case refused(err, amqp.PreconditionFailed):
		return false, fmt.Errorf("queue %s exists with other settings: let it run empty and delete it, "+
			"or set classic and replicas (Config.Classic, Config.Replicas) as it was made: %w", name, err)
	default:
		return false, outage(fmt.Errorf("queue %s: %w", name, err))
	}
}

// ask uses a channel of its own: a refusal closes it.
func ask(conn *amqp.Connection, what func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return errors.Join(what(ch), closeQuietly(ch))
}

func declare(conn *amqp.Connection, name string, args amqp.Table) error {
	return ask(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

// anchor makes the server write down the quorum queues that were just declared. RabbitMQ 3.10 writes the name of a new one to disk
// with the next change of its directory, or seconds later; killed before that, it does not know the queue's log any more, starts an
// empty one that never has a leader, and what was confirmed meanwhile is lost (seen). So there is a next change, at once.
func (b *Broker) anchor(conn *amqp.Connection, consumer string) error {
	name := b.beside(consumer, anchorQueue)
	if err := declare(conn, name, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		return outage(fmt.Errorf("queue %s: %w", name, err))
	}
	return outage(ask(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	}))
}

// closeQuietly closes a channel and waits for it. That it is closed already is no error.
func closeQuietly(ch *amqp.Channel) error {
	if err := ch.Close(); err != nil && !errors.Is(err, amqp.ErrClosed) {
		return err
	}
	return nil
}

func (b *Broker) warn(w relay.Warning) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.warnings[w.Setting] = w
}
