package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

// wantTold looks for an outage of half an hour in the log: a line a minute at most, how long it lasts, and its end.
func wantTold(t *testing.T, log *testlog.Lines, cause string) {
	t.Helper()
	var goesOn, over []string
	for line := range strings.Lines(log.String()) {
		switch {
		case !strings.Contains(line, fmt.Sprintf("cause=%q", cause)):
		case strings.Contains(line, `msg="consumer pauses"`):
			goesOn = append(goesOn, line)
		case strings.Contains(line, `msg="consumer goes on"`):
			over = append(over, line)
		}
	}
	n := len(goesOn)
	if n < 25 || n > 31 {
		t.Fatalf("%s: %d lines in half an hour:\n%s", cause, n, log.String())
	}
	if !strings.Contains(goesOn[0], " failures=1 for=0s") || !strings.Contains(goesOn[n-1], " for=29m") {
		t.Errorf("%s: the first line %q and the last one %q do not say how long it lasts", cause, goesOn[0], goesOn[n-1])
	}
	// A loop that looks every two seconds met the outage up to that much later.
	if len(over) != 1 || !strings.Contains(over[0], " after=30m") && !strings.Contains(over[0], " after=29m5") {
		t.Errorf("%s: the end is told in %q", cause, over)
	}
}

func TestALongOutageOfTheStoreIsToldOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log testlog.Lines
		s, src := newStore(), newSource()
		c, stop := running(t, s, src, inbox.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, moved(s.effect))
		pass(time.Second)
		s.set(func(s *store) { s.down = errors.New("connection refused") })
		src.send(event("O-1", 1))
		pass(30 * time.Minute)
		s.set(func(s *store) { s.down = nil })
		pass(10 * time.Second)
		same(t, "stopped", stop(), nil)
		same(t, "applied", s.log("O-1"), "[1]")
		if n := c.Stats().Outages; n < 1000 {
			t.Errorf("%d tries in half an hour of outage", n)
		}
		wantTold(t, &log, "the store cannot be written")
		wantTold(t, &log, "queues cannot be worked off")
	})
}

func TestALongOutageOfTheSourceIsToldOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log testlog.Lines
		s, src := newStore(), newSource(event("O-1", 1))
		src.broken = errWeather
		_, stop := running(t, s, src, inbox.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, moved(s.effect))
		pass(30 * time.Minute)
		src.mu.Lock()
		src.broken = nil
		src.mu.Unlock()
		pass(10 * time.Second)
		same(t, "stopped", stop(), nil)
		wantTold(t, &log, "the source cannot be read")
	})
}

// A batch that cannot be returned is a hundred messages, each time that the store is tried.
func TestMessagesThatCannotBeReturnedAreOneLineAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log testlog.Lines
		s, src := newStore(), &unreturnable{newSource()}
		_, stop := running(t, s, src, inbox.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, moved(s.effect))
		pass(time.Second)
		s.set(func(s *store) { s.down = errors.New("connection refused") })
		for n := range 600 {
			src.send(event(fmt.Sprint("O-", n), 1))
			pass(time.Second)
		}
		same(t, "stopped", stop(), nil)
		lines := strings.Count(log.String(), `msg="messages could not be returned"`)
		if lines < 8 || lines > 11 || !strings.Contains(log.String(), "messages=") || !strings.Contains(log.String(), "the channel is closed") {
			t.Errorf("%d lines in ten minutes:\n%s", lines, log.String())
		}
	})
}

// unreturnable is a source that takes nothing back.
type unreturnable struct{ *source }

func (u *unreturnable) Fetch(ctx context.Context, most int) ([]inbox.Delivery, error) {
	list, err := u.source.Fetch(ctx, most)
	for i := range list {
		list[i].Return = func(context.Context, time.Duration) error { return errors.New("the channel is closed") }
	}
	return list, err
}

func TestARegistrationThatFailsLaterIsToldOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log testlog.Lines
		s := newStore()
		_, stop := running(t, s, newSource(), inbox.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, moved(s.effect))
		pass(59 * time.Minute)
		s.set(func(s *store) {
			s.spoiled = func(context.Context, *memory.Tx) error { return errors.New("the disk is full") }
		})
		pass(11 * time.Minute)
		s.set(func(s *store) { s.spoiled = nil })
		pass(10 * time.Second)
		same(t, "stopped", stop(), nil)
		lines := strings.Count(log.String(), `msg="the types that it handles are not registered again yet"`)
		if lines < 9 || lines > 11 || strings.Count(log.String(), `msg="consumer goes on"`) != 1 {
			t.Errorf("%d lines in ten minutes:\n%s", lines, log.String())
		}
	})
}
