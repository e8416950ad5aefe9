package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo/inbox"
)

// ahead is how many entries are read at a time at least: each exchange with the server costs the same, and what was read and not
// handed out stays with this source only as long as its lease.
const ahead = 256

// mostWait is how long a Fetch waits before it looks again without a reason.
const mostWait = time.Second

// plan is what one look asks for.
type plan struct {
	again []step // entries to be handed out again
	taken []step // partitions whose unacknowledged entries are taken over
	fresh []step // partitions to read new entries from
	wait  time.Duration
}

type step struct {
	p     *partition
	value string // the lease's value that the step relies on
	ids   []string
}

// look asks once for everything that may be handed out. It returns at most so many deliveries of what is handed out again, leaves
// the rest ready to be picked, and tells when to look again.
func (s *source) look(ctx context.Context, most int) (got []inbox.Delivery, wait time.Duration, err error) {
	s.line.Lock()
	defer s.line.Unlock()
	// What has begun is finished: an entry that the server counts as handed out must not be lost to a canceled ctx.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.broker.cfg.Timeout)
	defer cancel()
	if err := s.flush(ctx); err != nil {
		return nil, 0, err
	}
	todo := s.plan(most)
	for _, st := range todo.again {
		if len(got) < most {
			more, err := s.repeat(ctx, st, most-len(got))
			got = append(got, more...)
			if err != nil {
				return got, 0, err
			}
		}
	}
	left := max(most, ahead)
	for _, st := range todo.taken {
		if left > 0 {
			n, err := s.takeOver(ctx, st, left)
			left -= n
			if err != nil {
				return got, 0, err
			}
		}
	}
	if left > 0 && len(todo.fresh) > 0 {
		if err := s.read(ctx, todo.fresh, left); err != nil {
			return got, 0, err
		}
	}
	if len(todo.taken) > 0 {
		todo.wait = 0 // a takeover goes on, or new entries may be read now
	}
	return got, todo.wait, nil
}

func (s *source) plan(most int) plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	todo := plan{wait: mostWait}
	s.first++
	for i := range s.parts {
		p := s.parts[(s.first+i)%len(s.parts)]
		if p.value == "" || p.leaving || !p.trusted.After(now) {
			continue
		}
		p.expire(now)
		if wait := p.nextExpiry(now); wait > 0 {
			todo.wait = min(todo.wait, wait)
		}
		switch ids, wait := p.due(now, most); {
		case len(ids) > 0:
			todo.again = append(todo.again, step{p, p.value, ids})
		case wait > 0:
			todo.wait = min(todo.wait, wait)
		case len(p.ready) > 0:
		case p.cursor != "":
			todo.taken = append(todo.taken, step{p, p.value, nil})
		default:
			todo.fresh = append(todo.fresh, step{p, p.value, nil})
		}
	}
	return todo
}

// holds tells whether what a step read may be handed out: the lease is the same and still trusted. The caller holds the lock.
func (st step) holds() bool { return st.p.value == st.value && st.p.trusted.After(time.Now()) }

// repeat hands out entries again.
func (s *source) repeat(ctx context.Context, st step, most int) ([]inbox.Delivery, error) {
	ids := st.ids[:min(len(st.ids), most)]
	args := []any{s.consumer, reader, st.value}
	for _, id := range ids {
		args = append(args, id)
	}
	answer, err := s.broker.scripts.again.Run(ctx, s.broker.client, []string{st.p.lease, st.p.stream}, args...).Slice()
	if err != nil {
		return nil, verdict(err) // they stay to be repeated
	}
	state, rest, err := stateOf(answer, 4)
	if err != nil {
		return nil, err
	}
	entries, counts, deleted, err := claimed(rest)
	if err != nil {
		return nil, err
	}
	if err := s.judge(ctx, st, state); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !st.holds() {
		return nil, nil
	}
	for _, id := range ids {
		delete(st.p.again, id)
	}
	s.gone(st.p, deleted)
	var got []inbox.Delivery
	for i, e := range entries {
		got = append(got, s.hand(st.p, e, counts[i], time.Now()))
	}
	return got, nil
}

// claimed is a script's answer about entries that were taken over: the entries, how often each was delivered, this time included, and
// the ids of those that were deleted meanwhile. The server counts for all instances of a consumer: a process that died counts.
func claimed(answer []any) (entries []entry, counts []int, deleted []string, err error) {
	if entries, err = entriesOf(answer[0]); err != nil {
		return nil, nil, nil, err
	}
	list, ok := answer[1].([]any)
	if !ok || len(list) != len(entries) {
		return nil, nil, nil, errAnswer
	}
	for _, n := range list {
		count, ok := n.(int64)
		if !ok {
			return nil, nil, nil, errAnswer
		}
		counts = append(counts, int(count))
	}
	deleted, err = textsOf(answer[2])
	return entries, counts, deleted, err
}

// takeOver reads what the consumer's instances have read and not acknowledged, in order and before anything newer. The
// lease is the right to it, however short ago it was read: its reader has lost the partition, or it is this one and the
// server's answer never came.
func (s *source) takeOver(ctx context.Context, st step, most int) (n int, err error) {
	s.mu.Lock()
	cursor := st.p.cursor
	s.mu.Unlock()
	answer, err := s.broker.scripts.recover.Run(ctx, s.broker.client, []string{st.p.lease, st.p.stream},
		s.consumer, reader, st.value, cursor, most).Slice()
	if err != nil {
		return 0, verdict(err)
	}
	state, rest, err := stateOf(answer, 5)
	if err != nil {
		return 0, err
	}
	next, ok := rest[0].(string)
	if !ok {
		return 0, errAnswer
	}
	entries, counts, deleted, err := claimed(rest[1:])
	if err != nil {
		return 0, err
	}
	if err := s.judge(ctx, st, state); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone(st.p, deleted)
	if !st.holds() || st.p.cursor != cursor {
		return 0, nil
	}
	if st.p.cursor = next; next == "0-0" {
		st.p.cursor = ""
	}
	s.store(st.p, entries, func(i int) int { return counts[i] })
	return len(entries), nil
}

// read reads new entries.
func (s *source) read(ctx context.Context, steps []step, most int) error {
	keys := make([]string, 0, 2*len(steps))
	args := []any{s.consumer, reader, most}
	for _, st := range steps {
		keys = append(keys, st.p.lease, st.p.stream)
		args = append(args, st.value)
	}
	answer, err := s.broker.scripts.read.Run(ctx, s.broker.client, keys, args...).Slice()
	if err != nil {
		s.doubt(steps)
		return verdict(err)
	}
	for i, part := range answer {
		if err := s.received(ctx, steps[i], part); err != nil {
			s.doubt(steps[i:])
			return err
		}
	}
	return nil
}

// doubt makes the partitions begin with a takeover: the server may count entries as read that have not come here.
func (s *source) doubt(steps []step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range steps {
		if st.p.value == st.value {
			st.p.uncertain()
		}
	}
}

func (s *source) received(ctx context.Context, st step, part any) error {
	pair, ok := part.([]any)
	if !ok {
		return errAnswer
	}
	state, rest, err := stateOf(pair, 2)
	if err != nil {
		return err
	}
	entries, err := entriesOf(rest[0])
	if err != nil {
		return err
	}
	if err := s.judge(ctx, st, state); err != nil || len(entries) == 0 {
		return err
	}
	if !s.keeps(st, entries) {
		s.doubt([]step{st})
	}
	return nil
}

func (s *source) keeps(st step, entries []entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !st.holds() {
		return false
	}
	st.p.after = entries[len(entries)-1].id
	s.store(st.p, entries, func(int) int { return 1 })
	return true
}

func stateOf(answer []any, n int) (state string, rest []any, err error) {
	if len(answer) != n {
		return "", nil, errAnswer
	}
	state, ok := answer[0].(string)
	if !ok {
		return "", nil, errAnswer
	}
	return state, answer[1:], nil
}

// judge acts on a script's state.
func (s *source) judge(ctx context.Context, st step, state string) error {
	switch {
	case state == "ok":
		return nil
	case state == "lost":
		s.mu.Lock()
		defer s.mu.Unlock()
		if st.p.value == st.value {
			st.p.drop()
			signal(s.kick)
		}
		return nil
	case strings.Contains(state, "NOGROUP"):
		// The consumer's position is gone, and the stream with it or before it.
		if err := s.broker.groups(ctx, st.p.topic, s.consumer); err != nil {
			return err
		}
		s.broker.report(Loss{Topic: st.p.topic, Partition: st.p.number, Consumer: s.consumer,
			What: "the consumer's position is gone: the server has lost its data, or somebody deleted the stream; reading begins anew"})
		s.mu.Lock()
		defer s.mu.Unlock()
		if st.p.value == st.value {
			st.p.take(st.value, st.p.trusted)
		}
		return nil
	default:
		return fmt.Errorf("read %s: %w", st.p.stream, errors.New(state))
	}
}

// gone reports entries that were deleted before the consumer was done with them. The caller holds the lock.
func (s *source) gone(p *partition, ids []string) {
	var lost []string
	for _, id := range ids {
		if p.out[id] == nil && !s.acks[p][id] {
			lost = append(lost, id)
		}
	}
	if len(lost) > 0 {
		s.broker.report(Loss{Topic: p.topic, Partition: p.number, Consumer: s.consumer, IDs: lost,
			What: "entries were deleted before the consumer was done with them"})
	}
}

// listenFor is how long one request for news waits at the server.
const listenFor = 500 * time.Millisecond

// listen makes sure that somebody waits at the server for new entries in this source's partitions. It takes none of them: it
// only makes the waiting Fetch look.
func (s *source) listen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listening || s.closed {
		return
	}
	var parts []*partition
	now := time.Now()
	for _, p := range s.parts {
		if p.value != "" && !p.leaving && p.trusted.After(now) && p.cursor == "" && len(p.again) == 0 {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return
	}
	s.listening = true
	s.broker.work.Go(func() {
		heard := s.hear(parts)
		s.mu.Lock()
		s.listening = false
		s.mu.Unlock()
		if heard {
			signal(s.news)
		}
	})
}

// hear returns true when something came, or the time was over. On an error the Fetch looks by itself after a while.
func (s *source) hear(parts []*partition) bool {
	ctx := s.broker.ctx
	streams := make([]string, 0, 2*len(parts))
	var ids []string
	for _, p := range parts {
		after, err := s.position(ctx, p)
		if err != nil {
			return false
		}
		streams, ids = append(streams, p.stream), append(ids, after)
	}
	found, err := s.broker.waiting.XRead(ctx, &redis.XReadArgs{Streams: append(streams, ids...), Count: 1, Block: listenFor}).Result()
	if err != nil {
		return errors.Is(err, redis.Nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range parts {
		for _, f := range found {
			// If the read that follows finds nothing there, somebody else has read it: where the group stands is asked anew.
			if f.Stream == p.stream && p.after == ids[i] {
				p.after = ""
			}
		}
	}
	return true
}

// position is the last entry that the group has read.
func (s *source) position(ctx context.Context, p *partition) (string, error) {
	s.mu.Lock()
	after, value := p.after, p.value
	s.mu.Unlock()
	if after != "" {
		return after, nil
	}
	groups, err := s.broker.client.XInfoGroups(ctx, p.stream).Result()
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		if g.Name != s.consumer {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.value == value && p.after == "" {
			p.after = g.LastDeliveredID
		}
		return g.LastDeliveredID, nil
	}
	return "", errors.New("no such group")
}
