package relay

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// absences is what a session knows of receivers that are away (convergo.Unavailable), by subject: events of one subject have the same
// receivers. However many aggregates wait for one, few are tried, and when one has come through the others follow:
//
//  1. Each event is tried once when it comes, because some of its receivers may be there. One that must wait gets a place in the
//     line of its subject: the places are a quarter of a second apart at first and a quarter of a minute later, so that many
//     aggregates are tried no more often than one, and each in its turn. One that was sent, and whose answer is awaited, needs none:
//     it is tried soon, and the slow receiver's answer lets the others follow. It has no mark and no part in releases.
//  2. The place is the blocked aggregate's time in the store. Its failure's text begins with the subject's mark.
//  3. When one that has waited comes through, those behind it are made due: leastReleased, and then two for each that comes through and
//     one for each that is refused for something about itself, mostReleased at a time at most. When one of them has to wait again that
//     is over, and a new line begins: of those that were released no more were in vain than leastReleased and as many as were answered,
//     however the work falls out in time. (While no answer comes at all, leastReleased more are released each second: those before may
//     have another owner by now.)
//  4. When an event comes through that has not waited, the receivers may be back: one that waits is tried, once a second at most. So it
//     is when one that has waited is refused for something about itself.
//
// Nothing of this is needed for an event to be sent some time: after a restart, or when lanes move, places are kept, and the first
// that comes through lets the others follow.
type absences struct {
	mu    sync.Mutex
	known map[convergo.Subject]*absence
}

// absence is one subject's. A nil one is unknown: nothing has failed in this session.
type absence struct {
	state    absent
	since    time.Time // when the events that wait could have been sent, at the latest; by Config.Now
	line     time.Time // the last place of the line
	hinted   time.Time // the last release of one, or of nobody
	came     time.Time // when one that had waited last came through; by Config.Now
	releases int       // how many the next release is of; leastReleased when nothing has earned one
	at       time.Time // when it is due, by the relay's clock; zero for none
}

type absent uint8

const (
	away absent = iota // its events have to wait
	back               // one has come through, the others are being released
	over               // nobody waits, as far as is known
)

const (
	leastReleased = 16
	mostReleased  = 1024
	mostAbsences  = 10_000
	soonestPlace  = time.Second / 4 // between places of a line, at first
	latestPlace   = time.Minute / 4 // and later
)

// mark is what the failures of events that wait for the subject's receivers begin with.
func mark(s convergo.Subject) string { return "waiting for " + s.String() + ": " }

func subjectOf(e convergo.Event) convergo.Subject {
	return convergo.Subject{Topic: e.Topic, Type: e.Type}
}

func (a *absences) of(s convergo.Subject) *absence {
	if a.known == nil || len(a.known) >= mostAbsences {
		a.known = map[convergo.Subject]*absence{}
	}
	if a.known[s] == nil {
		a.known[s] = &absence{state: over}
	}
	return a.known[s]
}

// place is when to try again an event of the subject that must wait, which has waited for some time already: not before soonest,
// and not after latest unless soonest is.
func (a *absences) place(s convergo.Subject, now time.Time, waited time.Duration, soonest, latest time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.of(s)
	if w.state != away { // a new line; what is left of an old one keeps its places
		*w = absence{state: away, since: now, hinted: w.hinted, came: w.came}
	}
	if began := now.Add(-waited); began.Before(w.since) {
		w.since = began
	}
	next := w.line.Add(min(max(w.line.Sub(w.since)/16, soonestPlace), latestPlace))
	if next.Before(soonest) {
		next = soonest
	}
	w.line = next
	if next.After(latest) {
		next = latest
	}
	if next.Before(soonest) {
		next = soonest
	}
	return next
}

// awaited is how long the subject's receivers have not been there for an event that has waited for some time: another that had waited and
// came through since then says that they were. Who takes a few events a second and turns the rest away is not asked seldom because
// those are old.
func (a *absences) awaited(s convergo.Subject, now time.Time, waited time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.known[s]
	if w == nil || w.came.IsZero() {
		return waited
	}
	if w.since.Before(w.came) {
		w.since = w.came
	}
	return max(min(waited, now.Sub(w.came)), 0)
}

// note remembers when an event of the subject that had waited came through.
func (a *absences) note(s convergo.Subject, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of(s).came = now
}

// wanted is a place that is wanted in a line: see absences.place.
type wanted struct {
	f       Failure
	cause   error
	subject convergo.Subject
	waited  time.Duration
	latest  time.Time
}

// giveOut gives the places that the turn's events want, in no order: so each lane has its part of them, and who takes some lanes over
// does not wait for long until one there is tried.
func (s *session) giveOut(t *turn, now time.Time) {
	rand.Shuffle(len(t.places), func(i, j int) { t.places[i], t.places[j] = t.places[j], t.places[i] })
	for _, w := range t.places {
		waited := s.absent.awaited(w.subject, now, w.waited)
		t.postpone(w.f, w.cause, s.absent.place(w.subject, now, waited, notBefore(w.cause, now.Add(patience(waited))), w.latest))
	}
}

// some tells whether there is anything to be told of events that come through at once.
func (a *absences) some() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.known {
		if w.state == away {
			return true
		}
	}
	return false
}

// through notes that events of the subject were sent; waited are how many of them after they had failed.
func (a *absences) through(s convergo.Subject, waited int, clock time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.known[s]
	switch {
	case waited == 0 && (w == nil || w.state == over):
	case waited > 0 && (w == nil || w.state == away || w.state == over && clock.Sub(w.hinted) >= time.Second):
		// Others may wait since an earlier life, or of a batch that was not settled yet when the last ones were released.
		w = a.of(s)
		w.state, w.releases, w.at = back, leastReleased, clock
	case w.state == back && waited > 0:
		w.releases, w.at = min(w.releases+2*waited, mostReleased), clock
	case w.state == away && clock.Sub(w.hinted) >= time.Second:
		w.releases, w.at = 1, clock
	}
}

// answered notes that events of the subject that had waited were refused, each for something about itself. While others are being released
// one follows for each: who refuses many is no reason to stop, nor to hurry. Otherwise one that waits is tried, as for one that has come
// through and had not waited: the refusal may be a broker's, and no receiver has seen the event.
func (a *absences) answered(s convergo.Subject, n int, clock time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.known[s]
	switch {
	case w == nil:
	case w.state == back:
		w.releases, w.at = min(w.releases+n, mostReleased), clock
	case w.state == away && clock.Sub(w.hinted) >= time.Second:
		w.releases, w.at = 1, clock
	}
}

// ask has one that waits tried for each subject.
func (a *absences) ask(clock time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.known {
		if w.state == away {
			w.releases, w.at = 1, clock
		}
	}
}

// moved is for lanes that were taken over: others may wait there for those who are back.
func (a *absences) moved(clock time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.known {
		if w.state == over {
			w.state, w.releases, w.at = back, leastReleased, clock
		}
	}
}

// next is when the first release is due; zero for none.
func (a *absences) next() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, w := a.first()
	return w.at
}

func (a *absences) first() (s convergo.Subject, first absence) {
	for subject, w := range a.known {
		if !w.at.IsZero() && (first.at.IsZero() || w.at.Before(first.at)) {
			s, first = subject, *w
		}
	}
	return s, first
}

// take begins the first release that is due, of most; 0 for none. What comes through from now on counts for the next.
func (a *absences) take(clock time.Time) (s convergo.Subject, most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, w := a.first()
	if w.at.IsZero() || clock.Before(w.at) {
		return s, 0
	}
	a.known[s].releases, a.known[s].at = 0, time.Time{}
	if w.releases == 0 {
		return s, leastReleased
	}
	return s, w.releases
}

// released notes what a release of most has come to. The next one is due when some of these have come through, or in a while: they
// may have had another owner meanwhile.
func (a *absences) released(s convergo.Subject, most, n int, err error, clock time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.known[s]
	switch {
	case w == nil:
	case err != nil && w.state == away: // they had to wait again meanwhile: what those before had earned is gone
		w.releases, w.at = 1, clock.Add(time.Second)
	case err != nil:
		w.releases, w.at = min(w.releases+most, mostReleased), clock.Add(time.Second)
	case w.state == away && n > 0: // one was, or they had to wait again meanwhile
		w.releases, w.at, w.hinted = 0, time.Time{}, clock
	case n < most:
		*w = absence{state: over, hinted: clock, came: w.came}
	case w.at.IsZero():
		w.at = clock.Add(time.Second)
	}
}

// maybeHasten releases some of those who waited for a receiver that is back.
func (s *session) maybeHasten(now time.Time) {
	if !s.mayHasten() {
		return
	}
	subject, most := s.absent.take(now)
	if most == 0 {
		return
	}
	s.hastening = true
	leases := slices.Clone(s.held)
	s.spawn(func() func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.SettleTimeout)
		defer cancel()
		n, err := s.store.Hasten(ctx, leases, mark(subject), most, s.cfg.Now())
		return func() {
			s.hastening = false
			if s.ctx.Err() != nil {
				return
			}
			s.absent.released(subject, most, n, err, s.clock())
			if err != nil {
				s.fails(&s.logs.releases, "events whose receiver is back could not be made due", err, "subject", subject.String())
			} else {
				s.works(&s.logs.releases, "events whose receiver is back can be made due again")
			}
			if n > 0 {
				s.stir()
			}
		}
	})
}

func (s *session) mayHasten() bool {
	return s.ctx.Err() == nil && !s.hastening && !s.outage && !s.balancing && len(s.held) > 0 && s.trusted()
}
