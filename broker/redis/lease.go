package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// beat keeps the source's leases while it is live: asked for events, or so short ago that it may be again, or with deliveries
// out whose time is not over. It ends when the source is live no more, and then gives all partitions back.
func (s *source) beat() {
	for {
		hungry := s.renew()
		s.leave()
		if s.rest() {
			return
		}
		every := s.broker.cfg.Lease / 3
		if hungry {
			every = min(every, 200*time.Millisecond)
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-s.kick:
		}
		timer.Stop()
	}
}

// rest ends the beating when the source is closed or idle. What it held is given back after that, unless a Fetch has begun
// in between: then its own heart does not beat yet, so this one goes on.
func (s *source) rest() bool {
	s.mu.Lock()
	live := s.live(time.Now())
	if s.closed {
		s.beating = false
		s.mu.Unlock()
		return true
	}
	var given []step
	if !live {
		for _, p := range s.parts {
			if p.value != "" {
				given = append(given, step{p, p.value, nil})
				p.drop()
			}
		}
	}
	s.mu.Unlock()
	if live {
		return false
	}
	if err := s.release(given, true); err != nil {
		s.broker.cfg.Log.Debug("redis broker: partitions not handed back: their leases end by themselves", "consumer", s.consumer, "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetching {
		return false
	}
	s.beating = false
	return true
}

// live tells whether leases are to be kept. The caller holds the lock.
func (s *source) live(now time.Time) bool {
	if s.fetching || now.Sub(s.active) < s.broker.cfg.Lease {
		return true
	}
	for _, p := range s.parts {
		if p.busy(now) {
			return true
		}
	}
	return false
}

// busy tells whether the partition has deliveries out whose time is not over.
func (p *partition) busy(now time.Time) bool {
	for _, f := range p.out {
		if f.due.After(now) {
			return true
		}
	}
	return false
}

// renew renews what is held and takes what is free, up to the fair share, topic by topic. It tells whether some of the share is
// still with others.
func (s *source) renew() (hungry bool) {
	ctx, cancel := context.WithTimeout(s.broker.ctx, min(s.broker.cfg.Timeout, s.broker.cfg.Lease))
	defer cancel()
	for _, topic := range s.topics {
		short, err := s.renewTopic(ctx, topic)
		if err != nil {
			if s.broker.ctx.Err() == nil {
				s.broker.cfg.Log.Debug("redis broker: leases not renewed", "consumer", s.consumer, "topic", topic, "error", err)
			}
			short = true
		}
		hungry = hungry || short
	}
	return hungry
}

func (s *source) renewTopic(ctx context.Context, topic string) (hungry bool, err error) {
	b := s.broker
	keys := []string{b.membersKey(topic, s.consumer), b.tokensKey()}
	args := []any{s.instance, b.cfg.Lease.Milliseconds()}
	var parts []*partition
	var held []string
	s.mu.Lock()
	for _, p := range s.parts {
		if p.topic == topic {
			parts, held = append(parts, p), append(held, p.value)
			keys, args = append(keys, p.lease), append(args, p.value)
		}
	}
	s.mu.Unlock()
	// Trust is counted from before the request, so that it ends before the lease does, wherever the time goes; a fifth of the
	// term is for clocks that run at different speeds.
	trusted := time.Now().Add(b.cfg.Lease - b.cfg.Lease/5)
	answer, err := b.scripts.lease.Run(ctx, b.client, keys, args...).Slice()
	if err != nil {
		return false, verdict(err)
	}
	if len(answer) != len(parts)+1 {
		return false, errAnswer
	}
	share, ok := answer[0].(int64)
	if !ok {
		return false, errAnswer
	}
	values, err := textsOf(answer[1:])
	if err != nil {
		return false, err
	}
	return s.granted(parts, held, values, int(share), trusted), nil
}

// granted notes what the server says about leases, asked with the values held.
func (s *source) granted(parts []*partition, held, values []string, share int, trusted time.Time) (hungry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	kept := make([]*partition, 0, len(parts))
	count := 0
	for i, p := range parts {
		switch value := values[i]; {
		case p.value != held[i]: // lost, or given back, while the answer was on its way
		case value == "":
			if p.value != "" {
				p.drop()
			}
		case value == p.value:
			p.trusted = trusted
		default:
			p.take(value, trusted)
			signal(s.news)
		}
		if p.value != "" {
			count++
			if !p.leaving {
				kept = append(kept, p)
			}
		}
	}
	// More than its share: the ones with the least in flight leave.
	slices.SortStableFunc(kept, func(a, b *partition) int { return cmp.Compare(len(a.out), len(b.out)) })
	for _, p := range kept[:max(0, len(kept)-share)] {
		if p.trusted.After(now) {
			p.leaving, p.ready = true, nil // read and not handed out: the next holder's
		}
	}
	return count < share
}

// leave gives back the partitions that are leaving and have nothing out, or nothing whose time is not over.
func (s *source) leave() {
	now := time.Now()
	var given []step
	s.line.Lock()
	s.mu.Lock()
	for _, p := range s.parts {
		if p.value != "" && p.leaving && !p.busy(now) {
			given = append(given, step{p, p.value, nil})
			p.drop()
		}
	}
	s.mu.Unlock()
	s.line.Unlock()
	if err := s.release(given, false); err != nil {
		s.broker.cfg.Log.Debug("redis broker: partitions not handed back: their leases end by themselves", "consumer", s.consumer, "error", err)
	}
}

// release gives leases back after the acknowledgements that belong to them; the next holder would hand those out again.
// With last the source leaves the members of its consumer.
func (s *source) release(given []step, last bool) error {
	if len(given) == 0 && !last {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.broker.ctx), s.broker.cfg.Timeout)
	defer cancel()
	s.line.Lock()
	errs := []error{s.flush(ctx)}
	s.line.Unlock()
	for _, topic := range s.topics {
		keys := []string{s.broker.membersKey(topic, s.consumer)}
		var args []any
		for _, g := range given {
			if g.p.topic == topic {
				keys, args = append(keys, g.p.lease), append(args, g.value)
			}
		}
		switch {
		case last:
			args = append(args, s.instance)
		case len(args) == 0:
			continue
		default:
			args = append(args, "")
		}
		if err := s.broker.scripts.release.Run(ctx, s.broker.client, keys, args...).Err(); err != nil {
			errs = append(errs, fmt.Errorf("release partitions of %s: %w", topic, verdict(err)))
		}
	}
	return errors.Join(errs...)
}

// Close sends what is acknowledged and hands the partitions back, so that another instance goes on at once. What is not
// acknowledged is delivered to that one. It may be called twice.
func (s *source) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	s.mu.Unlock()
	signal(s.kick)
	s.beats.Wait()
	s.mu.Lock()
	var given []step
	for _, p := range s.parts {
		if p.value != "" {
			given = append(given, step{p, p.value, nil})
			p.drop()
		}
	}
	s.mu.Unlock()
	err := s.release(given, true)
	s.broker.mu.Lock()
	delete(s.broker.sources, s)
	s.broker.mu.Unlock()
	return err
}
