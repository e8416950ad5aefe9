package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Missing tells which exchanges and queues of the topics and consumers are not there yet and would be made, and makes none: it is what
// a Broker with Config.LookOnly is for. The error says what is there and does not fit, such as another number of partitions, with the
// remedy. What is there is declared once more as it should be, which changes nothing. Whether the account may make what is
// missing cannot be seen by AMQP without making it.
func (b *Broker) Missing(ctx context.Context, topics, consumers []string) (missing []string, err error) {
	conn, err := b.consume.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	var wrong []error
	there := func(what string, err error) bool {
		switch {
		case err == nil:
			return true
		case refused(err, amqp.NotFound):
			missing = append(missing, what)
		default:
			wrong = append(wrong, fmt.Errorf("rabbitmq: %s: %w", what, outage(err)))
		}
		return false
	}
	marker := b.cfg.Prefix + partitionsQueue
	if there("queue "+marker, isQueue(conn, marker)) {
		wrong = append(wrong, ask(conn, b.declareMarker))
	}
	for _, topic := range topics {
		there("exchange "+b.exchange(topic), ask(conn, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(b.exchange(topic), amqp.ExchangeTopic, true, false, false, false, nil)
		}))
	}
	for _, consumer := range consumers {
		before := len(missing)
		for p := range b.cfg.Partitions {
			name := b.queue(consumer, p)
			if !there("queue "+name, isQueue(conn, name)) {
				continue
			}
			if w, bad, err := b.checkQueue(conn, name); err != nil {
				wrong = append(wrong, err)
			} else if bad {
				wrong = append(wrong, errors.New("rabbitmq: "+w.String()))
			}
		}
		if last := b.cfg.Partitions - 1; last > 0 && len(missing) == before+b.cfg.Partitions { // a page of names is read by nobody
			missing = append(missing[:before], fmt.Sprintf("queues %s to %d", b.queue(consumer, 0), last))
		}
	}
	return missing, errors.Join(wrong...)
}

// isQueue is nil when the queue is there, whatever its settings.
func isQueue(conn *amqp.Connection, name string) error {
	return ask(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
}

var errLookOnly = errors.New("the broker was opened only to look at (Config.LookOnly): it neither publishes nor subscribes")
