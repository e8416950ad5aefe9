package rabbitmq

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// join makes this instance one of the consumer's members: the readers of a queue that is never written to. The server
// counts them, and stops counting one whose connection is gone. It is durable because newer servers want no other kind that
// several connections share; it goes with its last reader.
func (s *subscription) join(conn *amqp.Connection) (*amqp.Channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	name := s.broker.beside(s.consumer, membersQueue)
	if _, err := ch.QueueDeclare(name, true, true, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}); err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	if _, err := ch.Consume(name, "", true, false, false, false, nil); err != nil {
		return nil, fmt.Errorf("read queue %s: %w", name, err)
	}
	return ch, nil
}

// rebalance gives partitions up when this instance has more than its share. The server activates the reader that has waited
// longest, and we go to the end of that line; one that gets too many in this way gives them up in turn, so that after a few
// looks everybody has a share. A partition in which nothing arrives is nobody's load: whoever has it is not asked.
func (s *subscription) rebalance(members *amqp.Channel) error {
	q, err := members.QueueDeclarePassive(s.broker.beside(s.consumer, membersQueue), true, true, false, false, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	share := len(s.partitions)
	if q.Consumers > 1 {
		share = (share + q.Consumers - 1) / q.Consumers
	}
	mine := 0
	for _, p := range s.partitions {
		if p.active && !p.leaving {
			mine++
		}
	}
	given := 0
	for i := len(s.partitions) - 1; i >= 0 && mine > share; i-- {
		if p := s.partitions[i]; p.active && !p.leaving {
			p.leaving = true
			mine--
			given++
		}
	}
	if given > 0 {
		s.broker.cfg.Log.Info("partitions go to other instances", "consumer", s.consumer, "partitions", given, "instances", q.Consumers)
	}
	return nil
}
