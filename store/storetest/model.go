package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

// The model says in a few lines what an outbox and its relays do to the events of one aggregate; random histories of
// writers and relays must look the same on the store.

type modelEvent struct {
	seq      int64 // order in which it became pending
	version  int64
	attempts int
	hold     bool // of a dead one
}

type modelAggregate struct {
	name      convergo.Aggregate
	written   int64
	delayed   []modelEvent // seq is the time until it becomes pending
	lane      []modelEvent
	queue     []modelEvent
	blocked   bool
	held      bool
	next      time.Duration
	sent      []int64
	discarded int
	dead      []modelEvent // by seq
}

// seen is what a claim shows of an event.
type seen struct {
	version  int64
	attempts int
	held     bool
	queued   bool
}

// claimable is what a claim with room for everything shows of the aggregate.
func (a *modelAggregate) claimable(now time.Duration) (list []seen) {
	if a.blocked && !a.held && a.next <= now {
		for _, e := range a.queue {
			list = append(list, seen{e.version, e.attempts, false, true})
			if e.attempts > 0 {
				break
			}
		}
	}
	for _, e := range a.lane {
		list = append(list, seen{e.version, 0, a.blocked, false})
	}
	return list
}

// promote makes due delayed events pending, in order of their times.
func (a *modelAggregate) promote(now time.Duration, seq *int64) {
	slices.SortStableFunc(a.delayed, func(x, y modelEvent) int { return int(x.seq - y.seq) })
	for len(a.delayed) > 0 && time.Duration(a.delayed[0].seq) <= now {
		*seq++
		a.lane = append(a.lane, modelEvent{seq: *seq, version: a.delayed[0].version})
		a.delayed = a.delayed[1:]
	}
}

// take removes the event from its lane or queue.
func (a *modelAggregate) take(version int64, queued bool) modelEvent {
	from := &a.lane
	if queued {
		from = &a.queue
	}
	i := slices.IndexFunc(*from, func(e modelEvent) bool { return e.version == version })
	e := (*from)[i]
	*from = slices.Delete(slices.Clone(*from), i, i+1)
	return e
}

func (a *modelAggregate) wait(e modelEvent) {
	a.queue = append(a.queue, e)
	slices.SortFunc(a.queue, func(x, y modelEvent) int { return int(x.seq - y.seq) })
}

// goOn: with nothing waiting the aggregate is free; a head that has not failed is due at once; a dead one may hold it.
func (a *modelAggregate) goOn(now time.Duration) {
	switch {
	case a.held:
		a.blocked = true
	case len(a.queue) == 0:
		a.blocked = false
	case !a.blocked || a.queue[0].attempts == 0:
		a.blocked, a.next = true, now
	}
}

// modelRun is one random history. Each has aggregates of its own on the store that all share, so that what earlier ones
// left behind (dead letters, held queues) lies about as in real life.
type modelRun[TX any] struct {
	r          *rig[TX]
	t          *rapid.T
	leases     []relay.Lease
	aggregates []*modelAggregate
	now        time.Duration
	seq        int64
}

func modelLaw[TX any](t *testing.T, open func(t *testing.T) Backend[TX]) {
	r := start(t, open)
	owner := r.lease("model")
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &modelRun[TX]{r: r, t: rt, leases: owner}
		for i := range 3 { // two of them share a lane
			id := fmt.Sprintf("model-%d-%d", run, i)
			if i == 2 {
				first := m.aggregates[0].name.Lane()
				for n := 0; order(id).Lane() != first; n++ {
					id = fmt.Sprintf("model-%d-%d-%d", run, i, n)
				}
			}
			m.aggregates = append(m.aggregates, &modelAggregate{name: order(id)})
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":        m.compare,
			"write":   m.write,
			"relay":   m.relay,
			"later":   func(t *rapid.T) { m.now += time.Duration(rapid.IntRange(1, 4).Draw(t, "minutes")) * time.Minute },
			"redrive": func(t *rapid.T) { m.act(t, true) },
			"discard": func(t *rapid.T) { m.act(t, false) },
		})
		m.drain()
	})
}

func (m *modelRun[TX]) pick(t *rapid.T) *modelAggregate {
	return m.aggregates[rapid.IntRange(0, len(m.aggregates)-1).Draw(t, "aggregate")]
}

// write commits a few events, or rolls them back.
func (m *modelRun[TX]) write(t *rapid.T) {
	a := m.pick(t)
	commit := rapid.IntRange(0, 4).Draw(t, "commit") > 0
	var list []convergo.Event
	for i := range rapid.IntRange(1, 3).Draw(t, "events") {
		e := event(a.name, int(a.written)+i+1)
		if rapid.IntRange(0, 3).Draw(t, "delayed") == 0 {
			e.DeliverAt = m.r.base.Add(m.now + time.Duration(rapid.IntRange(1, 3).Draw(t, "delay"))*time.Minute)
		}
		list = append(list, e)
	}
	err := m.r.Store.Update(m.r.ctx, func(ctx context.Context, tx TX) error {
		if _, err := m.r.Outbox.Insert(ctx, tx, list); err != nil {
			return err
		}
		if !commit {
			return errWanted
		}
		return nil
	})
	if !commit {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		a.written++
		if !e.DeliverAt.IsZero() {
			a.delayed = append(a.delayed, modelEvent{seq: int64(e.DeliverAt.Sub(m.r.base)), version: e.Version})
			continue
		}
		m.seq++
		a.lane = append(a.lane, modelEvent{seq: m.seq, version: e.Version})
	}
}

func (m *modelRun[TX]) claim(t *rapid.T, perLane int) map[convergo.Aggregate][]relay.Pending {
	for _, a := range m.aggregates {
		a.promote(m.now, &m.seq)
	}
	c, err := m.r.Relay.Claim(m.r.ctx, m.leases, perLane, m.r.base.Add(m.now))
	if err != nil {
		t.Fatal(err)
	}
	by := map[convergo.Aggregate][]relay.Pending{}
	for _, p := range c.Events {
		by[p.Event.Aggregate] = append(by[p.Event.Aggregate], p)
	}
	return by
}

func show(list []relay.Pending) (views []seen) {
	for _, p := range list {
		views = append(views, seen{p.Event.Version, p.Attempts, p.Held, p.Queued})
	}
	return views
}

// compare looks at everything that may be claimed now.
func (m *modelRun[TX]) compare(t *rapid.T) {
	by := m.claim(t, 1000)
	for _, a := range m.aggregates {
		if got, want := show(by[a.name]), a.claimable(m.now); !slices.Equal(got, want) {
			t.Fatalf("%s at %v: claimed %v, the model says %v", a.name, m.now, got, want)
		}
	}
}

// relay claims some events and settles them as a relay does: it sends each aggregate's in order until one fails.
func (m *modelRun[TX]) relay(t *rapid.T) {
	by := m.claim(t, rapid.IntRange(1, 4).Draw(t, "per lane"))
	s := relay.Settlement{HoldAggregate: rapid.Bool().Draw(t, "hold"), Now: m.r.base.Add(m.now)}
	var used []relay.Pending
	for _, a := range m.aggregates {
		list := by[a.name]
		all := a.claimable(m.now)
		if len(list) > len(all) {
			t.Fatalf("%s: claimed %v, the model says %v", a.name, show(list), all)
		}
		m.attempt(t, a, list, &s)
		used = append(used, list...)
	}
	s.Leases = inLanes(m.leases, used)
	if err := m.r.Relay.Settle(m.r.ctx, s); err != nil {
		t.Fatal(err)
	}
	if rapid.IntRange(0, 3).Draw(t, "answer lost") == 0 {
		if err := m.r.Relay.Settle(m.r.ctx, s); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *modelRun[TX]) attempt(t *rapid.T, a *modelAggregate, list []relay.Pending, s *relay.Settlement) {
	stopped := false
	failed := false
	for _, p := range list {
		switch outcome := rapid.IntRange(0, 5).Draw(t, "outcome"); {
		case p.Held || stopped && !p.Queued:
			s.Aside = append(s.Aside, p)
			a.wait(a.take(p.Event.Version, p.Queued))
		case stopped: // it stays in the queue
		case outcome < 4:
			s.Sent = append(s.Sent, p)
			a.sent = append(a.sent, a.take(p.Event.Version, p.Queued).version)
		case outcome == 4:
			stopped, failed = true, true
			after := m.now + time.Duration(rapid.IntRange(0, 3).Draw(t, "back-off"))*time.Minute
			s.Failed = append(s.Failed, relay.Failure{Pending: p, Error: "no answer", Next: m.r.base.Add(after), Place: "model"})
			e := a.take(p.Event.Version, p.Queued)
			e.attempts = p.Attempts + 1
			a.wait(e)
			a.blocked, a.next = true, after
		default:
			s.Dead = append(s.Dead, relay.Failure{Pending: p, Error: "too large", Place: "model"})
			e := a.take(p.Event.Version, p.Queued)
			e.hold = s.HoldAggregate
			a.dead = append(a.dead, e)
			a.held = a.held || e.hold
			stopped = s.HoldAggregate
		}
	}
	if !failed {
		a.goOn(m.now)
	}
}

// act is an operator's decision about one of the aggregate's dead events, any of them.
func (m *modelRun[TX]) act(t *rapid.T, redrive bool) {
	a := m.pick(t)
	if len(a.dead) == 0 {
		return
	}
	earliest := slices.MinFunc(a.dead, func(x, y modelEvent) int { return int(x.seq - y.seq) })
	i := rapid.IntRange(0, len(a.dead)-1).Draw(t, "dead")
	e := a.dead[i]
	id := m.deadID(t, a, e.version)
	if !redrive {
		if err := m.r.Operators.DiscardEvent(m.r.ctx, id, "model", "", m.r.base.Add(m.now)); err != nil {
			t.Fatal(err)
		}
		a.discarded++
	} else {
		err := m.r.Operators.RedriveEvent(m.r.ctx, id, "ann", "", m.r.base.Add(m.now))
		if e.seq != earliest.seq {
			if !errors.Is(err, ops.ErrEarlierDead) {
				t.Fatalf("%s: redriving version %d before %d: %v", a.name, e.version, earliest.version, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		a.wait(modelEvent{seq: e.seq, version: e.version})
	}
	a.dead = slices.Delete(slices.Clone(a.dead), i, i+1)
	a.held = slices.ContainsFunc(a.dead, func(d modelEvent) bool { return d.hold })
	a.goOn(m.now)
}

func (m *modelRun[TX]) deadID(t *rapid.T, a *modelAggregate, version int64) int64 {
	for after := int64(0); ; {
		list, err := m.r.Operators.DeadEvents(m.r.ctx, 100, after)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s version %d is not among the dead: %v", a.name, version, err)
		}
		for _, d := range list {
			if d.Event.Aggregate == a.name && d.Event.Version == version {
				return d.ID
			}
		}
		after = list[len(list)-1].ID
	}
}

// drain sends all that can be sent: nothing may be lost, sent twice or be left over.
func (m *modelRun[TX]) drain() {
	m.now += 24 * time.Hour
	m.sendAll()
	for _, a := range m.aggregates {
		sent := slices.Sorted(slices.Values(a.sent))
		if unique := slices.Compact(slices.Clone(sent)); len(unique) != len(sent) {
			m.t.Fatalf("%s: sent twice: %v", a.name, a.sent)
		}
		if !a.held && len(sent)+len(a.dead)+a.discarded != int(a.written) {
			m.t.Fatalf("%s: %d written, %d dead, but sent are %v", a.name, a.written, len(a.dead), a.sent)
		}
		for _, d := range a.dead { // the next history shall not have to page through them
			if err := m.r.Operators.DiscardEvent(m.r.ctx, m.deadID(m.t, a, d.version), "model", "", m.r.base.Add(m.now)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	m.sendAll()
}

func (m *modelRun[TX]) sendAll() {
	for range 1000 {
		by := m.claim(m.t, 1000)
		s := relay.Settlement{Now: m.r.base.Add(m.now)}
		var used []relay.Pending
		for _, a := range m.aggregates {
			for _, p := range by[a.name] {
				used = append(used, p)
				if p.Held {
					s.Aside = append(s.Aside, p)
					continue
				}
				s.Sent = append(s.Sent, p)
				a.sent = append(a.sent, p.Event.Version)
			}
		}
		if len(used) == 0 {
			break
		}
		s.Leases = inLanes(m.leases, used)
		if err := m.r.Relay.Settle(m.r.ctx, s); err != nil {
			m.t.Fatal(err)
		}
	}
}
