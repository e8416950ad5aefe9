package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
)

// engineLaws are cases of a whole relay and a whole consumer, on the store as it is. The rooms of relay and inbox have them with clocks
// of their own and on the memory store; here the same must come out of real transactions.
func engineLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"an outage of the broker spends no attempts (B06)", outageSpendsNothing[TX]},
		{"what was confirmed when the relay was stopped is settled, and sent once (B08)", stoppedBetween[TX]},
		{"nothing is acknowledged before it is stored, whether it was applied, parked or buried (B24, B25)", acknowledgedAfterwards[TX]},
	}
}

// publisher is a broker that notes what it took.
type publisher struct {
	mu     sync.Mutex
	events []convergo.Event
	answer func(convergo.Event) error
}

func (p *publisher) Publish(_ context.Context, events []convergo.Event) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(events))
	for i, e := range events {
		if p.answer != nil {
			errs[i] = p.answer(e)
		}
		if errs[i] == nil {
			p.events = append(p.events, e)
		}
	}
	return errs
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.events)
}

// once fails unless each of n events was taken once.
func (p *publisher) once(t testing.TB, n int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	times := map[convergo.Key]int{}
	for _, e := range p.events {
		if times[e.Key]++; times[e.Key] > 1 {
			t.Errorf("%s was sent %d times", e.Key, times[e.Key])
		}
	}
	if len(times) != n {
		t.Errorf("%d events were sent, want %d", len(times), n)
	}
}

// fill writes the first event of n orders.
func (r *rig[TX]) fill(n int) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) error {
		var events []convergo.Event
		for i := range n {
			e := event(order(fmt.Sprint("full-", i)), 1)
			e.CreatedAt = r.base
			events = append(events, e)
		}
		_, err := r.Outbox.Insert(ctx, tx, events)
		return err
	})
}

// works runs something until end is called, which waits for it.
func (r *rig[TX]) works(run func(ctx context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var once sync.Once
	end = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.Error(err)
			}
		})
	}
	r.Cleanup(end)
	return end
}

// comes waits for something that must come.
func (r *rig[TX]) comes(what string, is func() bool) {
	r.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.Fatalf("%s: not before the law's time was over", what)
		}
	}
}

var shortly = convergo.Backoff{Base: time.Millisecond, Cap: 4 * time.Millisecond}

func outageSpendsNothing[TX any](r *rig[TX]) {
	const events, tries = 60, 20
	r.fill(events)
	refused := 0
	p := &publisher{answer: func(convergo.Event) error {
		if refused < tries {
			refused++
			return convergo.Unreachable(errors.New("connection refused"))
		}
		return nil
	}}
	l := relay.New(r.Relay, p, relay.Config{MaxAttempts: 1, Outage: shortly, Backoff: shortly, Poll: 10 * time.Millisecond})
	end := r.works(l.Run)
	r.comes("the backlog", func() bool { return p.count() >= events })
	end()
	p.once(r, events)
	if s := l.Stats(); s.Dead != 0 || s.Failed != 0 || s.Outages == 0 || s.Sent != events {
		r.Errorf("after an outage with one attempt allowed: %+v", s)
	}
}

func stoppedBetween[TX any](r *rig[TX]) {
	const events = 50
	r.fill(events)
	p := &publisher{}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	confirmed := 0
	probe := func(point string) {
		if point != "relay.published" {
			return
		}
		if confirmed++; confirmed == 17 {
			cancel() // before the settlement begins
		}
	}
	first := relay.New(r.Relay, p, relay.Config{Name: "first", Batch: 1, Workers: 1, Probe: probe, Poll: 10 * time.Millisecond})
	r.must(first.Run(ctx))
	if n := p.count(); n < 17 || n == events {
		r.Fatalf("%d events were sent before the stop, want 17 or a few more", n)
	}
	second := relay.New(r.Relay, p, relay.Config{Name: "second", Poll: 10 * time.Millisecond})
	end := r.works(second.Run)
	r.comes("the others", func() bool { return p.count() >= events && first.Stats().Sent+second.Stats().Sent >= events })
	end()
	p.once(r, events)
}

// oneBatch is a source with some messages, each of which comes once.
type oneBatch struct {
	mu    sync.Mutex
	batch []inbox.Delivery
}

func (o *oneBatch) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	o.mu.Lock()
	n := min(most, len(o.batch))
	some := o.batch[:n]
	o.batch = o.batch[n:]
	o.mu.Unlock()
	if n == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return some, nil
}

func acknowledgedAfterwards[TX any](r *rig[TX]) {
	var mu sync.Mutex
	var acked []string
	messages := &oneBatch{}
	broken := errors.New("out of stock")
	good, bad, worse, fine := order("good"), order("bad"), order("worse"), order("fine")
	for _, e := range []convergo.Event{event(good, 1), event(bad, 1), event(bad, 2), event(worse, 1), event(fine, 1)} {
		messages.batch = append(messages.batch, inbox.Delivery{Event: e, Attempt: 1, Ack: func(ctx context.Context) error {
			n, err := r.Value(ctx, e.Aggregate.ID)
			if err != nil {
				return err
			}
			blocked := map[convergo.Aggregate]bool{}
			if err := r.Store.Update(ctx, func(ctx context.Context, tx TX) (err error) {
				blocked, err = r.Parking.Blocked(ctx, tx, "stock", []convergo.Aggregate{e.Aggregate})
				return err
			}); err != nil {
				return err
			}
			if n != 1 && !blocked[e.Aggregate] {
				r.Errorf("%s was acknowledged before it was stored", e.Key)
			}
			mu.Lock()
			defer mu.Unlock()
			acked = append(acked, string(e.Key))
			return nil
		}, Return: func(context.Context, time.Duration) error { return fmt.Errorf("%s was given back", e.Key) }})
	}
	want := len(messages.batch)
	c := inbox.New(r.Inbox, r.Parking, messages, inbox.Config{Consumer: "stock", Backoff: convergo.Backoff{Base: time.Hour}})
	c.Handle("OrderChanged", func(ctx context.Context, tx TX, e convergo.Event) error {
		switch e.Aggregate.ID {
		case "bad":
			return broken
		case "worse":
			return convergo.Permanent(broken)
		}
		return r.Add(ctx, tx, e.Aggregate.ID, 1)
	})
	end := r.works(c.Run)
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	r.comes("all acknowledgements", func() bool { return count() >= want })
	end()
	slices.Sort(acked)
	if n := len(slices.Compact(acked)); n != want {
		r.Errorf("acknowledged: %v", acked)
	}
}
