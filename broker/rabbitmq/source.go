package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// source is one reader of a subscription.
type source struct {
	sub     *subscription
	closing sync.Once
	closed  chan struct{}
}

// source adds a reader. The subscription's subjects are those of the last one.
func (s *subscription) source(names []string) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources++
	s.names = names
	return &source{sub: s, closed: make(chan struct{})}
}

// Close hands back what this source has. The last source of a consumer in a Broker ends its reading.
func (s *source) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		b := s.sub.broker
		b.mu.Lock()
		s.sub.mu.Lock()
		for _, p := range s.sub.partitions {
			p.back(s)
		}
		s.sub.sources--
		last := s.sub.sources == 0
		if last && b.subscriptions[s.sub.consumer] == s.sub {
			delete(b.subscriptions, s.sub.consumer) // with both locks held: no Subscribe may find it now
		}
		s.sub.wake()
		s.sub.mu.Unlock()
		b.mu.Unlock()
		s.sub.nudge(s.sub.kick)
		if last {
			s.sub.end()
		}
	})
	return nil
}

// Fetch implements inbox.Source.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	got, err := s.fetch(ctx, max(most, 1))
	if err != nil {
		return nil, convergo.Unreachable(fmt.Errorf("rabbitmq: fetch for %s: %w", s.sub.consumer, err))
	}
	return got, nil
}

var errSourceClosed = errors.New("the source is closed")

func (s *source) fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		select {
		case <-s.closed:
			return nil, errSourceClosed
		default:
		}
		got, next, changed, err := s.look(most)
		if err != nil || len(got) > 0 {
			return got, err
		}
		s.wait(ctx, next, changed)
	}
}

// wait waits for a change, for next, or for an end.
func (s *source) wait(ctx context.Context, next time.Time, changed <-chan struct{}) {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-changed:
	case <-due:
	case <-s.closed:
	case <-ctx.Done():
	}
}

// look takes what is there. A different partition comes first each time, so that a busy one starves no other.
func (s *source) look(most int) (got []inbox.Delivery, next time.Time, changed <-chan struct{}, err error) {
	sub := s.sub
	sub.mu.Lock()
	defer sub.mu.Unlock()
	now := time.Now()
	for i := range sub.partitions {
		p := sub.partitions[(sub.from+i)%len(sub.partitions)]
		taken, due := p.take(s, most-len(got), now)
		for _, l := range taken {
			got = append(got, s.delivery(p, l))
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
		if len(got) == most {
			break
		}
	}
	sub.from = (sub.from + 1) % len(sub.partitions)
	if len(got) == 0 {
		err = sub.failure
	}
	return got, next, sub.changed, err
}

func (s *source) delivery(p *partition, l *letter) inbox.Delivery {
	d := inbox.Delivery{
		Event: l.event, Malformed: l.fault, Attempt: deliveries(l.delivery),
		Ack:    func(context.Context) error { return s.answer(p, l, func() { l.state = done }) },
		Return: func(_ context.Context, delay time.Duration) error { return s.giveBack(p, l, delay) },
	}
	if d.Attempt == 0 { // a classic queue does not count
		d.Partition = s.sub.broker.queue(s.sub.consumer, p.n)
	}
	if d.Attempt > 0 {
		d.Attempt += l.returns
	} else if l.returns > 0 {
		d.Attempt = l.returns + 1
	}
	return d
}

// giveBack keeps the letter here, unacknowledged, until its time: the server's own requeue knows no delay and would deliver it
// again at once, in circles.
func (s *source) giveBack(p *partition, l *letter, delay time.Duration) error {
	return s.answer(p, l, func() {
		l.state = here
		l.returns++
		l.due = time.Time{}
		if delay > 0 {
			l.due = time.Now().Add(delay)
		}
	})
}

// answer changes the state of a letter that is out. The answer to one that was answered before is no error; one to a letter whose
// channel is gone is, because the server delivers it again.
func (s *source) answer(p *partition, l *letter, change func()) error {
	sub := s.sub
	sub.mu.Lock()
	defer sub.mu.Unlock()
	switch {
	case p.ch != l.ch:
		return convergo.Unreachable(fmt.Errorf("rabbitmq: answer for %s: %s comes again: the connection on which it came is gone",
			sub.consumer, l.event.Key))
	case l.state != out:
		return nil
	}
	change()
	p.out--
	if p.out == 0 {
		p.holder = nil
		if p.leaving {
			sub.nudge(sub.kick)
		}
	}
	if l.state == done {
		sub.nudge(sub.settle)
	}
	if l.state == here || p.out == 0 {
		sub.wake()
	}
	return nil
}
