package retain_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // a bare machine has no zones

	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/testlog"
)

// table is rows with an age; it notes how it was purged.
type table struct {
	mu     sync.Mutex
	rows   []time.Time // oldest first
	chunks []int
	at     []time.Time
	fail   error
}

func (t *table) purge(_ context.Context, before time.Time, most int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fail != nil {
		return 0, t.fail
	}
	n := 0
	for n < most && n < len(t.rows) && t.rows[n].Before(before) {
		n++
	}
	t.rows = t.rows[n:]
	t.chunks = append(t.chunks, n)
	t.at = append(t.at, time.Now())
	return n, nil
}

func aged(n int, age time.Duration) *table {
	t := &table{}
	for range n {
		t.rows = append(t.rows, time.Now().Add(-age))
	}
	return t
}

func TestCaseB14OldRowsLeaveInChunksWithPausesForTheWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := aged(1200, 8*24*time.Hour)
		old.rows = append(old.rows, time.Now().Add(-time.Hour))
		r := retain.New([]retain.Job{{Name: "sent", Keep: 7 * 24 * time.Hour, Purge: old.purge}}, retain.Config{})
		deleted, err := r.RunOnce(t.Context())
		if err != nil || deleted["sent"] != 1200 || len(old.rows) != 1 {
			t.Errorf("%v, %v; %d rows left, want the young one", deleted, err, len(old.rows))
		}
		if got := fmt.Sprint(old.chunks); got != "[500 500 200]" {
			t.Errorf("chunks %s, want until fewer than 500 came back", got)
		}
		for i := 1; i < len(old.at); i++ {
			if pause := old.at[i].Sub(old.at[i-1]); pause < 20*time.Millisecond {
				t.Errorf("pause %d is %v", i, pause)
			}
		}
	})
}

// A day of 23 hours and one of 25, in the zone of the case. Nothing here is planned by what a clock on the wall shows: rounds and
// terms are durations, so none is left out or made twice, and a day of age is 24 hours.
func TestCaseB56RoundsAndTermsAreDurationsWhenTheClocksAreChanged(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	for name, day := range map[string]time.Time{
		"forward": time.Date(2026, 3, 8, 0, 0, 0, 0, zone), "back": time.Date(2026, 11, 1, 0, 0, 0, 0, zone),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				now := func() time.Time { return day.Add(time.Since(began)).In(zone) }
				var rounds [6]int // in each hour that passes
				job := retain.Job{Name: "sent", Keep: 24 * time.Hour, Purge: func(_ context.Context, before time.Time, _ int) (int, error) {
					if age := now().Sub(before); age != 24*time.Hour {
						t.Errorf("at %v rows of %v leave", now(), age)
					}
					rounds[min(int(time.Since(began)/time.Hour), len(rounds)-1)]++
					return 0, nil
				}}
				ctx, stop := context.WithTimeout(t.Context(), 6*time.Hour)
				defer stop()
				if err := retain.New([]retain.Job{job}, retain.Config{Every: time.Minute, Now: now}).Run(ctx); err != nil {
					t.Error(err)
				}
				for hour, n := range rounds {
					if n < 54 || n > 67 { // 60, each a tenth sooner or later
						t.Errorf("%d rounds in hour %d", n, hour)
					}
				}
				if shown := now().Hour(); shown == 6 {
					t.Error("the clocks were not changed: the case was not tried")
				}
			})
		})
	}
}

func TestAForgottenKeepDeletesNothing(t *testing.T) {
	for _, keep := range []time.Duration{0, retain.Forever} {
		rows := aged(10, 1000*time.Hour)
		deleted, err := retain.New([]retain.Job{{Name: "rows", Keep: keep, Purge: rows.purge}}, retain.Config{}).RunOnce(t.Context())
		if err != nil || deleted["rows"] != 0 || len(rows.rows) != 10 {
			t.Errorf("keep %v: %v, %v", keep, deleted, err)
		}
	}
}

func TestAJobThatFailsIsLoggedTriedAgainAndStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		bad, good := aged(10, 2*time.Hour), aged(10, 2*time.Hour)
		bad.fail = errors.New("disk full")
		panics := func(context.Context, time.Time, int) (int, error) { panic("nil map") }
		r := retain.New([]retain.Job{
			{Name: "panics", Keep: time.Hour, Purge: panics},
			{Name: "bad", Keep: time.Hour, Purge: bad.purge}, {Name: "good", Keep: time.Hour, Purge: good.purge},
		}, retain.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		<-time.After(2 * time.Minute) // the first round begins within a tenth of ten minutes
		synctest.Wait()
		if len(good.rows) != 0 || len(bad.rows) != 10 {
			t.Errorf("good has %d rows, bad %d", len(good.rows), len(bad.rows))
		}
		for _, want := range []string{"disk full", "job=bad", "nil map"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, log.String())
			}
		}
		bad.mu.Lock()
		bad.fail = nil
		bad.mu.Unlock()
		<-time.After(11 * time.Minute)
		synctest.Wait()
		if len(bad.rows) != 0 {
			t.Error("the failed job was not tried in the next round")
		}
		if !strings.Contains(log.String(), `msg="old rows leave again" job=bad failures=1 after=`) {
			t.Errorf("the log does not tell that the job works again:\n%s", log.String())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRoundsThatFollowOneAnotherFastDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Lines
		bad := aged(10, 2*time.Hour)
		bad.fail = errors.New("connection refused")
		r := retain.New([]retain.Job{{Name: "bad", Keep: time.Hour, Purge: bad.purge}}, retain.Config{
			Every: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if n := len(lines); n < 9 || n > 11 || !strings.Contains(lines[n-1], " for=9m") && !strings.Contains(lines[n-1], " for=8m") {
			t.Errorf("%d lines in ten minutes:\n%s", n, log.String())
		}
	})
}

func TestRunOnceTellsWhatFailed(t *testing.T) {
	bad, good := aged(0, 0), aged(3, 2*time.Hour)
	bad.fail = errors.New("disk full")
	deleted, err := retain.New([]retain.Job{
		{Name: "bad", Keep: time.Hour, Purge: bad.purge}, {Name: "good", Keep: time.Hour, Purge: good.purge},
	}, retain.Config{}).RunOnce(t.Context())
	if !errors.Is(err, bad.fail) || !strings.Contains(err.Error(), "bad") || deleted["good"] != 3 {
		t.Errorf("%v, %v", deleted, err)
	}
}

func TestItStopsBetweenTwoChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows := aged(1_000_000, 2*time.Hour)
		r := retain.New([]retain.Job{{Name: "rows", Keep: time.Hour, Purge: rows.purge}}, retain.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		deleted, err := r.RunOnce(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || deleted["rows"] != 1500 {
			t.Errorf("%v, %v, want three chunks and the end of the context", deleted, err)
		}
	})
}

func TestRoundsOfAFleetSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := map[time.Time]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 10)
		tables := make([]*table, 10)
		for i := range tables {
			tables[i] = aged(1, 2*time.Hour)
			r := retain.New([]retain.Job{{Name: "rows", Keep: time.Hour, Purge: tables[i].purge}}, retain.Config{})
			go func() { done <- r.Run(ctx) }()
		}
		<-time.After(time.Hour)
		cancel()
		for _, table := range tables {
			<-done
			first[table.at[0]] = true
			if n := len(table.at); n < 5 || n > 7 {
				t.Errorf("%d rounds in an hour, want about 6", n)
			}
		}
		if len(first) < 9 {
			t.Errorf("ten retainers began at %d moments", len(first))
		}
	})
}

func TestADedupWindowShorterThanTheBrokersIsRefused(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		keep, age time.Duration
		refused   bool
	}{
		{30 * day, 7 * day, false},
		{7*day + 1, 7 * day, false},
		{retain.Forever, retain.Forever, false},
		{0, 7 * day, false},
		{7 * day, 7 * day, true}, // a message that arrives at its last moment would find its row gone
		{day, 7 * day, true},
		{30 * day, 0, true},
	} {
		err := retain.CheckWindow(c.keep, c.age)
		if errors.Is(err, retain.ErrWindow) != c.refused {
			t.Errorf("keep %v, broker %v: %v, want refused=%v", c.keep, c.age, err, c.refused)
		}
		if err != nil && !strings.Contains(err.Error(), c.keep.String()) {
			t.Errorf("%v does not say how long rows are kept", err)
		}
	}
}
