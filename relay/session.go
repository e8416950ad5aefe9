package relay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

var (
	errLeaseGone = errors.New("the lease of a lane is gone")
	errStopping  = errors.New("the relay stops")
)

// session is one life of a relay. One goroutine, the loop in run, owns all of its fields and decides everything; what
// takes time (calls of the store, batches) runs beside it and posts what to do next to news. Only trust, pause, hard,
// absent and what is embedded are used by others too.
type session struct {
	*Relay
	owner  string
	ctx    context.Context // ends when the relay should stop
	hard   context.Context // ends when work in flight is given up
	giveUp context.CancelFunc
	stopBy time.Time // when giveUp is due; zero before ctx ended

	hands   *hands
	news    chan func()
	running int // spawned and not back yet

	began   time.Time
	trust   atomic.Int64 // nanoseconds since began until which the leases held may be relied upon
	held    []Lease      // sorted by lane
	share   [convergo.Lanes]int
	leaseAt time.Time // when to renew
	leasing bool
	// owed are lanes that the last balance could not touch because they had events in flight. As soon as those are through the
	// next balance is due, before anything else is claimed: under a slow broker there is always something in flight.
	owed [convergo.Lanes]bool
	// joining: the next call at leaseAt is there to get lanes, and waits for nothing in flight. balanceAt is when one that gives
	// lanes away as well is due.
	joining   bool
	balanceAt time.Time
	takeAt    time.Time // no call of Lease for lanes that have no owner before
	looking   bool      // a call of Claim is under way that is for nothing else
	toldAt    time.Time // when the last claim began that tells whether any lane has none
	// pause: a balance waits for the batches in flight. They end after what they are publishing now.
	pause atomic.Bool
	// balancing: a lease call that may give lanes away is under way, or had no answer. Until the store has told which leases
	// still stand, nothing may be claimed.
	balancing   bool
	distrusted  bool // trust ran out, and that has been dealt with
	leaseFaults int

	workers     []worker
	claims      int                  // under way
	asked       [convergo.Lanes]bool // lanes of those claims
	claimNotBy  time.Time            // no claim before, because the store failed
	claimFaults int
	perLane     int
	pace        convergo.Backoff // between calls of a store that fails

	outage      bool
	outageTries int
	probeAt     time.Time
	suspectAt   time.Time // no suspect is taken for a probe before

	absent    absences
	hastening bool // a call of Hasten is under way
}

// worker is a place for one batch in flight. Its share of the lanes is its own, so that while one worker waits for the
// broker another settles.
type worker struct {
	batch    *batch    // nil when none is in flight
	claiming bool      // a claim for it is under way
	dirty    bool      // there may be events
	due      time.Time // when an event becomes due, by Config.Now; zero when none is known
	looked   time.Time // last claim
}

func (w worker) idle() bool { return w.batch == nil && !w.claiming }

// batch is claimed events of one worker's lanes, on their way.
type batch struct {
	worker int
	leases []Lease // of the lanes of events
	events []Pending
	probe  bool // the one event that finds out whether an outage is over
	doubt  bool // and it is a suspect's: that it fails says little about the broker
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (s *session) run() {
	defer close(s.hands.quit)
	defer s.giveUp()
	for s.ctx.Err() == nil || s.running > 0 {
		now := s.clock()
		s.watch(now)
		s.maybeLease(now)
		s.maybeHasten(now)
		s.maybeClaim(now)
		s.maybeLook(now)
		if s.ctx.Err() == nil || s.running > 0 {
			s.wait()
		}
	}
	s.release()
}

// wait until something happens or the next moment at which something is to be done.
func (s *session) wait() {
	now := s.clock()
	timer := time.NewTimer(max(s.nextMoment(now).Sub(now), 0))
	defer timer.Stop()
	ended, wake, back := s.ctx.Done(), s.wake, s.back
	if s.ctx.Err() != nil {
		ended, wake, back = nil, nil, nil
	}
	select {
	case then := <-s.news:
		s.running--
		then()
	case <-wake:
		s.stir()
	case <-back:
		s.brokerBack()
	case <-ended:
	case <-timer.C:
	}
}

// spawn runs work beside the loop, and in the loop what work returns.
func (s *session) spawn(work func() (then func())) {
	s.running++
	s.hands.do(func() { s.news <- work() })
}

// watch notices that time has run out: for the leases, or for what is in flight at shutdown.
func (s *session) watch(now time.Time) {
	if s.ctx.Err() != nil && s.stopBy.IsZero() {
		s.stopBy = now.Add(s.cfg.ShutdownTimeout)
	}
	if s.stopping(now) {
		s.giveUp()
		s.cancelBatches(errStopping)
	}
	if len(s.held) == 0 || s.distrusted || s.trusted() {
		return
	}
	// Another relay may own these lanes by now, so their work must not go on. They stay in held: the next Lease call tells
	// which of them still stand.
	s.distrusted = true
	s.cancelBatches(errLeaseGone)
	s.count(func(c *Stats) { c.LeaseLosses += int64(len(s.held)) })
	s.trouble("leases ran out before they could be renewed", errLeaseGone, "lanes", len(s.held))
}

func (s *session) stopping(now time.Time) bool { return !s.stopBy.IsZero() && !now.Before(s.stopBy) }

func (s *session) cancelBatches(cause error) {
	for _, w := range s.workers {
		if w.batch != nil {
			w.batch.cancel(cause)
		}
	}
}

// trusted tells whether the leases may be relied upon. Any goroutine may ask.
func (s *session) trusted() bool { return s.clock().Sub(s.began) < time.Duration(s.trust.Load()) }

// nextMoment is when the loop has to act if nothing happens before.
func (s *session) nextMoment(now time.Time) time.Time {
	next := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if s.ctx.Err() != nil {
		if s.hard.Err() == nil {
			sooner(s.stopBy)
		}
		if s.hard.Err() == nil && !s.leasing && s.busy() {
			sooner(s.leaseAt)
		}
		return next
	}
	if !s.leasing {
		sooner(s.leaseAt)
		if s.leaseDue(now) { // and waiting for the batches in flight
			next = s.leaseAt.Add(s.barrier())
		}
	}
	if len(s.held) > 0 && !s.distrusted {
		sooner(s.began.Add(time.Duration(s.trust.Load())))
	}
	if s.mayClaim(now) {
		sooner(s.claimAt(now))
	}
	if s.mayLook() {
		sooner(s.toldAt.Add(s.cfg.Poll))
	}
	if at := s.absent.next(); !at.IsZero() && s.mayHasten() {
		sooner(at)
	}
	return next
}

// stir makes every worker look again.
func (s *session) stir() {
	for i := range s.workers {
		s.workers[i].dirty = true
	}
}

func (s *session) busy() bool {
	return s.claims > 0 || slices.ContainsFunc(s.workers, func(w worker) bool { return w.batch != nil })
}

// release gives the leases back. Without any it still ends the membership, so that the others get their share at once.
func (s *session) release() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.cfg.SettleTimeout)
	defer cancel()
	if err := s.store.Release(ctx, s.owner, s.held); err != nil {
		s.trouble("leases could not be given back; they end by themselves", err, "lanes", len(s.held), "term", s.cfg.Lease)
	}
	s.count(func(c *Stats) { c.Lanes = 0 })
}
