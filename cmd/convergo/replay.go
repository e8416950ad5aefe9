package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo/ops"
)

// replayCommand is `convergo replay`: a broker that lost its data is filled again from the outboxes.
type replayCommand struct {
	backends `embed:""`
	Data     string   `default:"convergo-data" type:"path" placeholder:"DIR" help:"Data folder with the databases that are files (default: ${default})."`
	Services []string `default:"${services}" placeholder:"a,b" help:"Services whose events are sent again (default: all)."`
	Outbox   string   `placeholder:"URL" help:"The outbox of an application that convergo relay serves, instead of the platform's."`
	Since    string   `required:"" placeholder:"TIME" help:"Events written at or after this time: RFC 3339 (2026-11-29T08:00:00Z), or how long ago (2h)."`
	By       string   `env:"-" placeholder:"NAME" help:"Who does it; kept on record (default: you)."`
	Reason   string   `env:"-" placeholder:"TEXT" help:"Why; kept on record."`
}

// since reads a time, or a duration before now.
func since(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("--since %q is neither a time like 2026-11-29T08:00:00Z nor a duration like 2h", text)
	}
	if at.After(now) {
		return at, fmt.Errorf("--since %s is in the future", at.Format(time.RFC3339))
	}
	return at, nil
}

// Run makes the events pending again. The relays that run anyway send them; consumers notice the keys that they have.
func (c replayCommand) Run(ctx context.Context, s streams) error {
	now := time.Now()
	from, err := since(c.Since, now)
	if err == nil && c.Outbox == "" { // else the platform's databases are not asked for
		if err = c.validate(); err != nil && c.Database != "" && !strings.Contains(c.Database, "{service}") {
			err = fmt.Errorf("%w; the outbox of an application is named with --outbox URL", err)
		}
	}
	if err == nil && max(len(c.By), len(c.Reason)) > ops.MaxText {
		err = fmt.Errorf("--by and --reason have at most %d bytes", ops.MaxText)
	}
	if err != nil {
		return misuse(err)
	}
	if c.By == "" {
		c.By = me()
	}
	if c.Outbox != "" {
		n, err := c.replay(ctx, "outbox", c.Outbox, from, now, logOf(s))
		if err == nil {
			_, err = fmt.Fprintf(s.out, "%s sent again\n", are(n, "event"))
		}
		return err
	}
	for _, name := range c.Services {
		if !slices.Contains(serviceNames(), name) {
			return misuse(fmt.Errorf("--services: there is no service %q; there are %s", name, strings.Join(serviceNames(), ", ")))
		}
	}
	for _, name := range c.Services { // all are there before any is changed
		store, err := openTables(ctx, name, c.databaseURL(c.Data, name), false, discarded())
		if err == nil {
			err = store.Close()
		}
		if err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
	}
	for _, name := range c.Services {
		n, err := c.replay(ctx, name, c.databaseURL(c.Data, name), from, now, logOf(s))
		if err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		if _, err := fmt.Fprintf(s.out, "%s: %s sent again\n", name, are(n, "event")); err != nil {
			return err
		}
	}
	return nil
}

// replay records first who does it and why: some may be pending when it fails.
func (c replayCommand) replay(ctx context.Context, name, database string, from, now time.Time, log *slog.Logger) (n int, err error) {
	store, err := openTables(ctx, name, database, true, log)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err = store.Record(ctx, replayed(from, c.By, c.Reason, now)); err != nil {
		return 0, err
	}
	return store.Replay(ctx, from, now)
}

// replayed is a replay as it is recorded.
func replayed(since time.Time, by, reason string, now time.Time) ops.Act {
	return ops.Act{Target: ops.TargetSent, ID: since.UTC().Format(time.RFC3339Nano), Move: ops.MoveReplay, By: by, Reason: reason, At: now}
}

// are is "1 event is", "2 events are".
func are(n int, thing string) string {
	if n == 1 {
		return "1 " + thing + " is"
	}
	return fmt.Sprintf("%d %ss are", n, thing)
}
