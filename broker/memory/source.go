package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// consumer is a durable subscription. The broker's lock guards it.
type consumer struct {
	name     string
	subjects []convergo.Subject
	next     int // first message of the log that was not looked at yet
	out      map[int]*flight
	held     []int // messages before next that wait for an earlier one of their aggregate, in order
	echo     []int // second copies that a fault asked for
}

// flight is a message that was delivered and is not acknowledged.
type flight struct {
	holder  *source
	attempt int
	due     time.Time // when it is delivered again
}

func (c *consumer) wants(m message) bool {
	return slices.ContainsFunc(c.subjects, func(s convergo.Subject) bool { return s.Covers(m.topic, m.eventType) })
}

// mostHeld bounds how far a Fetch looks past messages that it may not have.
const mostHeld = 4096

// take chooses up to most messages for s, those that are due again first, in the order of the log; wait is the time until the
// next one is due when there is none, 0 when nothing is out. A message of an aggregate of which another source holds one
// unacknowledged is not taken, so that several sources together keep an aggregate's order.
func (c *consumer) take(log []message, s *source, most int, visibility time.Duration) (taken []int, wait time.Duration) {
	now := time.Now()
	for i, f := range c.out {
		if left := f.due.Sub(now); left <= 0 {
			taken = append(taken, i)
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	slices.Sort(taken)
	taken = taken[:min(len(taken), most)]
	elsewhere := map[convergo.Aggregate]bool{}
	for i, f := range c.out {
		if f.holder != s && !slices.Contains(taken, i) {
			elsewhere[log[i].aggregate()] = true
		}
	}
	delete(elsewhere, convergo.Aggregate{}) // a message that is no event has no order
	held := c.held
	c.held = nil
	consider := func(i int) {
		switch {
		case !c.wants(log[i]):
		case elsewhere[log[i].aggregate()]:
			c.held = append(c.held, i)
		default:
			c.out[i] = &flight{}
			taken = append(taken, i)
		}
	}
	for ; len(held) > 0 && len(taken) < most; held = held[1:] {
		consider(held[0])
	}
	for ; c.next < len(log) && len(held) == 0 && len(taken) < most && len(c.held) < mostHeld; c.next++ {
		consider(c.next)
	}
	c.held = append(c.held, held...)
	for _, i := range taken {
		c.out[i].holder = s
		c.out[i].attempt++
		c.out[i].due = now.Add(visibility)
	}
	return taken, wait
}

type source struct {
	broker   *Broker
	consumer *consumer
}

// Fetch implements inbox.Source.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		got, changed, wait, err := s.look(ctx, max(most, 1))
		if err != nil {
			return nil, fmt.Errorf("fetch for %s: %w", s.consumer.name, convergo.Unreachable(err))
		}
		if len(got) > 0 {
			return got, nil
		}
		pause(ctx, changed, wait)
	}
}

// pause waits for a change, for the time (0: for ever) or for the end of ctx.
func pause(ctx context.Context, changed <-chan struct{}, wait time.Duration) {
	var again <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-changed:
	case <-again:
	case <-ctx.Done():
	}
}

func (s *source) look(ctx context.Context, most int) ([]inbox.Delivery, <-chan struct{}, time.Duration, error) {
	b := s.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, nil, 0, err
	}
	if b.faults.outage {
		return nil, nil, 0, errOutage
	}
	var got []inbox.Delivery
	for ; len(s.consumer.echo) > 0 && len(got) < most; s.consumer.echo = s.consumer.echo[1:] {
		got = append(got, s.delivery(s.consumer.echo[0], 2))
	}
	taken, wait := s.consumer.take(b.log, s, most-len(got), b.cfg.Visibility)
	for _, i := range taken {
		got = append(got, s.delivery(i, s.consumer.out[i].attempt))
		if b.faults.deliverTwice() {
			s.consumer.echo = append(s.consumer.echo, i)
		}
	}
	return got, b.changed, wait, nil
}

func (s *source) delivery(i, attempt int) inbox.Delivery {
	d := inbox.Delivery{
		Attempt: attempt,
		Ack:     func(context.Context) error { return s.ack(i) },
		Return:  func(_ context.Context, delay time.Duration) error { return s.giveBack(i, delay) },
	}
	d.Event, d.Malformed = s.broker.log[i].event()
	return d
}

func (s *source) ack(i int) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if s.broker.faults.outage {
		return convergo.Unreachable(fmt.Errorf("acknowledge: %w", errOutage))
	}
	if !s.broker.faults.loseAck() {
		delete(s.consumer.out, i)
		if len(s.consumer.held) > 0 {
			s.broker.wake() // another source may go on with the aggregate
		}
	}
	return nil
}

// Close gives back at once what the source holds. The source can be used again.
func (s *source) Close() error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	now := time.Now()
	for _, f := range s.consumer.out {
		if f.holder == s {
			f.due = now
		}
	}
	s.broker.wake()
	return nil
}

func (s *source) giveBack(i int, delay time.Duration) error {
	s.broker.mu.Lock()
	defer s.broker.mu.Unlock()
	if s.broker.faults.outage {
		return convergo.Unreachable(fmt.Errorf("return: %w", errOutage))
	}
	if f := s.consumer.out[i]; f != nil {
		f.due = time.Now().Add(max(delay, 0))
		s.broker.wake()
	}
	return nil
}
