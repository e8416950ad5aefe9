package relay

import (
	"context"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// barrier is how long a due renewal waits for the batches in flight.
func (s *session) barrier() time.Duration { return min(time.Second, s.cfg.Lease/6) }

func (s *session) leaseDue(now time.Time) bool { return !s.leasing && !now.Before(s.leaseAt) }

// maybeLease renews the leases at a third of their term.
//
// A renewal also balances: the store may give lanes of ours to a relay that has joined. If it took a lane with a batch in
// flight, the events of that batch would be published by both. So a due renewal lets no new batch start and waits a moment
// for those in flight; the lanes of one that takes longer (a slow broker) are named as busy and stay. They are owed: when the
// batch ends, the next renewal comes before anything is claimed, so that a relay that joins gets its share after one
// Config.PublishTimeout and a third of a term at the latest, however slow the broker is.
// At shutdown leases are only renewed, and only for what is still in flight.
func (s *session) maybeLease(now time.Time) {
	if !s.leaseDue(now) {
		return
	}
	ended := s.ctx.Err() != nil
	switch {
	case ended && (s.stopping(now) || !s.busy()):
	case ended:
		s.lease(now, true)
	case !s.busy() || s.owes() || s.joining || !now.Before(s.leaseAt.Add(s.barrier())):
		s.lease(now, false)
	default:
		s.pause.Store(true)
	}
}

func (s *session) lease(now time.Time, renewOnly bool) {
	s.leasing, s.balancing = true, s.balancing || !renewOnly
	s.takeAt = now.Add(s.cfg.Poll)
	before, owed := s.owed, s.owes()
	joining := s.joining && !owed
	s.joining = false
	if !joining {
		s.balanceAt = now.Add(s.cfg.Lease / 3)
	}
	s.leaseAt = s.balanceAt
	req := LeaseRequest{Owner: s.owner, Held: slices.Clone(s.held), Term: s.cfg.Lease, RenewOnly: renewOnly}
	busy := s.inFlight()
	slices.SortStableFunc(req.Held, func(a, b Lease) int {
		switch {
		case busy[a.Lane] == busy[b.Lane]:
			return 0
		case busy[a.Lane]:
			return -1
		}
		return 1
	})
	s.owed = [convergo.Lanes]bool{}
	for _, l := range s.held {
		if busy[l.Lane] {
			req.Busy++
			s.owed[l.Lane] = before[l.Lane] || !owed && !joining // the others were offered the last time
		}
	}
	s.pause.Store(s.owes())
	s.spawn(func() func() {
		// Not the context of Run: a renewal that is cancelled at shutdown could still arrive at the database, after the release.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), min(s.cfg.SettleTimeout, s.cfg.Lease/3))
		defer cancel()
		leases, err := s.store.Lease(ctx, req)
		return func() { s.leased(now, leases, err) }
	})
}

// leased takes the answer to a Lease call that was begun at started. The term counts from then: the database set the
// expiry later than that, whatever the network did. A tenth of the term is kept back for clocks that run differently.
func (s *session) leased(started time.Time, leases []Lease, err error) {
	s.leasing = false
	now := s.clock()
	if err != nil {
		// It may have been done all the same, and only its answer was lost: balancing stays as it is.
		s.leaseFaults++
		s.leaseAt = now.Add(min(s.pace.Delay(s.leaseFaults), s.cfg.Lease/6))
		s.fails(&s.logs.leases, "leases could not be renewed", err)
		return
	}
	s.works(&s.logs.leases, "leases can be renewed again")
	s.leaseFaults, s.distrusted, s.balancing = 0, false, false
	s.trust.Store(int64(started.Sub(s.began) + s.cfg.Lease - s.cfg.Lease/10))
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b Lease) int { return int(a.Lane) - int(b.Lane) })
	if lost := s.dropLost(leases); lost > 0 {
		s.count(func(c *Stats) { c.LeaseLosses += int64(lost) })
		s.trouble("lanes were taken over while a batch was in flight", errLeaseGone, "lanes", lost)
	}
	grew := slices.ContainsFunc(leases, func(l Lease) bool { return !slices.Contains(s.held, l) })
	if grew {
		s.absent.moved(now)
		s.stir()
	}
	s.held = leases
	for i, l := range leases {
		s.share[l.Lane] = i % len(s.workers)
	}
	s.count(func(c *Stats) { c.Lanes = len(leases) })
	// Those that have to give lanes up do it one after another, as what they have in flight ends.
	joins := len(leases) == 0 || len(leases) < convergo.Lanes && (grew || now.Sub(s.began) < 2*s.cfg.Lease)
	if soon := started.Add(s.cfg.Poll); joins && soon.Before(s.leaseAt) {
		s.leaseAt, s.joining = soon, true
	}
}

// unowned makes a call for lanes due that have no owner: another relay has given them back, or is dead. The store may have none
// for us, because they are another's share; so there is a Config.Poll between two such calls.
//
// What a claim saw that ended while a call is under way may be what that call takes. The next claim tells if not.
func (s *session) unowned(now time.Time) {
	at := s.takeAt
	if at.Before(now) {
		at = now
	}
	if !s.leasing && at.Before(s.leaseAt) {
		s.leaseAt, s.joining = at, true
	}
}

func (s *session) mayLook() bool {
	return s.ctx.Err() == nil && s.claims == 0 && !s.leasing && !s.looking && !s.outage && len(s.held) > 0 && s.trusted() &&
		!slices.ContainsFunc(s.workers, worker.idle)
}

// maybeLook asks whether any lane has no owner when all workers have been busy for a Config.Poll, so that no claim has told. It is a
// claim of as little as can be, and what it finds besides is left where it is. When it fails the renewals of the leases find out.
func (s *session) maybeLook(now time.Time) {
	if !s.mayLook() || now.Before(s.toldAt.Add(s.cfg.Poll)) {
		return
	}
	s.looking, s.toldAt = true, now
	leases := slices.Clone(s.held[:1])
	s.spawn(func() func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.SettleTimeout)
		defer cancel()
		claim, err := s.store.Claim(ctx, leases, 1, s.cfg.Now())
		return func() {
			s.looking = false
			if err == nil && claim.Unowned && s.ctx.Err() == nil {
				s.unowned(s.clock())
			}
		}
	})
}

// payOwed makes the next balance due when something that it was kept from has ended.
func (s *session) payOwed(ended []Lease, now time.Time) {
	if slices.ContainsFunc(ended, func(l Lease) bool { return s.owed[l.Lane] }) {
		s.leaseAt = now
	}
}

// owes tells whether the last balance left something to be done.
func (s *session) owes() bool { return slices.Contains(s.owed[:], true) }

// dropLost cancels the batches that have a lane which is not among leases, and counts such lanes.
func (s *session) dropLost(leases []Lease) (lost int) {
	for _, w := range s.workers {
		if w.batch == nil {
			continue
		}
		for _, l := range w.batch.leases {
			if !slices.Contains(leases, l) {
				w.batch.cancel(errLeaseGone)
				lost++
			}
		}
	}
	return lost
}
