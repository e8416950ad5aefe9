package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

const (
	// A reader keeps at most so many messages of a partition that are not settled, and so many bytes of them.
	mostItems = 512
	mostBytes = 8 << 20
	// commitEvery is the least time between two writes of a position: what was acknowledged since the last one comes again
	// after a crash.
	commitEvery = 10 * time.Millisecond
)

// partition is one that this instance reads. The group's lock guards it.
type partition struct {
	group *group
	n     int
	term  int64
	// subjects that it is read by.
	subjects []convergo.Subject
	cancel   context.CancelFunc
	ended    sync.WaitGroup
	dirty    chan struct{} // the position has moved
	room     chan struct{} // an item has left

	lost         bool // another has it, or has had it
	closed       bool
	leaving      bool // nothing more is handed out
	leavingSince time.Time
	released     bool      // while leaving: everything is settled and noted
	claimed      bool      // the position is known and ours
	paused       time.Time // nothing is handed out until then
	items        []*item   // in the order of the stream; from the first that is not done
	bytes        int
	out          int      // of items
	done         position // as far as everything is done
	stored       position // as it is in the bucket
	revision     uint64   // of stored
	read         position // the last message that was read
	from         time.Time
	deaths       int // of earlier readers, since the position moved
}

type itemState uint8

const (
	waiting itemState = iota
	handedOut
	settled
)

type item struct {
	seq       uint64
	at        int64
	size      int
	event     convergo.Event
	malformed error
	state     itemState
	attempt   int
	since     time.Time // when it was handed out
	holder    *source
}

// begin makes the partition ours, reads it, and notes how far it is done. The caller holds the lock.
func (g *group) begin(n int, term int64, subjects []convergo.Subject) *partition {
	ctx, cancel := context.WithCancel(g.ctx)
	p := &partition{
		group: g, n: n, term: term, subjects: subjects, cancel: cancel, dirty: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	p.ended.Go(func() { p.run(ctx) })
	return p
}

// end lets go of the partition; what was handed out and is not settled comes to another. The caller holds the lock.
func (p *partition) end() {
	p.closed = true
	p.group.out -= p.out
	p.items, p.out = nil, 0
	p.cancel()
}

// by names this reading of the partition in the position.
func (p *partition) by() string { return fmt.Sprintf("%s/%d", p.group.id, p.term) }

func (p *partition) run(ctx context.Context) {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		err := p.claim(ctx)
		if err == nil {
			break
		}
		p.group.broker.cfg.Log.Debug("nats broker: position", "consumer", p.group.consumer, "partition", p.n, "error", err)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() == nil {
		p.ended.Go(func() { p.commit(ctx) })
		p.readAll(ctx)
	}
}

// claim writes the position again as ours: from then on its earlier reader cannot move it.
func (p *partition) claim(ctx context.Context) error {
	b := p.group.broker
	at, revision, err := b.readPosition(ctx, p.group.consumer, p.n)
	if err != nil {
		return err
	}
	deaths := at.Deaths
	if at.By != "" && at.By != p.by() {
		deaths++
	}
	mine := at
	mine.By, mine.Deaths = p.by(), deaths
	if revision, err = b.write(ctx, positionKey(p.group.consumer, p.n), mine, revision); err != nil {
		return err
	}
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	p.done, p.stored, p.read, p.revision, p.deaths, p.claimed = mine, mine, mine, revision, deaths, true
	return nil
}

// commit writes the position when it has moved.
func (p *partition) commit(ctx context.Context) {
	pace := time.NewTicker(commitEvery)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.dirty:
		}
		for err := p.note(ctx); err != nil && ctx.Err() == nil; err = p.note(ctx) {
			if errors.Is(err, errConflict) {
				p.lose()
				return
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
}

// note stores the position, and when the partition should go and nothing of it is being worked on, that nobody holds it.
func (p *partition) note(ctx context.Context) error {
	if err := p.store(ctx, false); err != nil {
		return err
	}
	p.group.mu.Lock()
	leave := p.leaving && !p.released && p.idle()
	p.group.mu.Unlock()
	if !leave {
		return nil
	}
	if err := p.store(ctx, true); err != nil {
		return err
	}
	p.group.mu.Lock()
	p.released = p.leaving
	p.group.mu.Unlock()
	p.group.wake()
	return nil
}

// store writes the position; errConflict means that the partition is another's.
func (p *partition) store(ctx context.Context, release bool) error {
	g := p.group
	g.mu.Lock()
	at, revision := p.done, p.revision
	moved := at.Seq != p.stored.Seq
	at.Deaths = p.stored.Deaths
	skip := !p.claimed || !moved && !release
	g.mu.Unlock()
	if skip {
		return nil
	}
	at.By = p.by()
	if moved {
		at.Deaths = 0
	}
	if release {
		at.By = ""
	}
	key := positionKey(g.consumer, p.n)
	now, err := g.broker.write(ctx, key, at, revision)
	if errors.Is(err, errConflict) {
		// Perhaps our last write was stored and its answer lost.
		found, is, readErr := g.broker.readPosition(ctx, g.consumer, p.n)
		if readErr != nil {
			return readErr
		}
		if found.By != p.by() || is == revision {
			return errConflict
		}
		now, err = g.broker.write(ctx, key, at, is)
	}
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p.stored, p.revision = at, now
	return nil
}

// lose is told that another has the partition.
func (p *partition) lose() {
	p.group.mu.Lock()
	p.lost = true
	p.group.mu.Unlock()
	p.group.broker.cfg.Log.Warn("nats broker: partition lost: this instance was not heard of for its lease", "consumer", p.group.consumer, "partition", p.n)
	p.group.wake()
}

// giveBack notes the position and that nobody holds it.
func (p *partition) giveBack(ctx context.Context) error {
	p.group.mu.Lock()
	if !p.closed {
		p.end()
	}
	p.group.mu.Unlock()
	p.ended.Wait()
	if err := p.store(ctx, true); err != nil && !errors.Is(err, errConflict) {
		return err
	}
	return nil
}

// idle tells that nothing is being worked on and everything is noted. The caller holds the lock.
func (p *partition) idle() bool { return p.out == 0 && p.done.Seq == p.stored.Seq }

// take hands out up to most messages to s; due is when there may be more without any event, zero when there will not. The
// caller holds the lock.
func (p *partition) take(s *source, most int, now time.Time) (got []inbox.Delivery, due time.Time) {
	if p.closed || p.leaving || p.lost {
		return nil, time.Time{}
	}
	limit := p.group.broker.cfg.AckWait
	for _, i := range p.items {
		if i.state != handedOut {
			continue
		}
		if left := i.since.Add(limit); left.After(now) {
			due = earlier(due, left)
			if i.holder != s { // one source at a time, or an aggregate's events could overtake each other
				return nil, due
			}
		} else {
			p.wait(i)
		}
	}
	if p.paused.After(now) {
		return nil, earlier(due, p.paused)
	}
	for _, i := range p.items {
		if len(got) == most {
			break
		}
		if i.state == waiting {
			i.state, i.since, i.holder = handedOut, now, s
			i.attempt++
			p.out++
			p.group.out++
			got = append(got, p.delivery(i))
			due = earlier(due, now.Add(limit))
		}
	}
	return got, due
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// wait makes an item that is out one to be handed out again. The caller holds the lock.
func (p *partition) wait(i *item) {
	i.state, i.holder = waiting, nil
	p.out--
	p.group.out--
}

func (p *partition) delivery(i *item) inbox.Delivery {
	return inbox.Delivery{
		Event: i.event, Malformed: i.malformed, Attempt: i.attempt,
		Ack:    func(context.Context) error { p.ack(i); return nil },
		Return: func(_ context.Context, delay time.Duration) error { p.takeBack(i, delay); return nil },
	}
}

// ack notes that a message is done with. When the partition is not ours any more it comes again, to another.
func (p *partition) ack(i *item) {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.closed || i.state == settled {
		return
	}
	if i.state == handedOut {
		full := g.out >= g.broker.cfg.MaxAckPending
		p.wait(i)
		if full || (p.out == 0 && g.sources.Load() > 1) {
			g.signal() // others may go on
		}
	}
	i.state = settled
	if p.leaving {
		poke(p.dirty)
	}
	moved := 0
	for ; moved < len(p.items) && p.items[moved].state == settled; moved++ {
		p.done.Seq, p.done.At = p.items[moved].seq, p.items[moved].at
		p.bytes -= p.items[moved].size
	}
	if moved == 0 {
		return
	}
	p.items = p.items[moved:]
	p.deaths = 0
	poke(p.dirty)
	poke(p.room)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// takeBack makes the message due after the delay. Until then nothing of the partition is handed out: what comes behind may be
// of its aggregate.
func (p *partition) takeBack(i *item, delay time.Duration) {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.closed || i.state != handedOut {
		return
	}
	p.wait(i)
	if until := time.Now().Add(delay); delay > 0 && until.After(p.paused) {
		p.paused = until
	}
	g.signal()
	if p.leaving {
		poke(p.dirty)
	}
}
