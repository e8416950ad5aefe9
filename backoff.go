package convergo

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff says how long to wait after the n-th failed attempt. The zero value is the default: 1 s doubling up to 1 h.
// With a Schedule the waits are its entries, the last one repeated.
type Backoff struct {
	Base     time.Duration   // first wait; default 1 s
	Factor   float64         // growth per attempt; default 2, at least 1
	Cap      time.Duration   // longest wait; default 1 h
	Schedule []time.Duration // fixed waits instead, for example 10 s, 1 min, 5 min, 30 min
	// Jitter is the share of a wait that is random, 0 to 1; a wait w becomes w·(1−Jitter) … w. Default 0.2; NoJitter for none.
	Jitter float64
}

// NoJitter turns jitter off.
const NoJitter = -1

// Delay is the wait after attempt failed attempts (1 is the first). It is positive, never above the cap and cannot
// overflow, whatever attempt is: the growth is computed in floating point and capped before it becomes a duration.
func (b Backoff) Delay(attempt int) time.Duration { return b.delay(attempt, rand.Float64()) }

func (b Backoff) delay(attempt int, random float64) time.Duration {
	wait := b.wait(max(attempt, 1))
	jitter := b.Jitter
	switch {
	case jitter == 0:
		jitter = 0.2
	case jitter < 0:
		jitter = 0
	}
	wait -= time.Duration(float64(wait) * min(jitter, 1) * random)
	return max(wait, time.Millisecond)
}

func (b Backoff) wait(attempt int) time.Duration {
	if n := len(b.Schedule); n > 0 {
		return b.Schedule[min(attempt, n)-1]
	}
	base, factor, limit := b.Base, b.Factor, b.Cap
	if base <= 0 {
		base = time.Second
	}
	if factor < 1 {
		factor = 2
	}
	if limit <= 0 {
		limit = time.Hour
	}
	grown := float64(base) * math.Pow(factor, float64(attempt-1))
	if !(grown < float64(limit)) { // also catches +Inf
		return limit
	}
	return time.Duration(grown)
}
