package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// outcome is what the loop needs to know of a batch.
type outcome struct {
	again     bool      // there is more to claim at once
	next      time.Time // when the first of the failed events is due again; zero when none failed
	outage    error     // the broker could not be reached
	reached   bool      // the broker answered
	leaseLost bool
}

// standing is why later events of an aggregate must not be sent in this batch.
type standing uint8

const (
	free    standing = iota
	behind           // an earlier one failed: they go to the queue of their blocked aggregate
	waiting          // an earlier one is not through for another reason: they stay where they are
)

// turn is one publish and its settlement.
type turn struct {
	*progress
	out       *outcome
	hold      Settlement // what is recorded first
	skip      []Failure  // dead events whose aggregates go on
	aside     []Pending
	firstFail error
	// unavailable of hold.Failed spent no attempt: waits is how many of each subject. came are the subjects of what was sent, and how
	// many of each had failed before.
	unavailable int64
	waits, came map[convergo.Subject]int
	refused     map[convergo.Subject]int // how many that had failed before were refused for something about themselves
	places      []wanted
	unanswered  bool  // the publisher left an event without an answer
	alone       bool  // one aggregate's events only
	before      int64 // Relay.answered when the publish began
}

// progress is what the turns of a batch know of the earlier ones.
type progress struct {
	batch *batch
	stuck map[convergo.Aggregate]standing
	// moved are the aggregates whose queue got shorter. It may be empty now and its aggregate no longer blocked, so that
	// nothing may be put aside behind it: such events stay in their lane, and the next claim tells how they stand.
	moved map[convergo.Aggregate]bool
}

// work publishes and settles a batch, at most Config.Batch events at a time, in order.
func (s *session) work(b *batch) (out outcome) {
	p := &progress{batch: b, stuck: map[convergo.Aggregate]standing{}, moved: map[convergo.Aggregate]bool{}}
	for chunk := range slices.Chunk(b.events, s.cfg.Batch) {
		for _, group := range s.suspects.split(chunk) {
			if goOn := s.turn(p, group, &out); !goOn || s.ctx.Err() != nil || s.pause.Load() {
				out.again = true
				return out
			}
		}
	}
	return out
}

// turn publishes and settles one group of events and tells whether the batch may go on.
func (s *session) turn(p *progress, group []Pending, out *outcome) bool {
	t := &turn{progress: p, out: out}
	send, bury := t.sort(group)
	var errs []error
	hung := false
	if len(send) > 0 {
		// A relay that was paused (a virtual machine stopped, a long collection) must notice here that its time is over: the
		// token protects the rows from it, but nothing protects the broker.
		if !s.trusted() || p.batch.ctx.Err() != nil {
			return false
		}
		t.before = s.answered.Load()
		t.alone = !slices.ContainsFunc(send, func(e Pending) bool { return e.Event.Aggregate != send[0].Event.Aggregate })
		errs, hung = s.publish(p.batch.ctx, send)
		s.cfg.Probe.At("relay.published")
	}
	for _, e := range bury {
		send, errs = append(send, e), append(errs, cmp.Or(e.Malformed, errBehind))
	}
	s.classify(t, send, errs, hung)
	for _, e := range t.aside {
		if !e.Queued && !p.moved[e.Event.Aggregate] {
			t.hold.Aside = append(t.hold.Aside, e)
		}
	}
	if err := s.settle(t); err != nil {
		out.leaseLost = errors.Is(err, ErrLeaseLost)
		return false
	}
	return !t.unanswered && out.outage == nil && p.batch.ctx.Err() == nil
}

// errBehind stands for the answer to an event that was not sent because the one before it cannot be.
var errBehind = errors.New("an earlier event of the aggregate cannot be sent")

// sort tells what is to be sent, and what is to be judged behind that without having been: malformed events, and those behind
// them. What is to go aside is put aside.
func (t *turn) sort(group []Pending) (send, bury []Pending) {
	send = make([]Pending, 0, len(group))
	var barred map[convergo.Aggregate]bool
	for _, e := range group {
		aggregate := e.Event.Aggregate
		switch {
		case e.Held || t.stuck[aggregate] == behind:
			t.aside = append(t.aside, e)
		case t.stuck[aggregate] != free:
		case e.Malformed != nil || barred[aggregate]:
			if barred == nil {
				barred = map[convergo.Aggregate]bool{}
			}
			barred[aggregate] = true
			bury = append(bury, e)
		default:
			send = append(send, e)
		}
	}
	return send, bury
}

// classify turns the broker's answers into a settlement. An event behind one that failed has not failed itself: the
// publisher did not send it, and it spends no attempt.
//
// No answer within the time is the broker's fault until it is shown to be the event's: an outage that shows as silence must
// not kill a backlog (B06). It is shown when the event hangs alone, again, and the broker answered others in between.
func (s *session) classify(t *turn, sent []Pending, errs []error, hung bool) {
	now := s.cfg.Now()
	givenUp := t.batch.ctx.Err() != nil
	for i, err := range errs {
		if asked := sent[i].Malformed == nil && !errors.Is(err, errBehind); asked && !hung && !silent(err) && convergo.VerdictOf(err) != convergo.Outage {
			s.answered.Add(1)
			break
		}
	}
	t.hold.Sent = make([]Pending, 0, len(sent))
	absent := s.absent.some()
	for i, p := range sent {
		err, aggregate := errs[i], p.Event.Aggregate
		if err == nil {
			t.hold.Sent = append(t.hold.Sent, p)
			t.out.reached = true
			t.shorten(p)
			s.suspects.clear(aggregate)
			if absent || p.Attempts > 0 {
				waited := 0
				if p.Attempts > 0 {
					waited = 1
				}
				count(&t.came, subjectOf(p.Event), waited)
			}
			continue
		}
		if t.stuck[aggregate] != free {
			if t.stuck[aggregate] == behind {
				t.aside = append(t.aside, p)
			}
			continue
		}
		verdict := convergo.VerdictOf(err)
		unanswered := p.Malformed == nil && (hung || silent(err))
		t.unanswered = t.unanswered || unanswered
		switch {
		case givenUp && (unanswered || verdict == convergo.Outage): // our doing; nobody knows what became of it
			t.stuck[aggregate] = waiting
		case verdict == convergo.Outage:
			t.stuck[aggregate] = waiting
			t.out.outage = err
		case silent(err) && !s.guilty(t, aggregate), t.batch.probe && unanswered:
			s.suspects.add(aggregate)
			t.stuck[aggregate] = waiting
			if t.batch.probe || !t.out.reached && s.answered.Load() == t.before {
				t.out.outage = err
			}
		default:
			if unanswered {
				s.suspects.add(aggregate)
			}
			t.out.reached = t.out.reached || !unanswered && p.Malformed == nil
			s.fail(t, p, err, verdict, now)
		}
	}
	for subject, waited := range t.came {
		if waited > 0 {
			s.absent.note(subject, now)
		}
	}
	s.giveOut(t, now)
	for subject, waited := range t.came {
		if t.waits[subject] == 0 {
			s.absent.through(subject, waited, s.clock())
		}
	}
	for subject, n := range t.refused {
		if t.waits[subject] == 0 {
			s.absent.answered(subject, n, s.clock())
		}
	}
}

// count adds n to the subject's count; a count of none is one, too.
func count(set *map[convergo.Subject]int, subject convergo.Subject, n int) {
	if *set == nil {
		*set = map[convergo.Subject]int{}
	}
	(*set)[subject] += n
}

// silent tells whether the error says no more than that there was no answer.
func silent(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// guilty tells whether it is an event of the aggregate, and not the broker, that is to blame for a silence.
func (s *session) guilty(t *turn, a convergo.Aggregate) bool {
	return t.alone && s.suspects.convict(a, t.before) && !t.batch.probe
}

// shorten notes that a queue has lost its head. What is behind it is free now.
func (t *turn) shorten(p Pending) {
	if p.Queued {
		t.moved[p.Event.Aggregate] = true
		t.out.again = true
	}
}

// notBefore is the time of the next attempt: at, or later when the receiver said when it wants to be asked again (Retry-After).
func notBefore(err error, at time.Time) time.Time {
	var told interface{ RetryAt() time.Time }
	if errors.As(err, &told) && told.RetryAt().After(at) {
		return told.RetryAt()
	}
	return at
}

// underway tells that the receiver has been sent the event and has not answered yet: another attempt sends nothing, it asks for the
// answer.
func underway(err error) bool {
	var told interface{ Underway() bool }
	return errors.As(err, &told) && told.Underway()
}

// fail records a failed attempt, the last one or not.
func (s *session) fail(t *turn, p Pending, err error, verdict convergo.Verdict, now time.Time) {
	policy := s.cfg.policy(p.Event.Topic)
	most := policy.MaxAttempts
	if p.Event.MaxAttempts > 0 {
		most = p.Event.MaxAttempts
	}
	attempts := p.Attempts + 1
	f := Failure{Pending: p, Error: err.Error(), Place: "relay.publish"}
	if p.Malformed != nil {
		f.Place = "relay.read"
	}
	t.stuck[p.Event.Aggregate] = behind
	waited := now.Sub(due(p.Event))
	if p.Attempts > 0 && p.Malformed == nil && !silent(err) && (verdict == convergo.Park || verdict == convergo.Again) {
		count(&t.refused, subjectOf(p.Event), 1)
	}
	switch {
	case verdict == convergo.Wait && waited < s.cfg.MaxWait:
		// The store counts one more than is said here. The first time counts, so that the event is known as one that has failed.
		f.Attempts = max(p.Attempts, 1) - 1
		t.unavailable++
		subject := subjectOf(p.Event)
		if underway(err) { // to ask for the answer costs its receiver nothing; it has no mark, since a release would be wasted on it
			t.postpone(f, err, now.Add(patience(0)))
			return
		}
		f.Error = mark(subject) + f.Error
		count(&t.waits, subject, 1)
		t.places = append(t.places, wanted{
			f: f, cause: err, subject: subject, waited: waited, latest: now.Add(s.cfg.MaxWait - waited),
		})
	case verdict != convergo.Park && attempts < most:
		t.postpone(f, err, now.Add(policy.Backoff.Delay(attempts)))
	case policy.OnDead == SkipEvent:
		t.skip = append(t.skip, f)
		t.stuck[p.Event.Aggregate] = waiting
		t.out.again = true
		t.shorten(p)
		s.suspects.clear(p.Event.Aggregate)
	default:
		t.hold.Dead = append(t.hold.Dead, f)
		s.suspects.clear(p.Event.Aggregate)
	}
}

// postpone has the event tried again, at a time, or later when its receiver said so.
func (t *turn) postpone(f Failure, err error, at time.Time) {
	f.Next = notBefore(err, at)
	t.hold.Failed = append(t.hold.Failed, f)
	if t.out.next.IsZero() || f.Next.Before(t.out.next) {
		t.out.next = f.Next
	}
	if t.firstFail == nil {
		t.firstFail = err
	}
}

// due is since when the event could have been sent.
func due(e convergo.Event) time.Time {
	if e.DeliverAt.After(e.CreatedAt) {
		return e.DeliverAt
	}
	return e.CreatedAt
}

// patience is how long to leave an event alone whose receiver is not there: no attempts are counted that could double it, so it grows
// with how long the event has waited, up to a minute.
func patience(waited time.Duration) time.Duration {
	wait := min(max(waited/8, time.Second), time.Minute)
	return convergo.Backoff{Base: wait, Cap: wait}.Delay(1)
}

// settle records the turn. The dead events whose aggregates go on need a settlement of their own.
func (s *session) settle(t *turn) error {
	t.hold.HoldAggregate = true
	for _, st := range []Settlement{t.hold, {Dead: t.skip}} {
		if len(st.Sent)+len(st.Aside)+len(st.Failed)+len(st.Dead) == 0 {
			continue
		}
		st.Leases = t.batch.leases
		if len(t.batch.events) > s.cfg.Batch {
			st.Leases = leasesOf(st, t.batch.leases)
		}
		if err := s.record(st); err != nil {
			return err
		}
		s.cfg.Probe.At("relay.settled")
		s.tell(st, t)
	}
	s.count(func(c *Stats) { c.Unavailable += t.unavailable })
	return nil
}

// leasesOf are those of leases that the settlement's events need, so that a lane lost meanwhile costs only its own
// events.
func leasesOf(st Settlement, leases []Lease) []Lease {
	var needed [convergo.Lanes]bool
	for _, p := range slices.Concat(st.Sent, st.Aside) {
		needed[p.Lane%convergo.Lanes] = true
	}
	for _, f := range slices.Concat(st.Failed, st.Dead) {
		needed[f.Lane%convergo.Lanes] = true
	}
	return slices.DeleteFunc(slices.Clone(leases), func(l Lease) bool { return !needed[l.Lane] })
}

// record settles, and keeps trying while the store fails: the broker has the events, and claiming them again would send
// them again. It ends with success, with the loss of the lease, or when a shutdown has no more time.
//
// The context is not Run's: a shutdown that arrives between the confirmation and here must not undo the confirmation.
func (s *session) record(st Settlement) error {
	for attempt := 1; ; attempt++ {
		st.Now = s.cfg.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.cfg.SettleTimeout)
		err := s.store.Settle(ctx, st)
		cancel()
		if err == nil || errors.Is(err, ErrLeaseLost) {
			s.works(&s.logs.settlements, "published events can be settled again")
			return err
		}
		s.fails(&s.logs.settlements, "published events could not be settled", err, "events", len(st.Sent))
		timer := time.NewTimer(s.pace.Delay(attempt))
		select {
		case <-s.hard.Done():
			timer.Stop()
			return fmt.Errorf("settle %d events before the shutdown: %w", len(st.Sent), err)
		case <-timer.C:
		}
	}
}

// maxShownError is how much of an error's text is shown, in bytes: as much as stores keep. A row that another program wrote may have a
// key of any length, and errors repeat it.
const maxShownError = 2000

// tell counts and reports a settlement of a turn that is durable.
func (s *session) tell(st Settlement, t *turn) {
	s.count(func(c *Stats) {
		c.Sent += int64(len(st.Sent))
		c.Failed += int64(len(st.Failed))
		c.Dead += int64(len(st.Dead))
	})
	if n := len(st.Failed); n > 0 {
		f := st.Failed[0]
		tell := s.refused
		if t.unavailable == int64(n) {
			tell = s.unavailable
		}
		tell("events could not be published and will be tried again", t.firstFail,
			"events", n, "first", f.Event.Key, "type", convergo.Clip(f.Event.Type, convergo.MaxNameBytes), "attempt", f.Attempts+1, "next", f.Next)
	}
	for _, f := range st.Dead {
		what := convergo.Clip(f.Error, maxShownError)
		s.cfg.Log.Error("an event is dead and waits for a person", "relay", s.cfg.Name, "key", f.Event.Key,
			"type", convergo.Clip(f.Event.Type, convergo.MaxNameBytes), "topic", convergo.Clip(f.Event.Topic, convergo.MaxNameBytes),
			"aggregate", convergo.Clip(f.Event.Aggregate.String(), convergo.MaxNameBytes+convergo.MaxKeyBytes), "attempts", f.Attempts+1,
			"holds aggregate", st.HoldAggregate, "error", what)
		s.count(func(c *Stats) {
			c.LastError, c.LastErrorAt = "dead: "+convergo.Clip(string(f.Event.Key), convergo.MaxKeyBytes)+": "+what, s.cfg.Now()
		})
		if s.cfg.Alert != nil {
			s.cfg.Alert(f)
		}
	}
}
