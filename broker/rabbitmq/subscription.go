package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

// subscription reads a consumer's queues for all sources of a Broker.
type subscription struct {
	broker   *Broker
	consumer string
	stop     context.CancelFunc
	ended    chan struct{}
	kick     chan struct{} // a partition wants to be looked at
	opened   chan struct{} // closed when the first session is over its beginnings, or has failed
	opening  sync.Once
	settle   chan struct{} // there is something to acknowledge to the server
	joining  convergo.FailureLog
	flushing sync.Mutex // acknowledgements of a channel are sent in the order in which they were chosen

	mu         sync.Mutex
	names      []string
	partitions []*partition
	sources    int
	changed    chan struct{} // closed and replaced whenever a Fetch that waits should look again
	failure    error         // why nothing comes; nil while connected and while a try to connect is on
	from       int           // the partition at which the next Fetch begins
}

func newSubscription(b *Broker, consumer string, names []string) *subscription {
	ctx, stop := context.WithCancel(context.Background())
	s := &subscription{
		broker: b, consumer: consumer, names: names, stop: stop, ended: make(chan struct{}), kick: make(chan struct{}, 1),
		settle: make(chan struct{}, 1), opened: make(chan struct{}), changed: make(chan struct{}),
	}
	for p := range b.cfg.Partitions {
		s.partitions = append(s.partitions, &partition{n: p})
	}
	go s.run(ctx)
	return s
}

// end gives up the queues: what is acknowledged is sent, what is not goes to another instance.
func (s *subscription) end() {
	s.stop()
	<-s.ended
}

// run reads until stop, on one connection after another.
func (s *subscription) run(ctx context.Context) {
	defer close(s.ended)
	bare := false // the queues are gone, or not all bound again yet
	for tries := 1; ; tries++ {
		began := time.Now()
		var err error
		if bare {
			err = s.again(ctx)
			bare = err != nil
		}
		if !bare {
			err = s.session(ctx)
		}
		if ctx.Err() != nil {
			s.fail(errClosed)
			return
		}
		if time.Since(began) > shortLived {
			tries = 1
		}
		s.fail(err)
		if gone(err) { // the server has lost its queues, or somebody deleted them
			bare = true
			s.broker.cfg.Log.Warn("the queues of a consumer are gone and are made again: rabbitmq has lost its data, or somebody deleted them; "+
				"`convergo replay --since` refills them from the outbox when all consumers run", "consumer", s.consumer)
		}
		pause := time.NewTimer(s.broker.cfg.Reconnect.Delay(tries))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// again does what Subscribe did.
func (s *subscription) again(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.broker.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	names := s.names
	s.mu.Unlock()
	return s.broker.establish(ctx, s.consumer, names)
}

// fail drops everything that came on the lost connection.
func (s *subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
	s.opening.Do(func() { close(s.opened) })
	for _, p := range s.partitions {
		p.forget()
	}
	s.wake()
}

// wake makes every waiting Fetch look again. The caller holds the lock.
func (s *subscription) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// session reads on one connection until it is lost, something is refused, or ctx ends.
func (s *subscription) session(ctx context.Context) error {
	conn, err := s.broker.consume.get(ctx)
	if err != nil {
		return err
	}
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	member := &membership{subscription: s, conn: conn}
	if err := member.join(); err != nil {
		return err
	}
	defer member.end()
	defer s.leave() // before that: those who stay must not count on us too long, nor too early
	for _, p := range s.partitions {
		if err := s.open(conn, p); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.failure = nil
	s.mu.Unlock()
	s.opening.Do(func() { close(s.opened) })
	acks := make(chan struct{})
	defer close(acks)
	go s.acknowledge(acks)
	look := time.NewTicker(s.broker.cfg.Rebalance)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-lost:
			if err == nil {
				return errors.New("the connection was closed")
			}
			return err
		case <-s.kick:
			err = s.tend(conn)
		case <-look.C:
			if err = member.rebalance(); err == nil {
				err = s.tend(conn)
			}
		}
		if err != nil {
			return err
		}
	}
}

// open begins to read a partition, as its active consumer or in waiting.
func (s *subscription) open(conn *amqp.Connection, p *partition) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(s.broker.cfg.Prefetch, 0, false); err != nil {
		return err
	}
	s.mu.Lock()
	p.forget()
	p.ch = ch
	s.mu.Unlock()
	queue := s.broker.queue(s.consumer, p.n)
	var arrivals <-chan amqp.Delivery
	err = s.broker.within(conn, "read queue "+queue, func() (err error) {
		arrivals, err = ch.Consume(queue, "", false, false, false, false, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("read queue %s: %w", queue, err)
	}
	go s.receive(p, ch, arrivals)
	return nil
}

// receive takes what the server delivers: never more than Config.Prefetch letters that are not acknowledged.
func (s *subscription) receive(p *partition, ch *amqp.Channel, arrivals <-chan amqp.Delivery) {
	for d := range arrivals {
		l := &letter{ch: ch, delivery: d}
		l.event, l.fault = decode(d)
		s.mu.Lock()
		if p.ch == ch {
			p.active = true
			p.letters = append(p.letters, l)
			s.wake()
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	if p.ch == ch {
		p.forget()
	}
	s.mu.Unlock()
	s.nudge(s.kick)
}

func (s *subscription) nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// tend opens partitions whose channel ended, and hands over those that are to go and have nothing out.
func (s *subscription) tend(conn *amqp.Connection) error {
	for _, p := range s.partitions {
		s.mu.Lock()
		ch, going := p.ch, p.leaving && p.out == 0
		s.mu.Unlock()
		if going {
			s.flush(p)
			if err := closeQuietly(ch); err != nil {
				return err
			}
		}
		if ch == nil || going {
			if err := s.open(conn, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave closes all channels in order, so that the server has every acknowledgement before it gives the rest to others.
func (s *subscription) leave() {
	var all sync.WaitGroup
	for _, p := range s.partitions {
		s.flush(p)
		s.mu.Lock()
		ch := p.ch
		p.forget()
		s.mu.Unlock()
		if ch != nil {
			all.Go(func() { _ = closeQuietly(ch) }) // it fails with the connection, and then the server does the same
		}
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	patience := time.NewTimer(s.broker.cfg.Timeout)
	defer patience.Stop()
	select {
	case <-finished:
	case <-patience.C:
	}
}

// acknowledge sends acknowledgements while a session lasts. What has gathered since the last time goes together.
func (s *subscription) acknowledge(end <-chan struct{}) {
	for {
		select {
		case <-end:
			return
		case <-s.settle:
			for _, p := range s.partitions {
				s.flush(p)
			}
		}
	}
}

// flush tells the server what of a partition is done. A failure ends the channel; what was not told comes again.
func (s *subscription) flush(p *partition) {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	ch := p.ch
	upTo, single := p.settled()
	s.mu.Unlock()
	if ch == nil {
		return
	}
	if upTo > 0 && ch.Ack(upTo, true) != nil {
		return
	}
	for _, tag := range single {
		if ch.Ack(tag, false) != nil {
			return
		}
	}
}
