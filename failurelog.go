package convergo

import (
	"sync"
	"time"
)

// FailureLog says which failures of a thing that is tried again and again are worth a line in a log: the first; then one a minute
// at most, with how often and for how long it has failed; and the success that ends what the log knows of. Something that fails and
// works in turns has no more lines than that: what begins less than a minute after the last line is told when the minute is over, if
// it still fails then. The zero value is ready; any goroutine may use it.
type FailureLog struct {
	mu      sync.Mutex
	failing bool
	told    bool      // there was a line since
	since   time.Time // the first failure that is counted
	last    time.Time // the last one
	line    time.Time // the last line; zero for none
	count   int
}

// quietFor is how long no further failure has a line.
const quietFor = time.Minute

// Failed notes a failure and tells whether it is worth a line, how many there are by now, and how long ago the first one was.
func (l *FailureLog) Failed(now time.Time) (count int, within time.Duration, worth bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failing && (l.told || now.Sub(l.last) >= quietFor) { // else nothing was said of the last one, which was a moment ago
		l.told, l.since, l.count = false, now, 0
	}
	l.failing, l.last = true, now
	l.count++
	if worth = l.line.IsZero() || now.Sub(l.line) >= quietFor; worth {
		l.told, l.line = true, now
	}
	return l.count, now.Sub(l.since), worth
}

// Worked notes a success and tells whether it is worth a line, how many failures there were, and how long ago the first one was.
func (l *FailureLog) Worked(now time.Time) (count int, within time.Duration, worth bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failing {
		return 0, 0, false
	}
	l.failing = false
	if l.told {
		l.line = now
	}
	return l.count, now.Sub(l.since), l.told
}
