package convergo

import (
	"math"
	"testing"
	"time"
)

func TestCaseB09BackoffNeverOverflowsIntoNow(t *testing.T) {
	for _, b := range []Backoff{{}, {Base: time.Second, Factor: 2, Cap: time.Hour}} {
		for _, attempt := range []int{13, 33, 34, 55, 63, 64, 1000, math.MaxInt} {
			for range 100 {
				if d := b.Delay(attempt); d < 30*time.Minute || d > time.Hour {
					t.Fatalf("after attempt %d: %v, want 1 h less jitter", attempt, d)
				}
			}
		}
	}
}

func TestBackoffGrowsByItsFactorUpToItsCap(t *testing.T) {
	plain := Backoff{Jitter: NoJitter}
	for attempt, want := range map[int]time.Duration{
		-5: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 12: 2048 * time.Second, 13: time.Hour,
	} {
		if got := plain.Delay(attempt); got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
	slow := Backoff{Base: 100 * time.Millisecond, Factor: 1.5, Cap: 150 * time.Millisecond, Jitter: NoJitter}
	for attempt, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 150 * time.Millisecond, 3: 150 * time.Millisecond} {
		if got := slow.Delay(attempt); got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
}

func TestAScheduleRepeatsItsLastWait(t *testing.T) {
	b := Backoff{Schedule: []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}, Jitter: NoJitter}
	for attempt, want := range map[int]time.Duration{
		0: 10 * time.Second, 1: 10 * time.Second, 2: time.Minute, 3: 5 * time.Minute, 4: 5 * time.Minute, 1000: 5 * time.Minute,
	} {
		if got := b.Delay(attempt); got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
}

func TestJitterShortensAWaitByItsShareAtMost(t *testing.T) {
	b := Backoff{Base: time.Minute, Jitter: 0.5}
	for random, want := range map[float64]time.Duration{0: time.Minute, 0.5: 45 * time.Second, 1: 30 * time.Second} {
		if got := b.delay(1, random); got != want {
			t.Errorf("random %v: %v, want %v", random, got, want)
		}
	}
	if got := (Backoff{Base: time.Minute}).delay(1, 1); got != 48*time.Second {
		t.Errorf("the default jitter makes %v of a minute at most, want 48s", got)
	}
	if got := (Backoff{Base: time.Minute, Jitter: 7}).delay(1, 1); got <= 0 {
		t.Errorf("a jitter beyond 1 makes %v", got)
	}
}

func FuzzBackoffIsPositiveAndNeverAboveItsCap(f *testing.F) {
	f.Add(int64(time.Second), 2.0, int64(time.Hour), 0.2, 34, 0.5)
	f.Add(int64(math.MaxInt64), math.Inf(1), int64(math.MaxInt64), 1.0, math.MaxInt, 1.0)
	f.Add(int64(-1), math.NaN(), int64(0), math.NaN(), math.MinInt, 0.0)
	f.Fuzz(func(t *testing.T, base int64, factor float64, limit int64, jitter float64, attempt int, random float64) {
		if !(random >= 0 && random < 1) {
			return
		}
		b := Backoff{Base: time.Duration(base), Factor: factor, Cap: time.Duration(limit), Jitter: jitter}
		d := b.delay(attempt, random)
		most := time.Hour
		if limit > 0 {
			most = max(time.Duration(limit), time.Millisecond) // no wait is shorter than a millisecond
		}
		if d <= 0 || d > most {
			t.Errorf("%+v after attempt %d: %v, want more than 0 and at most %v", b, attempt, d, most)
		}
	})
}
