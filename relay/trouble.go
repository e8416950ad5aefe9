package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// outages is what has been said of each thing that is tried again while it fails.
type outages struct {
	leases, claims, settlements, broker, receivers, releases convergo.FailureLog
	refusals                                                 refusalLog
}

// refusalLog counts the lines of a minute about events that were refused. Each attempt of a few events is told; when a receiver refuses
// thousands, mostRefusals of a minute are.
type refusalLog struct {
	mu     sync.Mutex
	minute time.Time // when the first of its lines was
	lines  int
	untold int
}

const mostRefusals = 60

// line tells whether there is a line, and how many there were not since the last one.
func (l *refusalLog) line(now time.Time) (untold int, worth bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.minute) >= time.Minute {
		l.minute, l.lines = now, 0
	}
	if l.lines >= mostRefusals {
		l.untold++
		return 0, false
	}
	l.lines++
	untold, l.untold = l.untold, 0
	return untold, true
}

// trouble makes an error visible. It never carries a payload: only keys, types and what the store or the broker said.
func (r *Relay) trouble(message string, err error, args ...any) {
	r.warn(message, r.note(message, err), args...)
}

// refused is trouble with events that were refused, told as refusalLog says.
func (r *Relay) refused(message string, err error, args ...any) {
	what := r.note(message, err)
	if untold, worth := r.logs.refusals.line(r.clock()); worth {
		if untold > 0 {
			args = append(args, "settlements like this without a line", untold)
		}
		r.warn(message, what, args...)
	}
}

// note shows an error in Stats and returns what is shown of it.
func (r *Relay) note(message string, err error) (what string) {
	what = convergo.Clip(err.Error(), maxShownError)
	r.count(func(s *Stats) { s.LastError, s.LastErrorAt = message+": "+what, r.cfg.Now() })
	return what
}

func (r *Relay) warn(message, what string, args ...any) {
	r.cfg.Log.Warn(message, slices.Concat([]any{"relay", r.cfg.Name, "error", what}, args)...)
}

// fails is trouble with something that is tried again until it works: the log is not told of each try.
func (r *Relay) fails(l *convergo.FailureLog, message string, err error, args ...any) {
	what := r.note(message, err)
	if failures, within, worth := l.Failed(r.clock()); worth {
		r.warn(message, what, append(args, "failures", failures, "for", within.Round(time.Millisecond))...)
	}
}

// works ends what fails has told of.
func (r *Relay) works(l *convergo.FailureLog, message string) {
	if failures, within, worth := l.Worked(r.clock()); worth {
		r.cfg.Log.Info(message, "relay", r.cfg.Name, "failures", failures, "after", within.Round(time.Millisecond))
	}
}

// unavailable tells that receivers of events are not there. Each of the events is tried again by itself, and receivers that are
// there are no sign that those have come back: so the log is told of the number of tries since the last line, and of no end.
func (r *Relay) unavailable(message string, err error, args ...any) {
	what, l, now := r.note(message, err), &r.logs.receivers, r.clock()
	if settlements, within, worth := l.Failed(now); worth {
		r.warn(message, what, append(args, "settlements like this", settlements, "within", within.Round(time.Millisecond))...)
		l.Worked(now)
	}
}
