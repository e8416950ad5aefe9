package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// member is this Broker's place in the consumer group of one consumer. It owns the queues whose locks it holds.
//
// A queue has one reader: its broker locks it for one client id. The lock is renewed every quarter of its term, and believed
// for three quarters of it from before the request, by the monotonic clock, so that a process that was stopped for longer
// hands out nothing before it asked again. Losing the connection ends all of a broker's locks here, for a broker keeps them in
// memory only. A queue that another instance shall have is given back when what was delivered is acknowledged: position
// first, lock second, so that the other one begins where this one ended.
type member struct {
	broker   *Broker
	consumer string
	group    string
	acked    chan struct{} // some position has changed
	kick     chan struct{} // look at the queues now

	asked map[partition]bool // locks that this run has asked for; the run's own

	committing sync.Mutex // one position is stored at a time: an older one never overtakes

	mu      sync.Mutex
	closed  bool
	sources map[*source]bool
	wanted  subscription
	queues  map[partition]*queue
	changed chan struct{} // closed, and replaced, when there may be something for Fetch
	err     error         // the outage that there is, if any
	outages int           // how often one was noted
	fetched time.Time
	beaten  time.Time // the last heartbeat that counts
	losses  int       // how often brokers were lost
	stop    context.CancelFunc
	done    chan struct{} // of the run; nil when none is on
}

func newMember(b *Broker, consumer string) *member {
	return &member{
		broker: b, consumer: consumer, group: b.cfg.Prefix + consumer, acked: make(chan struct{}, 1), kick: make(chan struct{}, 1),
		asked: map[partition]bool{}, sources: map[*source]bool{}, queues: map[partition]*queue{}, changed: make(chan struct{}),
	}
}

func (m *member) add(s *source, wanted subscription) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sources) > 0 {
		wanted = maps.Clone(wanted)
		maps.Copy(wanted, m.wanted) // of the others
	}
	m.sources[s], m.wanted, m.beaten = true, wanted, time.Time{}
	m.rebalance()
}

// remove takes a source away. With the last one the queues are given back; they are taken again when a new one fetches.
func (m *member) remove(s *source) {
	m.mu.Lock()
	delete(m.sources, s)
	for _, q := range m.queues {
		for _, f := range q.out {
			if f.holder == s {
				f.holder, f.returned = nil, true
			}
		}
	}
	m.signal()
	last := len(m.sources) == 0
	m.mu.Unlock()
	if last {
		m.halt()
	}
}

// shut ends the membership.
func (m *member) shut() {
	m.mu.Lock()
	m.closed = true
	m.signal()
	m.mu.Unlock()
	m.halt()
}

// halt ends the run, if there is one, and waits until all is given back.
func (m *member) halt() {
	m.mu.Lock()
	stop, done := m.stop, m.done
	m.mu.Unlock()
	if done != nil {
		stop()
		<-done
	}
}

// signal wakes all who wait in Fetch. The caller holds the lock.
func (m *member) signal() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// rebalance makes the run look at the queues now.
func (m *member) rebalance() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// outage is the number of outages noted so far. When there is one the brokers are asked again now: who begins to fetch is
// told of what is, not of what was.
func (m *member) outage() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		m.rebalance()
	}
	return m.outages
}

// take hands out up to most deliveries of all queues. When there is none it tells for how long, or until which change, to
// wait, or of an outage that was noted after the first so many.
func (m *member) take(s *source, most, outages int) ([]inbox.Delivery, <-chan struct{}, time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !m.sources[s] {
		return nil, nil, 0, errClosed
	}
	now := time.Now()
	m.fetched = now
	if m.done == nil {
		ctx, stop := context.WithCancel(context.Background())
		m.stop, m.done = stop, make(chan struct{})
		go m.run(ctx)
	}
	wait := m.broker.cfg.Idle / 4
	var all []inbox.Delivery
	for _, q := range m.queues { // in the random order of a map: no queue is preferred
		taken, again := q.take(s, most-len(all), now)
		for _, f := range taken {
			all = append(all, m.delivery(q, f))
		}
		if again > 0 {
			wait = min(wait, again)
		}
	}
	if len(all) == 0 && m.err != nil && m.outages > outages {
		return nil, nil, 0, m.err
	}
	return all, m.changed, wait, nil
}

var errMoved = errors.New("its queue went to another instance, or the connection was lost: it is delivered again")

func (m *member) ack(q *queue, f *flight) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.done {
		return nil
	}
	if q.gone {
		return fmt.Errorf("acknowledge for %s: %w", m.consumer, errMoved)
	}
	q.finish(f)
	m.idle(q)
	select {
	case m.acked <- struct{}{}:
	default:
	}
	return nil
}

func (m *member) giveBack(q *queue, f *flight, delay time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.done || q.gone || f.returned {
		return nil
	}
	f.holder, f.returned = nil, true
	if until := time.Now().Add(delay); delay > 0 && until.After(q.suspended) {
		q.suspended = until
	}
	m.idle(q)
	return nil
}

// idle tells who waits for it when nobody works on messages of a queue any more.
func (m *member) idle(q *queue) {
	if q.open() {
		return
	}
	m.signal()
	if q.leaving {
		m.rebalance()
	}
}

// wantsMore tells from where on a queue shall be read, when it shall.
func (m *member) wantsMore(q *queue) (ctx context.Context, from int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q.gone || q.leaving || len(q.ready) >= m.broker.cfg.Prefetch || q.bytes >= readyBytes {
		return nil, 0, false
	}
	q.interrupt()
	ctx, q.interrupt = context.WithCancel(q.ctx)
	return ctx, q.next, true
}

// arrived adds what was read. An answer to a request from elsewhere than where the queue is now is an old one.
func (m *member) arrived(q *queue, from int64, got pulled, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q.gone || from != q.next {
		return
	}
	if err != nil {
		m.note(err)
		return
	}
	for _, message := range got.messages {
		if message.queueOffset >= from {
			q.ready = append(q.ready, message)
			q.bytes += len(message.body)
		}
	}
	q.next = got.next
	m.signal()
}

// lose ends a queue. The caller holds the lock.
func (m *member) lose(q *queue) {
	q.gone = true
	q.stop()
	delete(m.queues, q.partition)
	m.signal()
}

// disconnected is told which brokers were lost.
func (m *member) disconnected(brokers []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range m.queues {
		if slices.Contains(brokers, q.Broker) {
			m.lose(q)
		}
	}
	m.losses++
	m.beaten = time.Time{} // the brokers forgot this client with the connection
	m.rebalance()
}

// store tells the brokers the positions that they do not know.
func (m *member) store(ctx context.Context) {
	m.committing.Lock()
	defer m.committing.Unlock()
	m.mu.Lock()
	var all []*queue
	for _, q := range m.queues {
		all = append(all, q)
	}
	m.mu.Unlock()
	for _, q := range all {
		if err := m.storeOne(ctx, q); err != nil {
			m.broker.cfg.Log.Debug("a position is not stored; it will be with the next one", "consumer", m.consumer, "topic", q.Topic,
				"queue", q.Queue, "error", err)
		}
	}
}

func (m *member) storeOne(ctx context.Context, q *queue) error {
	m.mu.Lock()
	position, known, gone := q.position(), q.committed, q.gone
	m.mu.Unlock()
	if gone || position == known {
		return nil
	}
	if err := m.storeOffset(ctx, q.partition, position); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q.committed = position
	return nil
}

// note notes an outage for those who fetch. The caller holds the lock.
func (m *member) note(err error) {
	m.err = convergo.Unreachable(err)
	m.outages++
	m.signal()
}
