package nats

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
)

// group is this instance's part in a consumer: it tells the others that it lives, takes its share of the partitions, and
// gives up what is another's.
//
// An instance writes a new beat every quarter of a lease. It counts its lease from before that write was sent, and trusts it
// for three quarters; another counts it from when it saw the beat, which is later, and waits for all of it. So two never have
// a partition at once, unless one is stopped between looking at its lease and handing out: its position is then refused.
type group struct {
	broker   *Broker
	consumer string
	id       string // of this instance; never used again
	subjects []convergo.Subject
	mine     string // canonical form of subjects

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}
	nudge  chan struct{}
	hint   *nats.Subscription

	// Of the loop alone.
	seen     map[string]sighting
	lastBeat time.Time
	revision uint64    // of the document, the newest that was seen
	bucket   int64     // when the bucket that it is in was made
	behind   time.Time // since when only older ones are seen; zero: not

	joinMu sync.Mutex
	in     bool // join has succeeded

	sources atomic.Int64 // written under the broker's lock

	mu      sync.Mutex
	trusted time.Time // until when our partitions are ours
	failure error     // of the last look at the document
	parts   map[int]*partition
	first   int // partition that the next Fetch begins with
	out     int // deliveries that are not settled
	changed chan struct{}
	left    bool
}

func (b *Broker) newGroup(consumer string, subjects []convergo.Subject) *group {
	g := &group{
		broker: b, consumer: consumer, id: crand.Text(), subjects: subjects, mine: canonical(subjects),
		ended: make(chan struct{}), nudge: make(chan struct{}, 1), seen: map[string]sighting{}, parts: map[int]*partition{},
		changed: make(chan struct{}),
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// hintSubject is where instances tell each other to look at once. Nothing depends on it.
func (g *group) hintSubject() string { return "convergo." + g.broker.cfg.Stream + "." + g.consumer }

// joining makes this instance a member if it is none.
func (g *group) joining(ctx context.Context) error {
	g.joinMu.Lock()
	defer g.joinMu.Unlock()
	if g.in {
		return nil
	}
	if err := g.join(ctx); err != nil {
		g.cancel()
		return err
	}
	g.in = true
	return nil
}

// join makes this instance a member and begins its loop.
func (g *group) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*g.broker.cfg.Timeout)
	defer cancel()
	if err := g.broker.insist(ctx, g.step); err != nil {
		return err
	}
	hint, err := g.broker.conn.Subscribe(g.hintSubject(), func(*nats.Msg) { g.wake() })
	if err != nil {
		return err
	}
	g.hint = hint
	go g.run()
	return nil
}

func (g *group) run() {
	defer close(g.ended)
	look := time.NewTicker(min(g.broker.cfg.Lease/8, time.Second))
	defer look.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-look.C:
		case <-g.nudge:
		}
		err := g.step(g.ctx)
		if err != nil && g.ctx.Err() == nil {
			g.broker.suspect()
			g.broker.cfg.Log.Debug("nats broker: the group cannot be read or written", "consumer", g.consumer, "error", err)
		}
		g.mu.Lock()
		g.failure = err
		if time.Now().After(g.trusted) {
			g.signal() // those that wait are told
		}
		g.mu.Unlock()
	}
}

func (g *group) wake() {
	select {
	case g.nudge <- struct{}{}:
	default:
	}
}

// signal makes every Fetch that waits look again. The caller holds the lock.
func (g *group) signal() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// step looks at the document, changes what is to be changed, and does what it says.
func (g *group) step(ctx context.Context) error {
	const tries = 20
	for try := range tries {
		if try > 0 {
			pause(ctx, nil, time.Now().Add(time.Duration(1+try*rand.IntN(5))*time.Millisecond))
		}
		g.renew()
		d, revision, err := g.broker.readDocument(ctx, g.consumer)
		if err != nil {
			return err
		}
		now := time.Now()
		if g.old(revision, now) {
			continue
		}
		g.look(d, now)
		next, changed, beat := g.plan(d, now)
		if changed || beat {
			written, err := g.broker.write(ctx, g.consumer+"."+groupKey, next, revision)
			if errors.Is(err, errConflict) {
				continue
			}
			if err != nil {
				return err
			}
			g.lastBeat, g.revision = now, written
			d = next
			g.mu.Lock()
			g.trusted = now.Add(g.broker.cfg.Lease * 3 / 4)
			g.mu.Unlock()
		}
		g.adopt(d)
		if changed {
			_ = g.broker.conn.Publish(g.hintSubject(), nil) // only a hint
		}
		return nil
	}
	return fmt.Errorf("group of %s: %d times %w", g.consumer, tries, errConflict)
}

// old tells whether a replica that lags has answered with a document older than one that was seen. When that goes on for a
// lease the bucket has lost its end, or is another one, and the document counts.
func (g *group) old(revision uint64, now time.Time) bool {
	if revision >= g.revision {
		g.behind, g.revision = time.Time{}, revision
		return false
	}
	if g.behind.IsZero() {
		g.behind = now
	}
	if now.Sub(g.behind) < g.broker.cfg.Lease {
		return true
	}
	g.behind, g.revision = time.Time{}, revision
	return false
}

// look notes signs of life.
func (g *group) look(d document, now time.Time) {
	for id, m := range d.Members {
		if s, ok := g.seen[id]; !ok || s.beat != m.Beat {
			g.seen[id] = sighting{m.Beat, now}
		}
	}
	maps.DeleteFunc(g.seen, func(id string, _ sighting) bool { _, there := d.Members[id]; return !there })
}

// plan is the document as it should be. changed says that the others should know at once; beat that a sign of life is due.
func (g *group) plan(d document, now time.Time) (next document, changed, beat bool) {
	next = d.clone()
	for id, s := range g.seen {
		if id != g.id && now.Sub(s.at) > g.broker.cfg.Lease {
			delete(next.Members, id)
			changed = true
		}
	}
	if all := widened(next.Subjects, g.subjects); len(all) > len(next.Subjects) {
		next.Subjects, changed = all, true
	}
	reads := canonical(next.Subjects)
	me, known := next.Members[g.id]
	changed = changed || !known || me.Subjects != reads
	me.Beat++
	me.Subjects = reads
	next.Members[g.id] = me
	for len(next.Owners) < g.broker.cfg.Partitions {
		next.Owners = append(next.Owners, owner{})
	}
	for n, want := range assign(len(next.Owners), next.active()) {
		o := &next.Owners[n]
		if _, alive := next.Members[o.ID]; o.ID != "" && !alive {
			o.ID, changed = "", true
		}
		if o.ID == g.id && g.yields(n, want != g.id, reads) {
			o.ID, changed = "", true
		}
		if o.ID == "" && want == g.id {
			o.ID, o.Term, changed = g.id, o.Term+1, true
		}
	}
	return next, changed, now.Sub(g.lastBeat) >= g.broker.cfg.Lease/4
}

// yields tells whether a partition of ours can be given to another now: nothing of it is being worked on, or that has taken
// too long. While it should go nothing more of it is handed out. One that is read by fewer subjects than reads goes too, and is
// taken again.
func (g *group) yields(n int, should bool, reads string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.parts[n]
	if p == nil {
		return should
	}
	should = should || canonical(p.subjects) != reads
	if p.leaving != should {
		p.leaving, p.leavingSince, p.released = should, time.Now(), false
		poke(p.dirty)
		g.signal()
	}
	return should && (p.released || time.Since(p.leavingSince) > g.broker.cfg.AckWait)
}

// adopt ends the partitions that are not ours any more and begins those that are.
func (g *group) adopt(d document) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, o := range d.Owners {
		p := g.parts[n]
		if p != nil && (p.lost || o.ID != g.id || o.Term != p.term) {
			p.end()
			delete(g.parts, n)
			p = nil
		}
		if p == nil && o.ID == g.id && g.ctx.Err() == nil {
			g.parts[n] = g.begin(n, o.Term, d.Subjects)
		}
	}
	g.signal()
}

// leave gives everything back and ends the group. What was acknowledged is noted; what was not comes to another instance.
func (g *group) leave() error {
	g.mu.Lock()
	if g.left {
		g.mu.Unlock()
		return nil
	}
	g.left = true
	for _, p := range g.parts {
		p.leaving = true
	}
	parts := maps.Clone(g.parts)
	g.signal()
	g.mu.Unlock()
	g.cancel()
	g.joinMu.Lock()
	if g.in {
		<-g.ended
	}
	g.joinMu.Unlock()
	if g.hint != nil {
		_ = g.hint.Unsubscribe() // fails when the connection is closed
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.broker.cfg.Timeout)
	defer cancel()
	var failures []error
	var mu sync.Mutex
	var giving sync.WaitGroup
	for _, p := range parts {
		giving.Go(func() {
			if err := p.giveBack(ctx); err != nil {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
			}
		})
	}
	giving.Wait()
	failures = append(failures, g.resign(ctx))
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("nats broker: consumer %s: its part is another's only when its lease ends: %w", g.consumer, convergo.Unreachable(err))
	}
	return nil
}

// resign takes this instance out of the document.
func (g *group) resign(ctx context.Context) error {
	for {
		d, revision, err := g.broker.readDocument(ctx, g.consumer)
		if err != nil {
			return err
		}
		d = d.clone()
		delete(d.Members, g.id)
		for n := range d.Owners {
			if d.Owners[n].ID == g.id {
				d.Owners[n].ID = ""
			}
		}
		switch _, err := g.broker.write(ctx, g.consumer+"."+groupKey, d, revision); {
		case err == nil:
			return g.broker.conn.Publish(g.hintSubject(), nil)
		case !errors.Is(err, errConflict) || ctx.Err() != nil:
			return err
		}
	}
}
