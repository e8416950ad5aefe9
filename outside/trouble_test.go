package outside_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/testlog"
)

// said is the lines with a message.
func said(log *testlog.Lines, message string) (lines []string) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, fmt.Sprintf("msg=%q", message)) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestALongOutageOfTheStoreIsToldOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		var log testlog.Lines
		s.set(func(s *shop) { s.refuse = errors.New("the store is down") })
		calls, stop := s.open(outside.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, s.handler())
		pass(30 * time.Minute)
		s.set(func(s *shop) { s.refuse = nil })
		pass(10 * time.Second)
		stop()
		lines := said(&log, "outgoing calls cannot be claimed, pausing")
		if n := len(lines); n < 25 || n > 31 || calls.Stats().Outages < 300 {
			t.Fatalf("%d lines in half an hour, %+v", n, calls.Stats())
		}
		if first, last := lines[0], lines[len(lines)-1]; !strings.Contains(first, " failures=1 for=0s") || !strings.Contains(last, " for=29m") {
			t.Errorf("the first line %q and the last one %q do not say how long it lasts", first, last)
		}
		if ended := said(&log, "outgoing calls can be claimed again"); len(ended) != 1 || !strings.Contains(ended[0], " after=30m") {
			t.Errorf("the end of the outage: %q", ended)
		}
	})
}

func TestOutcomesThatNoStoreTakesAreToldOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		var log testlog.Lines
		s.set(func(s *shop) { s.down = errors.New("the disk is full") })
		calls, stop := s.open(outside.Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Lease: 4 * time.Second}, s.handler())
		for n := range 50 {
			s.schedule(calls, outside.Call{Key: convergo.Key(fmt.Sprint("P-", n)), Kind: "refund"})
		}
		pass(10 * time.Minute)
		s.set(func(s *shop) { s.down = nil })
		pass(10 * time.Second)
		stop()
		lines := said(&log, "outcomes of outgoing calls cannot be recorded, they will be asked for again")
		if n := len(lines); n < 8 || n > 11 || calls.Stats().Outages < 1000 {
			t.Fatalf("%d lines in ten minutes, %+v", n, calls.Stats())
		}
		if ended := said(&log, "outcomes of outgoing calls can be recorded again"); len(ended) != 1 {
			t.Errorf("the end: %q", ended)
		}
		if done := calls.Stats().Done; done != 50 {
			t.Errorf("%d calls are done, want 50", done)
		}
	})
}

func TestAnOutcomeThatItsOwnStepRefusesIsToldOfEachCall(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		var log testlog.Lines
		s.doneFail.Store(3)
		calls, stop := s.open(outside.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, s.handler())
		for n := range 3 {
			s.schedule(calls, outside.Call{Key: convergo.Key(fmt.Sprint("P-", n)), Kind: "refund"})
		}
		pass(time.Minute)
		stop()
		if lines := said(&log, "outcome of an outgoing call could not be recorded, it will be asked for again"); len(lines) != 3 {
			t.Errorf("%d lines, want one of each call: %q", len(lines), lines)
		}
	})
}
