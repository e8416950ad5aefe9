package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Subscribe makes the consumer when it is new, with everything that the stream still has of its subjects, and otherwise goes
// on where the consumer stopped. Several sources of one consumer, in this process or in others, share its events, and each
// aggregate's events come in order to all of them together. All of them get the events of all subjects that any has ever asked for, so
// that a new version of a program misses nothing that an old one does not know. To take a subject away for good stop the consumer's
// instances and delete the key "<consumer>.group" of the bucket.
//
// The source is an io.Closer: its part goes to the others at once when it is closed.
func (b *Broker) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	if b.cfg.LookOnly {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, errLookOnly)
	}
	if err := validate(consumer, subjects); err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
	}
	g, old, err := b.groupOf(consumer, subjects)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", consumer, err)
	}
	if old != nil {
		err = old.leave()
	}
	if err == nil {
		err = g.joining(ctx)
	}
	if err != nil {
		b.forget(g)
		return nil, fmt.Errorf("subscribe %s: %w", consumer, judged(err))
	}
	return &source{g}, nil
}

func validate(consumer string, subjects []convergo.Subject) error {
	if !named(consumer) {
		return errors.New("the consumer's name has a character other than A-Z a-z 0-9 _ -")
	}
	if len(subjects) == 0 {
		return errors.New("no subjects: a consumer needs at least one")
	}
	for _, s := range subjects {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// groupOf is the consumer's group in this process, counted once more; old is one with other subjects, whose place it takes.
func (b *Broker) groupOf(consumer string, subjects []convergo.Subject) (g, old *group, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, nil, convergo.Unreachable(errClosed)
	}
	g = b.groups[consumer]
	if g == nil || g.mine != canonical(subjects) {
		old, g = g, b.newGroup(consumer, subjects)
		b.groups[consumer] = g
	}
	g.sources.Add(1)
	return g, old, nil
}

// forget gives a source up, and tells whether it was its group's last.
func (b *Broker) forget(g *group) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.sources.Add(-1) > 0 {
		return false
	}
	if b.groups[g.consumer] == g {
		delete(b.groups, g.consumer)
	}
	return true
}

type source struct{ group *group }

// Fetch implements inbox.Source. What it hands out was read before: it waits for no answer of the server.
func (s *source) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	for {
		got, changed, due, err := s.group.take(ctx, s, max(most, 1))
		if err != nil {
			return nil, fmt.Errorf("fetch for %s: %w", s.group.consumer, convergo.Unreachable(err))
		}
		if len(got) > 0 {
			return got, nil
		}
		pause(ctx, changed, due)
	}
}

// pause waits for a change, for a time (zero: for ever) or for the end of ctx.
func pause(ctx context.Context, changed <-chan struct{}, due time.Time) {
	var again <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-changed:
	case <-again:
	case <-ctx.Done():
	}
}

var errReplaced = errors.New("the subscription is closed, or replaced by one with other subjects")

func (g *group) take(ctx context.Context, s *source, most int) (got []inbox.Delivery, changed <-chan struct{}, due time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	switch {
	case ctx.Err() != nil:
		return nil, nil, due, ctx.Err()
	case g.left:
		return nil, nil, due, errReplaced
	case now.After(g.trusted) && g.failure != nil:
		return nil, nil, due, fmt.Errorf("the lease has ended: %w", g.failure)
	case now.After(g.trusted):
		return nil, g.changed, due, nil
	}
	most = min(most, g.broker.cfg.MaxAckPending-g.out)
	partitions := g.broker.cfg.Partitions
	for k := range partitions {
		p := g.parts[(g.first+k)%partitions]
		if p == nil || len(got) >= most {
			continue
		}
		more, next := p.take(s, most-len(got), now)
		got = append(got, more...)
		if !next.IsZero() {
			due = earlier(due, next)
		}
	}
	g.first++
	return got, g.changed, due, nil
}

// Close gives back what the source holds; the last one of its consumer in this process gives up the consumer's part.
func (s *source) Close() error {
	g := s.group
	g.mu.Lock()
	for _, p := range g.parts {
		for _, i := range p.items {
			if i.state == handedOut && i.holder == s {
				p.wait(i)
			}
		}
	}
	g.signal()
	g.mu.Unlock()
	if !g.broker.forget(g) {
		return nil
	}
	return g.leave()
}
