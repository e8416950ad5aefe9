package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// instanceLaws are what several instances of everything on one database need. Where writers run one after another most of
// them hold by themselves; where rows are locked each is a trap of its own.
func instanceLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"two transactions are under way at once where RowLocks says so, and nowhere else", rowLocksAreDeclared[TX]},
		{"a deadlock's victim runs its function again, and nothing of the first run is left", deadlockOfRows[TX]},
		{"a deadlock in a savepoint, whose error the function swallows, is one all the same", swallowedDeadlock[TX]},
		{"an Update that the database has begin again too often is an outage, and only that", givenUp[TX]},
		{"a message whose transaction the database has begin again too often spends no attempt", unlucky[TX]},
		{"two batches that mark the same messages in opposite order both commit", deadlockOfMarks[TX]},
		{"of an aggregate's versions that come at the same time the fresh ones go up", versionsGoUp[TX]},
		{"a queue is worked off by one instance at a time, and the second sees what the first did", drainedOnce[TX]},
		{"a queue in a transaction is as its last owner left it: not due, held, or gone", queueInTransaction[TX]},
		{"a message that was done with meanwhile is not buried", notBuriedTwice[TX]},
		{"of many who bury a message at once, one does", oneBuries[TX]},
		{"of many relays that make delayed events pending at once, none makes one twice (B03)", promotedOnce[TX]},
		{"of a group never two calls are started, whoever claims and whoever adds", groupsAmongMany[TX]},
		{"a call cannot overtake an earlier one of its group whose transaction commits later", groupInCommitOrder[TX]},
	}
}

// meet lets two functions wait for one another, where both can be under way at once: on a store that locks rows. Nobody
// waits for long, so that a store that lets one of them wait fails no law by it.
type meet struct {
	here [2]chan struct{}
	once [2]sync.Once
	real bool
}

func newMeet(real bool) *meet {
	return &meet{here: [2]chan struct{}{make(chan struct{}), make(chan struct{})}, real: real}
}

// arrive is called by the i-th of the two. It waits at its first call only.
func (m *meet) arrive(i int) {
	m.once[i].Do(func() {
		close(m.here[i])
		if m.real {
			await(m.here[1-i], 5*time.Second)
		}
	})
}

// await tells whether c was closed, or had something, within most.
func await[T any](c <-chan T, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// rowLocksAreDeclared: without it a backend that forgets to say so passes the laws below and shows nothing.
func rowLocksAreDeclared[TX any](r *rig[TX]) {
	begun, second := make(chan struct{}), make(chan error, 1)
	var once, inner sync.Once
	atOnce := false
	r.update(func(ctx context.Context, tx TX) error {
		if err := r.Add(ctx, tx, "first", 1); err != nil {
			return err
		}
		once.Do(func() {
			go func() {
				second <- r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
					inner.Do(func() { close(begun) })
					return r.Add(ctx, tx, "second", 1)
				})
			}()
			most := 2 * time.Second
			if !r.RowLocks {
				most = 300 * time.Millisecond
			}
			atOnce = await(begun, most)
		})
		return nil
	})
	r.must(<-second)
	equal(r, "two at once", atOnce, r.RowLocks)
}

// deadlockOfRows: the first adds to a and then b, the second to b and then a, and neither goes on before both have begun.
func deadlockOfRows[TX any](r *rig[TX]) {
	woken := r.countWakes(r.OnEvents)
	m := newMeet(r.RowLocks)
	var runs, hooks atomic.Int64
	var group sync.WaitGroup
	rows := [2]string{"a", "b"}
	r.update(func(ctx context.Context, tx TX) error { // locks of rows that are there
		return errors.Join(r.Add(ctx, tx, "a", 100), r.Add(ctx, tx, "b", 100))
	})
	for i := range 2 {
		group.Go(func() {
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				runs.Add(1)
				if h, ok := any(tx).(convergo.AfterCommit); ok {
					h.AfterCommit(func() { hooks.Add(1) })
				}
				fresh, err := r.Outbox.Insert(ctx, tx, []convergo.Event{event(order(rows[i]), 1)})
				if err == nil && !fresh[0] {
					err = errors.New("an event of the aborted run is left")
				}
				if err == nil {
					err = r.Add(ctx, tx, rows[i], 1)
				}
				if err != nil {
					return err
				}
				m.arrive(i)
				return r.Add(ctx, tx, rows[1-i], 10)
			})
			if err != nil {
				r.Errorf("update %d: %v", i, err)
			}
		})
	}
	group.Wait()
	equal(r, "a", r.value("a"), 111)
	equal(r, "b", r.value("b"), 111)
	if r.RowLocks && runs.Load() < 3 {
		r.Errorf("the functions ran %d times in all: no deadlock came about, so this law has shown nothing", runs.Load())
	}
	var tx TX
	if _, ok := any(tx).(convergo.AfterCommit); ok || hooks.Load() > 0 {
		equal(r, "functions run after the commits", hooks.Load(), 2)
	}
	if n := woken.Load(); n < 1 || n > 2 {
		r.Errorf("%d wake-ups for two commits", n)
	}
	leases := r.lease("a")
	equal(r, "events", len(r.claim(leases, 10, 0).Events), 2)
}

// swallowedDeadlock: a handler met the deadlock, and its failure is none of its own. On some databases the whole transaction
// is gone then, and what the function does next would be done outside of any.
func swallowedDeadlock[TX any](r *rig[TX]) {
	m := newMeet(r.RowLocks)
	var group sync.WaitGroup
	rows := [2]string{"a", "b"}
	r.update(func(ctx context.Context, tx TX) error {
		return errors.Join(r.Add(ctx, tx, "a", 100), r.Add(ctx, tx, "b", 100))
	})
	for i := range 2 {
		group.Go(func() {
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				if err := r.Add(ctx, tx, rows[i], 1); err != nil {
					return err
				}
				m.arrive(i)
				nested := r.Store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
					_ = r.Add(ctx, tx, rows[1-i], 10)
					return nil
				})
				if nested != nil {
					_ = r.Add(ctx, tx, "failures", 1)
				}
				return nil
			})
			if err != nil {
				r.Errorf("update %d: %v", i, err)
			}
		})
	}
	group.Wait()
	equal(r, "a", r.value("a"), 111)
	equal(r, "b", r.value("b"), 111)
	equal(r, "failures recorded", r.value("failures"), 0)
}

// deadlockOfMarks: a message came to both instances of a consumer, and so did another, in the other order.
func deadlockOfMarks[TX any](r *rig[TX]) {
	m := newMeet(r.RowLocks)
	events := [2]convergo.Event{event(order("1"), 1), event(order("2"), 1)}
	var group sync.WaitGroup
	for i := range 2 {
		group.Go(func() {
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				for n, e := range [2]convergo.Event{events[i], events[1-i]} {
					marked, err := r.Inbox.Mark(ctx, tx, consumer, e, true, r.base)
					if err == nil && marked == inbox.Fresh {
						err = r.Add(ctx, tx, string(e.Key), 1)
					}
					if err != nil {
						return err
					}
					if n == 0 {
						m.arrive(i)
					}
				}
				return nil
			})
			if err != nil {
				r.Errorf("batch %d: %v", i, err)
			}
		})
	}
	group.Wait()
	for _, e := range events {
		equal(r, "effects of "+string(e.Key), r.value(string(e.Key)), 1)
		equal(r, "mark in the end", r.mark(consumer, e, false), inbox.Duplicate)
	}
}

// versionsGoUp: readers of one aggregate that should not be there at the same time, each with an event of its own.
func versionsGoUp[TX any](r *rig[TX]) {
	const versions = 24
	a := order("1")
	var mu sync.Mutex
	var fresh []int64
	var group sync.WaitGroup
	for n := range versions {
		group.Go(func() {
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				m, err := r.Inbox.Mark(ctx, tx, consumer, event(a, (n*7)%versions+1), true, r.base)
				if err != nil || m != inbox.Fresh {
					return err
				}
				mu.Lock() // still inside: nobody else can have a fresh version of this aggregate
				defer mu.Unlock()
				fresh = append(fresh, event(a, (n*7)%versions+1).Version)
				return nil
			})
			if err != nil {
				r.Error(err)
			}
		})
	}
	group.Wait()
	for i, v := range fresh {
		if i > 0 && v <= fresh[i-1] {
			r.Errorf("version %d was fresh after %d", v, fresh[i-1])
		}
	}
	if len(fresh) == 0 || fresh[len(fresh)-1] != versions {
		r.Errorf("fresh were %v, want %d as the last", fresh, versions)
	}
}

// drainedOnce: eight instances look for due queues and work them off.
func drainedOnce[TX any](r *rig[TX]) {
	const instances, queues, messages = 8, 12, 6
	for q := range queues {
		for n := range messages {
			r.enqueue(consumer, event(order(fmt.Sprint(q)), n+1))
		}
	}
	var mu sync.Mutex
	applied := map[convergo.Aggregate][]int64{}
	drain := func(a convergo.Aggregate) error {
		var done []int64
		err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
			done = nil
			list, err := r.Parking.Queue(ctx, tx, consumer, a, 2, r.base)
			for _, m := range list {
				if err != nil {
					return err
				}
				var marked inbox.Marked
				marked, err = r.Inbox.Mark(ctx, tx, consumer, m.Event, false, r.base)
				if err == nil && marked != inbox.Fresh {
					err = fmt.Errorf("%s is in the queue although it was done with", m.Event.Key)
				}
				err = errors.Join(err, r.Parking.Dequeue(ctx, tx, consumer, m.Event, r.base))
				done = append(done, m.Event.Version)
			}
			if err != nil || len(done) == 0 {
				return err
			}
			mu.Lock() // still inside: nobody else may be here with this queue
			defer mu.Unlock()
			applied[a] = append(applied[a], done...)
			return nil
		})
		return err
	}
	var group sync.WaitGroup
	for range instances {
		group.Go(func() {
			for r.ctx.Err() == nil {
				due, _, err := r.Parking.Due(r.ctx, consumer, 100, r.base)
				if err != nil {
					r.Error(err)
					return
				}
				if len(due) == 0 {
					return
				}
				for _, a := range due {
					if err := drain(a); err != nil {
						r.Error(err)
						return
					}
				}
			}
		})
	}
	group.Wait()
	for q := range queues {
		equalLists(r, fmt.Sprintf("applied of %d", q), applied[order(fmt.Sprint(q))], 1, 2, 3, 4, 5, 6)
		equal(r, "blocked in the end", r.blocked(consumer, order(fmt.Sprint(q))), false)
	}
}

func queueInTransaction[TX any](r *rig[TX]) {
	a := order("1")
	equal(r, "messages of nobody", len(r.queue(consumer, a, 10, 0)), 0)
	r.enqueue(consumer, event(a, 1), event(a, 2))
	equalLists(r, "due", queuedVersions(r.queue(consumer, a, 10, 0)), 1, 2)
	equal(r, "messages at another consumer", len(r.queue("points", a, 10, 0)), 0)
	r.failMessage(consumer, event(a, 1), 1, time.Minute) // by another instance
	equal(r, "messages before the retry", len(r.queue(consumer, a, 10, time.Minute-time.Microsecond)), 0)
	equalLists(r, "the head alone", queuedVersions(r.queue(consumer, a, 10, time.Minute)), 1)
	r.update(func(ctx context.Context, tx TX) error { // what this transaction did itself
		f := inbox.Failure{Event: event(a, 1), Attempts: 2, Error: "x", Place: "handler"}
		buried, err := r.Parking.Bury(ctx, tx, consumer, f, true, r.base)
		equal(r, "buried", buried, true)
		list, again := r.Parking.Queue(ctx, tx, consumer, a, 10, r.base.Add(time.Hour))
		equal(r, "messages while it is held", len(list), 0)
		return errors.Join(err, again)
	})
	equal(r, "messages of one that is held", len(r.queue(consumer, a, 10, 1000*time.Hour)), 0)
}

func notBuriedTwice[TX any](r *rig[TX]) {
	a, b := order("1"), order("2")
	bury := func(e convergo.Event) (buried bool) {
		r.update(func(ctx context.Context, tx TX) (err error) {
			f := inbox.Failure{Event: e, Attempts: 2, Error: "x", Place: "handler"}
			buried, err = r.Parking.Bury(ctx, tx, consumer, f, true, r.base)
			return err
		})
		return buried
	}
	r.failMessage(consumer, event(a, 1), 1, 0)
	r.enqueue(consumer, event(a, 2))
	r.mark(consumer, event(a, 1), false) // another instance has applied it
	equal(r, "buried", bury(event(a, 1)), false)
	equal(r, "dead letters", len(r.letters(consumer)), 0)
	equalLists(r, "queue", queuedVersions(r.queue(consumer, a, 10, 0)), 1)
	r.update(func(ctx context.Context, tx TX) error {
		return r.Parking.Dequeue(ctx, tx, consumer, event(a, 1), r.base)
	})
	equalLists(r, "queue after its caller took it out", queuedVersions(r.queue(consumer, a, 10, 0)), 2)
	other := event(a, 1)
	other.Payload = []byte("another payload under the same key")
	equal(r, "another payload: buried", bury(other), true)
	equal(r, "the first time", bury(event(b, 1)), true)
	equal(r, "the second time", bury(event(b, 1)), false)
	equal(r, "dead letters in the end", len(r.letters(consumer)), 2)
}

func oneBuries[TX any](r *rig[TX]) {
	e := event(order("1"), 1)
	r.failMessage(consumer, e, 1, 0)
	var group sync.WaitGroup
	var letters atomic.Int64
	for range 12 {
		group.Go(func() {
			buried := false
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) (err error) {
				f := inbox.Failure{Event: e, Attempts: 2, Error: "x", Place: "handler"}
				buried, err = r.Parking.Bury(ctx, tx, consumer, f, true, r.base)
				return err
			})
			if err != nil {
				r.Error(err)
			}
			if buried {
				letters.Add(1)
			}
		})
	}
	group.Wait()
	equal(r, "times that it was buried", letters.Load(), 1)
	equal(r, "dead letters", len(r.letters(consumer)), 1)
}

// promotedOnce: a relay that stood still claims with leases that another has now, and all of them see the same due events.
func promotedOnce[TX any](r *rig[TX]) {
	const relays, orders, each = 8, 20, 5
	var list []convergo.Event
	for o := range orders {
		for n := range each { // written last, due first
			e := event(order(fmt.Sprint(o)), n+1)
			e.DeliverAt = r.base.Add(time.Duration(each-n) * time.Minute)
			list = append(list, e)
		}
	}
	r.insert(list...)
	leases := r.lease("a")
	start := make(chan struct{})
	var group sync.WaitGroup
	for range relays {
		group.Go(func() {
			<-start
			for range 4 {
				if _, err := r.Relay.Claim(r.ctx, leases, 10, r.base.Add(time.Hour)); err != nil {
					r.Error(err)
				}
			}
		})
	}
	close(start)
	group.Wait()
	c := r.claim(leases, 1000, time.Hour)
	equal(r, "events", len(c.Events), len(list))
	last := map[convergo.Aggregate]int64{}
	for _, p := range c.Events {
		if before, ok := last[p.Event.Aggregate]; ok && p.Event.Version != before-1 {
			r.Errorf("%s: version %d after %d, although it is due later", p.Event.Aggregate, p.Event.Version, before)
		}
		last[p.Event.Aggregate] = p.Event.Version
	}
	r.settle(leases, time.Hour, settleSent(c.Events))
	equal(r, "left", len(r.claim(leases, 1000, 2*time.Hour).Events), 0)
}
