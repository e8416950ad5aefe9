package rabbitmq

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// membership is this instance's place among the consumer's members: the readers of a queue that is never written to. The server
// counts them, and stops counting one whose connection is gone. The queue is durable because newer servers want no other kind that
// several connections share; it goes with its last reader.
//
// It is there to share the partitions out, and for nothing else. In a cluster it is on one node: while that is away this instance is no
// member, and reads what the server gives it.
type membership struct {
	*subscription
	conn *amqp.Connection
	ch   *amqp.Channel // nil while it is none
}

// join makes this instance a member if it is none. That the queue cannot be reached now is no error.
func (m *membership) join() error {
	if m.ch != nil {
		return nil
	}
	ch, err := m.conn.Channel()
	if err != nil {
		return err
	}
	name := m.broker.beside(m.consumer, membersQueue)
	_, err = ch.QueueDeclare(name, true, true, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
	if err == nil {
		_, err = ch.Consume(name, "", true, false, false, false, nil)
	}
	if err != nil {
		discard(ch)
		return m.without(fmt.Errorf("queue %s: %w", name, err))
	}
	m.ch = ch
	if failures, within, worth := m.joining.Worked(time.Now()); worth {
		m.broker.cfg.Log.Info("partitions are shared out again", "consumer", m.consumer, "failures", failures, "after", within.Round(time.Millisecond))
	}
	return nil
}

// without goes on without a place when err is the server's word that the queue cannot be reached; every other error stays one.
func (m *membership) without(err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.NotFound {
		return err
	}
	m.ch = nil // the server has closed it
	if failures, within, worth := m.joining.Failed(time.Now()); worth {
		m.broker.cfg.Log.Warn("partitions are not shared out, and whoever has one keeps it: is a node of the cluster away?", "consumer", m.consumer,
			"failures", failures, "for", within.Round(time.Millisecond), "error", err)
	}
	return nil
}

// end gives the place up.
func (m *membership) end() {
	if m.ch != nil {
		discard(m.ch)
	}
}

// rebalance gives partitions up when this instance has more than its share. The server activates the reader that has waited
// longest, and we go to the end of that line; one that gets too many in this way gives them up in turn, so that after a few
// looks everybody has a share. A partition in which nothing arrives is nobody's load: whoever has it is not asked.
func (m *membership) rebalance() error {
	if err := m.join(); err != nil || m.ch == nil {
		return err
	}
	name := m.broker.beside(m.consumer, membersQueue)
	q, err := m.ch.QueueDeclarePassive(name, true, true, false, false, nil)
	if err != nil {
		return m.without(fmt.Errorf("queue %s: %w", name, err))
	}
	m.share(q.Consumers)
	return nil
}

// share gives up what is more than an equal part among so many instances.
func (s *subscription) share(instances int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := len(s.partitions)
	if instances > 1 {
		share = (share + instances - 1) / instances
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
		s.broker.cfg.Log.Info("partitions go to other instances", "consumer", s.consumer, "partitions", given, "instances", instances)
	}
}
