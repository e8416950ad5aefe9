package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/trade"
)

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
		return fmt.Sprintf("events of %s have waited since %s: the broker cannot be reached", f.name, oldest.UTC().Format(time.RFC3339))
	case s.Lanes == 0:
		return fmt.Sprintf("events of %s have waited since %s: this relay holds no lane", f.name, oldest.UTC().Format(time.RFC3339))
	default:
		return fmt.Sprintf("events of %s have waited since %s", f.name, oldest.UTC().Format(time.RFC3339))
	}
}

// flowing answers 200 when no event has waited longer than lag, and 503 with the reason otherwise.
func flowing(lag time.Duration, flows ...flow) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		for _, f := range flows {
			if why := f.stuck(ctx, time.Now(), lag); why != "" {
				trade.WriteProblem(w, trade.NewProblem(http.StatusServiceUnavailable, "", why, "see the relay's log"))
				return
			}
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": "flowing"})
	}
}

func alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "alive"})
}
