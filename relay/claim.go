package relay

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// sameMoment keeps a relay from asking in a tight loop for something that the store calls due and does not hand out.
const sameMoment = 10 * time.Millisecond

func (s *session) mayClaim(now time.Time) bool {
	probing := slices.ContainsFunc(s.workers, func(w worker) bool { return w.batch != nil && w.batch.probe })
	probing = probing || s.outage && s.claims > 0
	return s.ctx.Err() == nil && !probing && !s.balancing && !s.leaseDue(now) && len(s.held) > 0 && s.trusted() &&
		slices.ContainsFunc(s.workers, worker.idle)
}

// claimAt is when the next claim is due: at once when a worker may have events, else with the next delayed event or
// retry, else at the next poll. During an outage only the next probe counts.
func (s *session) claimAt(now time.Time) time.Time {
	at := now.Add(time.Hour)
	for _, w := range s.workers {
		if !w.idle() {
			continue
		}
		t := w.looked.Add(s.cfg.Poll)
		if !w.due.IsZero() {
			if due := now.Add(w.due.Sub(s.cfg.Now())); due.Before(t) {
				t = due
			}
			if soonest := w.looked.Add(sameMoment); t.Before(soonest) {
				t = soonest
			}
		}
		if w.dirty {
			t = now
		}
		if t.Before(at) {
			at = t
		}
	}
	if s.outage {
		at = s.probeAt
	}
	if at.Before(s.claimNotBy) {
		at = s.claimNotBy
	}
	return at
}

// request is a Claim call under way.
type request struct {
	workers []int // idle when it began
	leases  []Lease
	probe   bool
	perLane int
}

// maybeClaim claims for all idle workers in one call: an idle relay costs one claim per poll, however many workers it
// has. A worker that becomes idle while the others' claim is under way has one of its own. Lanes with a batch in flight
// are left out, whoever's share they are, because their events are still in the store; and those of a claim under way,
// which may be about to be.
func (s *session) maybeClaim(now time.Time) {
	if !s.mayClaim(now) || now.Before(s.claimAt(now)) {
		return
	}
	req := request{probe: s.outage, perLane: s.perLane}
	if req.probe {
		req.perLane = 1
	}
	inFlight := s.inFlight()
	for i := range s.workers {
		w := &s.workers[i]
		if !w.idle() {
			continue
		}
		req.workers = append(req.workers, i)
		w.dirty, w.due, w.looked = false, time.Time{}, now
	}
	for _, l := range s.held {
		if !inFlight[l.Lane] && (req.probe || slices.Contains(req.workers, s.share[l.Lane])) {
			req.leases = append(req.leases, l)
		}
	}
	if len(req.leases) == 0 {
		if req.probe {
			s.probeAt = now.Add(s.cfg.Poll)
		}
		return
	}
	s.underWay(req, true)
	s.toldAt = now
	s.spawn(func() func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.SettleTimeout)
		defer cancel()
		claim, err := s.store.Claim(ctx, req.leases, req.perLane, s.cfg.Now())
		if err == nil && len(claim.Events) > 0 {
			s.cfg.Probe.At("relay.claimed")
		}
		return func() { s.claimed(req, claim, err) }
	})
}

// inFlight are the lanes of the batches and claims under way.
func (s *session) inFlight() [convergo.Lanes]bool {
	lanes := s.asked
	for _, w := range s.workers {
		if w.batch != nil {
			for _, l := range w.batch.leases {
				lanes[l.Lane] = true
			}
		}
	}
	return lanes
}

// underWay notes that a claim begins or has ended.
func (s *session) underWay(req request, begins bool) {
	if begins {
		s.claims++
	} else {
		s.claims--
	}
	for _, i := range req.workers {
		s.workers[i].claiming = begins
	}
	for _, l := range req.leases {
		s.asked[l.Lane] = begins
	}
}

// claimed hands the events of a claim to the workers. It may drop them: a claim locks nothing, the next one finds them.
func (s *session) claimed(req request, claim Claim, err error) {
	s.underWay(req, false)
	if s.ctx.Err() != nil {
		return
	}
	s.payOwed(req.leases, s.clock())
	if err != nil {
		s.claimFaults++
		s.claimNotBy = s.clock().Add(s.pace.Delay(s.claimFaults))
		s.fails(&s.logs.claims, "events could not be claimed", err)
	} else {
		s.works(&s.logs.claims, "events can be claimed again")
		s.claimFaults = 0
	}
	if claim.Unowned {
		s.unowned(s.clock())
	}
	stale := s.outage && !req.probe // another worker's batch has met the outage since the claim began
	for _, i := range req.workers {
		w := &s.workers[i]
		w.due = claim.NextDue
		w.dirty = w.dirty || err != nil || stale || req.probe || claim.More && len(claim.Events) > 0
	}
	switch {
	case err != nil || stale:
	case req.probe:
		s.startProbe(req, claim.Events)
	default:
		s.adapt(req, claim)
		s.start(req, claim.Events)
	}
}

// adapt sets how many events are read of each lane, so that a claim fills its workers' batches whether all lanes are
// busy or one.
func (s *session) adapt(req request, claim Claim) {
	var busy [convergo.Lanes]int
	lanes, most := 0, 0
	for i := range claim.Events {
		lane := claim.Events[i].Lane % convergo.Lanes
		if busy[lane]++; busy[lane] == 1 {
			lanes++
		}
		most = max(most, busy[lane])
	}
	if lanes == 0 {
		return
	}
	fit := min(max(s.cfg.Batch*len(req.workers)/lanes, s.cfg.leastPerLane()), s.cfg.Batch)
	if claim.More && most < req.perLane { // the events are so large that there was no room: more rows need not be looked at
		fit = min(fit, max(2*most, s.cfg.leastPerLane()))
	}
	if claim.More || fit < s.perLane {
		s.perLane = fit
	}
}

// start makes a batch of each worker's events. Events of lanes that were lost since the claim began are dropped.
func (s *session) start(req request, events []Pending) {
	batches := make([]*batch, len(s.workers))
	room := len(events)/len(req.workers) + len(req.workers) - 1
	place := func(worker int, p Pending, l Lease) {
		b := batches[worker]
		if b == nil {
			b = &batch{worker: worker, events: make([]Pending, 0, room)}
			batches[worker] = b
		}
		if !slices.Contains(b.leases, l) {
			b.leases = append(b.leases, l)
		}
		b.events = append(b.events, p)
	}
	var asked [convergo.Lanes]*Lease
	for i, l := range req.leases {
		asked[l.Lane] = &req.leases[i]
	}
	for _, p := range events {
		lane := p.Lane % convergo.Lanes
		l := asked[lane]
		switch {
		case l == nil:
			s.trouble("the store handed out an event of a lane that was not asked for", convergo.ErrInvalid, "key", p.Event.Key, "lane", p.Lane)
		case slices.Contains(s.held, *l) && slices.Contains(req.workers, s.share[lane]):
			place(s.share[lane], p, *l)
		default:
			s.stir()
		}
	}
	for _, b := range batches {
		if b != nil {
			s.launch(b)
		}
	}
}

// startProbe sends one event, any aggregate's first, to find out whether the broker is back. With nothing to send the
// outage is over as far as anybody can tell. One that is malformed is buried, and the next one is taken at once. Suspects are
// taken only when there is nobody else, and not as often: an event that makes the broker hang must not keep those waiting that
// come later.
func (s *session) startProbe(req request, events []Pending) {
	candidates := slices.DeleteFunc(slices.Clone(events), func(p Pending) bool { return p.Held })
	if len(candidates) == 0 {
		s.recovered()
		return
	}
	trusted := slices.DeleteFunc(slices.Clone(candidates), func(p Pending) bool { return s.suspects.has(p.Event.Aggregate) })
	if now := s.clock(); len(trusted) == 0 && now.Before(s.suspectAt) {
		s.probeLater(now, true)
		return
	}
	doubt := len(trusted) == 0
	if !doubt {
		candidates = trusted
	}
	aggregate := candidates[rand.IntN(len(candidates))].Event.Aggregate
	first := candidates[slices.IndexFunc(candidates, func(p Pending) bool { return p.Event.Aggregate == aggregate })]
	leases := slices.DeleteFunc(slices.Clone(req.leases), func(l Lease) bool { return l.Lane != first.Lane })
	s.launch(&batch{worker: req.workers[0], leases: leases, events: []Pending{first}, probe: true, doubt: doubt})
}

// probeLater sets when the next probe is due. While there are only suspects to probe with the store is asked at each poll
// whether somebody else has come.
func (s *session) probeLater(now time.Time, doubt bool) {
	s.probeAt = s.suspectAt
	if soon := now.Add(s.cfg.Poll); doubt && soon.Before(s.probeAt) {
		s.probeAt = soon
	}
}

func (s *session) launch(b *batch) {
	// Not cancelled with Run's context: what is in flight is finished. The loop cancels it when its time is up.
	b.ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(s.ctx))
	s.workers[b.worker].batch = b
	s.spawn(func() func() {
		out := s.work(b)
		return func() { s.finished(b, out) }
	})
}

// finished takes the outcome of a batch.
func (s *session) finished(b *batch, out outcome) {
	b.cancel(nil)
	now := s.clock()
	w := &s.workers[b.worker]
	w.batch = nil
	w.dirty = w.dirty || out.again
	if !out.next.IsZero() && (w.due.IsZero() || out.next.Before(w.due)) {
		w.due = out.next
	}
	s.payOwed(b.leases, now)
	if out.leaseLost {
		s.leaseAt = now // nothing is claimed before the store has told which leases still stand
		s.count(func(c *Stats) { c.LeaseLosses++ })
		s.trouble("a settlement was refused; its events will be sent again", ErrLeaseLost)
	}
	switch {
	case out.outage != nil && !s.outage:
		s.outage, s.outageTries = true, 1
		s.suspectAt = now.Add(s.cfg.Outage.Delay(1))
		s.probeLater(now, b.doubt)
		s.count(func(c *Stats) { c.Outages++; c.InOutage = true })
		s.fails(&s.logs.broker, "the broker takes no events now; one at a time will try until it does", out.outage)
	case out.outage != nil && b.probe:
		s.outageTries++
		s.suspectAt = now.Add(s.cfg.Outage.Delay(s.outageTries))
		s.probeLater(now, b.doubt)
		s.fails(&s.logs.broker, "the broker still takes no events", out.outage)
	case s.outage && out.reached:
		s.recovered()
	case s.outage && b.probe && b.events[0].Malformed != nil: // nothing was asked of the broker
		s.probeAt = now
	case s.outage && b.probe: // given up before there was an answer
		s.suspectAt = now.Add(s.cfg.Outage.Delay(s.outageTries))
		s.probeLater(now, b.doubt)
	}
}

// brokerBack makes the next probe due. One that is under way may have begun before: when that fails the next is due after the
// shortest pause, and not after the one that a long outage has led to.
func (s *session) brokerBack() {
	s.absent.ask(s.clock())
	if s.outage {
		s.outageTries = 0
		s.probeAt, s.suspectAt = s.clock(), s.clock()
	}
}

func (s *session) recovered() {
	s.outage = false
	s.stir()
	s.count(func(c *Stats) { c.InOutage = false })
	s.works(&s.logs.broker, "the broker takes events again")
}
