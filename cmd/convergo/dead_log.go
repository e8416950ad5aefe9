package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

type deadLogCommand struct {
	deadLogPlace `embed:""`
	After        int64 `env:"-" placeholder:"N" help:"Begin behind this one: the last of the page before."`
	Limit        int   `env:"-" default:"100" help:"How many at most (default: ${default})."`
}

// deadLogPlace is deadPlace without --letters: events and letters have one record.
type deadLogPlace struct {
	backends `embed:""`
	Data     string `default:"convergo-data" type:"path" placeholder:"DIR" help:"Data folder with the databases that are files (default: ${default})."`
	Service  string `env:"-" placeholder:"NAME" help:"A service of the platform. Without: --database is the outbox of an application."`
	JSON     bool   `env:"-" help:"As JSON."`
}

// actLine is one act as JSON.
type actLine struct {
	Seq    int64        `json:"seq"`
	At     time.Time    `json:"at"`
	Did    ops.Move     `json:"did"`
	Target ops.Target   `json:"target" doc:"ops.event, ops.letter or ops.sent"`
	ID     string       `json:"id" doc:"of the dead event or dead letter; of a replay the time from which on"`
	Key    convergo.Key `json:"key,omitempty"`
	By     string       `json:"by"`
	Reason string       `json:"reason,omitempty"`
}

func lineOfAct(a ops.Act) actLine {
	return actLine{a.Seq, a.At, a.Move, a.Target, a.ID, a.Key, a.By, a.Reason}
}

func linesOfActs(acts []ops.Act) []actLine {
	lines := make([]actLine, 0, len(acts))
	for _, a := range acts {
		lines = append(lines, lineOfAct(a))
	}
	return lines
}

// Run lists what persons did.
func (c deadLogCommand) Run(ctx context.Context, s streams) (err error) {
	if c.Limit < 1 || c.After < 0 {
		return misuse(errors.New("--limit is at least 1, --after is not negative"))
	}
	g, err := deadPlace{backends: c.backends, Data: c.Data, Service: c.Service}.open(ctx, false, discarded())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	acts, err := g.store.Acts(ctx, c.Limit+1, c.After) // one more tells whether there are more
	if err != nil {
		return err
	}
	more := len(acts) > c.Limit
	acts = acts[:min(len(acts), c.Limit)]
	if c.JSON {
		return indented(s.out, map[string]any{"acts": linesOfActs(acts), "more": more})
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "N\tAT\tWHO\tDID\tTO\tKEY\tWHY") // Flush reports
	for _, a := range acts {
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s %s\t%s\t%s\n", a.Seq, a.At.UTC().Format(time.RFC3339), printable(a.By), printable(string(a.Move)),
			printable(string(a.Target)), printable(a.ID), cmp.Or(printable(string(a.Key)), "-"), cmp.Or(printable(a.Reason), "-"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more {
		_, err = fmt.Fprintf(s.out, "there are more: --after %d\n", acts[len(acts)-1].Seq)
	}
	return err
}
