package convergo_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

// lines plays tries at a distance of step, and tells the lines that they are worth: second, count and time.
func lines(l *convergo.FailureLog, began, from time.Time, step time.Duration, works ...bool) (said []string) {
	for i, ok := range works {
		now := from.Add(time.Duration(i) * step)
		try, word := l.Failed, "fails"
		if ok {
			try, word = l.Worked, "works"
		}
		if count, within, worth := try(now); worth {
			said = append(said, fmt.Sprint(now.Sub(began), " ", word, " ", count, " in ", within))
		}
	}
	return said
}

func TestALongOutageIsToldAtItsBeginEachMinuteAndAtItsEnd(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	var l convergo.FailureLog
	tries := append(append([]bool{true}, make([]bool, 150)...), true, true)
	said := lines(&l, began, began, time.Second, tries...)
	want := []string{"1s fails 1 in 0s", "1m1s fails 61 in 1m0s", "2m1s fails 121 in 2m0s", "2m31s works 150 in 2m30s"}
	if !slices.Equal(said, want) {
		t.Errorf("lines %q, want %q", said, want)
	}
	said = lines(&l, began, began.Add(time.Hour), time.Second, false, true)
	if want := []string{"1h0m0s fails 1 in 0s", "1h0m1s works 1 in 1s"}; !slices.Equal(said, want) {
		t.Errorf("lines of the next outage %q, want %q", said, want)
	}
}

func TestWhatFailsAndWorksInTurnsDoesNotFloodTheLog(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	var l convergo.FailureLog
	tries := make([]bool, 250) // every other one works
	for i := range tries {
		tries[i] = i%2 == 1
	}
	said := lines(&l, began, began, time.Second, tries...)
	want := []string{
		"0s fails 1 in 0s", "1s works 1 in 1s", "1m2s fails 31 in 1m0s", "1m3s works 31 in 1m1s",
		"2m4s fails 31 in 1m0s", "2m5s works 31 in 1m1s", "3m6s fails 31 in 1m0s", "3m7s works 31 in 1m1s",
		"4m8s fails 31 in 1m0s", "4m9s works 31 in 1m1s",
	}
	if !slices.Equal(said, want) {
		t.Errorf("lines\n%q, want\n%q", said, want)
	}
}

func TestAnOutageThatBeginsSoonAfterALineIsToldWhenTheMinuteIsOver(t *testing.T) {
	began := time.Unix(1_000_000, 0)
	var l convergo.FailureLog
	lines(&l, began, began, 10*time.Second, false, true)
	said := lines(&l, began, began.Add(20*time.Second), 5*time.Second, slices.Repeat([]bool{false}, 15)...)
	if want := []string{"1m10s fails 11 in 50s"}; !slices.Equal(said, want) {
		t.Errorf("lines %q, want %q", said, want)
	}
	// One of which nothing was said, long ago, is not counted into the next.
	var m convergo.FailureLog
	lines(&m, began, began, 10*time.Second, false, true, false, true)
	said = lines(&m, began, began.Add(time.Hour), time.Second, false, false, true)
	if want := []string{"1h0m0s fails 1 in 0s", "1h0m2s works 2 in 2s"}; !slices.Equal(said, want) {
		t.Errorf("lines %q, want %q", said, want)
	}
}
