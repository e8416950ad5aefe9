package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

// said is the lines with a message.
func said(log *testlog.Lines, message string) (lines []string) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, fmt.Sprintf("msg=%q", message)) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// wantTold looks for an outage of half an hour: its begin, a line a minute at most, each with how often it failed, and its end.
func wantTold(t *testing.T, log *testlog.Lines, begins, goesOn, ends string) {
	t.Helper()
	lines := said(log, begins)
	if len(lines) == 0 || !strings.Contains(lines[0], " failures=1 for=0s") {
		t.Fatalf("the begin of an outage: %q in\n%s", lines, log.String())
	}
	if begins != goesOn {
		lines = append(lines, said(log, goesOn)...)
	}
	if n := len(lines); n < 20 || n > 31 {
		t.Errorf("%d lines while %q lasts half an hour", n, begins)
	} else if last := lines[n-1]; !strings.Contains(last, " for=29m") && !strings.Contains(last, " for=28m") || !strings.Contains(last, " failures=") {
		t.Errorf("the last line %q does not say how long it lasts and how often it failed", last)
	}
	ended := said(log, ends)
	if len(ended) != 1 || !strings.Contains(ended[0], " failures=") || !strings.Contains(ended[0], " after=30m") && !strings.Contains(ended[0], " after=29m") {
		t.Errorf("the end of an outage: %q", ended)
	}
}

func TestALongOutageOfTheDatabaseIsToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		db, b := memory.New(), &broker{}
		store := &faulty{Store: db}
		b.before = func(context.Context, []convergo.Event) {
			store.failWith(func(string) error { return errDown }) // between the confirmation and its settlement
		}
		add(t, db, event("O-1", 1))
		r := start(store, b, relay.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		pass(30 * time.Minute)
		if s := r.Stats(); !strings.Contains(s.LastError, errDown.Error()) || time.Since(s.LastErrorAt) > 10*time.Second {
			t.Errorf("%+v, want the last failure, told or not", s)
		}
		store.failWith(nil)
		pass(30 * time.Second)
		r.stop(t)
		wantTold(t, &log, "leases could not be renewed", "leases could not be renewed", "leases can be renewed again")
		wantTold(t, &log, "published events could not be settled", "published events could not be settled", "published events can be settled again")
		if n := strings.Count(log.String(), "\n"); n > 70 {
			t.Errorf("%d lines in half an hour", n)
		}
	})
}

func TestClaimsThatFailAreToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		store := &faulty{Store: memory.New()}
		store.failWith(func(method string) error {
			if method == "Claim" {
				return errDown
			}
			return nil
		})
		r := start(store, &broker{}, relay.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		pass(30 * time.Minute)
		store.failWith(nil)
		pass(30 * time.Second)
		r.stop(t)
		wantTold(t, &log, "events could not be claimed", "events could not be claimed", "events can be claimed again")
	})
}

func TestALongOutageOfTheBrokerIsToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		var down atomic.Bool
		down.Store(true)
		store, b := memory.New(), &broker{}
		b.answer = func(context.Context, convergo.Event) error {
			if down.Load() {
				return convergo.Unreachable(errDown)
			}
			return nil
		}
		add(t, store, event("O-1", 1))
		r := start(store, b, relay.Config{
			Log: slog.New(slog.NewTextHandler(&log, nil)), Outage: convergo.Backoff{Base: time.Second, Cap: 2 * time.Second},
		})
		pass(30 * time.Minute)
		down.Store(false)
		until(t, time.Minute, "the event", b.has(1))
		pass(time.Second)
		r.stop(t)
		wantTold(t, &log, "the broker takes no events now; one at a time will try until it does", "the broker still takes no events",
			"the broker takes events again")
	})
}

func TestReceiversThatAreAwayAreToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		store, b := memory.New(), &broker{}
		b.answer = func(_ context.Context, e convergo.Event) error {
			if e.Aggregate.ID == "refused" {
				return errors.New("refused")
			}
			return convergo.Unavailable(errors.New("nobody has a queue"))
		}
		r := start(store, b, relay.Config{
			Log: slog.New(slog.NewTextHandler(&log, nil)), Backoff: convergo.Backoff{Base: 10 * time.Second, Cap: 10 * time.Second},
			MaxAttempts: 1000,
		})
		orders(t, store, 60, 1)
		pass(20 * time.Minute)
		if s := r.Stats(); s.Unavailable < 200 {
			t.Errorf("%+v, want many tries", s)
		}
		const message = "events could not be published and will be tried again"
		lines := said(&log, message)
		if n := len(lines); n < 10 || n > 21 {
			t.Errorf("%d lines in 20 minutes", n)
		} else if last := lines[n-1]; strings.Contains(last, `"settlements like this"=1 `) || !strings.Contains(last, "nobody has a queue") {
			t.Errorf("the last line %q does not say how often", last)
		}
		add(t, store, event("refused", 1)) // this is no outage: each of its attempts is told
		pass(5 * time.Minute)
		if n := len(said(&log, message)) - len(lines); n < 25+4 {
			t.Errorf("%d lines of an event that is refused 30 times", n)
		}
		r.stop(t)
	})
}

func TestAReceiverThatRefusesManyHasSomeLinesAMinuteThatSayHowMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		store, b := memory.New(), &broker{answer: func(context.Context, convergo.Event) error { return errors.New("404: no such order") }}
		r := start(store, b, relay.Config{
			Log: slog.New(slog.NewTextHandler(&log, nil)), Backoff: convergo.Backoff{Base: time.Second, Cap: time.Second}, MaxAttempts: 1000,
			Batch: 10,
		})
		orders(t, store, 20, 1)
		pass(3 * time.Minute)
		lines := said(&log, "events could not be published and will be tried again")
		if n := len(lines); n < 2*60 || n > 4*60 {
			t.Errorf("%d lines in three minutes, want 60 in each", n)
		}
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, `"settlements like this without a line"=`) }) {
			t.Error("no line says how many there were not")
		}
		r.stop(t)
	})
}
