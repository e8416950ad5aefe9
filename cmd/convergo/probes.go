package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/trade"
)

const seeLog = "see the relay's log"

// flow is what tells whether events leave an outbox.
type flow struct {
	name    string
	backlog func(ctx context.Context, now time.Time) (ops.Backlog, error)
	relay   func() relay.Stats
}

// stuck says why events of the outbox do not flow, or "". What waits behind a failed event of its aggregate is an operator's
// matter and no reason: everything else flows past it.
func (f flow) stuck(ctx context.Context, now time.Time, lag time.Duration) string {
	b, err := f.backlog(ctx, now)
	if err != nil {
		return "the database of " + f.name + " does not answer"
	}
	oldest := b.Pending.Since
	if due := b.DelayedDue.Since; oldest.IsZero() || (!due.IsZero() && due.Before(oldest)) {
		oldest = due
	}
	if oldest.IsZero() || now.Sub(oldest) <= lag {
		return ""
	}
	s := f.relay()
	switch {
	case s.InOutage:
		return fmt.Sprintf("events of %s have waited since %s: the broker takes no events now", f.name, oldest.UTC().Format(time.RFC3339))
	case s.Lanes == 0:
		return fmt.Sprintf("events of %s have waited since %s: this relay holds no lane", f.name, oldest.UTC().Format(time.RFC3339))
	default:
		return fmt.Sprintf("events of %s have waited since %s", f.name, oldest.UTC().Format(time.RFC3339))
	}
}

// flowing looks whether an event has waited longer than lag.
func flowing(lag time.Duration, flows ...flow) func(ctx context.Context) (why string) {
	return func(ctx context.Context) (why string) {
		for _, f := range flows {
			if why = f.stuck(ctx, time.Now(), lag); why != "" {
				return why
			}
		}
		return ""
	}
}

// probing answers 200 with the status when look finds nothing wrong, and 503 with why and the remedy otherwise, sooner than those who
// ask lose their patience. What was found counts for a second, and whoever asks meanwhile waits for the one look: see probed.
func probing(now func() time.Time, status, remedy string, look func(ctx context.Context) (why string)) http.HandlerFunc {
	var mu sync.Mutex
	var at time.Time
	var why string
	found := func(ctx context.Context) string {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || now().Sub(at) >= time.Second {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second) // others want the answer though this one may go
			defer cancel()
			why, at = look(ctx), now()
		}
		return why
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if why := found(r.Context()); why != "" {
			trade.WriteProblem(w, trade.NewProblem(http.StatusServiceUnavailable, "", why, remedy))
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": status})
	}
}

// probed are the paths that a supervisor asks. They are not counted by the limits: whoever asks may share the address of a client
// who is in a hurry, so the answers must cost nothing however often they are asked for.
func probed(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/readyz", "/flowz":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	return false
}

func alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "alive"})
}
