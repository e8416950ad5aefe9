package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
)

// checkCommand is `convergo check`.
type checkCommand struct {
	backends `embed:""`
	Data     string        `default:"convergo-data" type:"path" placeholder:"DIR" help:"Data folder of a stopped or running platform (default: ${default})."`
	World    string        `type:"path" env:"CONVERGO_WORLD_FILE" placeholder:"FILE" help:"Database of the simulated outside (default: DIR/world.db)."`
	Settle   time.Duration `default:"5s" help:"How long a break may last before it counts: on a running platform things are on their way."`
	// The same names as serve's: a configuration file or a variable sets both.
	KeepSent     time.Duration `default:"336h" help:"How long the platform keeps sent events: what is younger and missing is damage."`
	KeepInbox    time.Duration `default:"336h" help:"How long the platform's consumers remember what they applied."`
	KeepRequests time.Duration `default:"168h" help:"How long the platform remembers an Idempotency-Key."`
	Details      int           `default:"5" placeholder:"N" help:"Broken rows to name in each equation (default: ${default})."`
	JSON         bool          `help:"The equations as JSON."`
}

// Run checks and fails when an equation is broken.
func (c checkCommand) Run(ctx context.Context, s streams) (err error) {
	if err := c.validate(); err != nil {
		return misuse(err)
	}
	if err := positive([]setting{{"--keep-sent", c.KeepSent}, {"--keep-inbox", c.KeepInbox}, {"--keep-requests", c.KeepRequests}}); err != nil {
		return misuse(err)
	}
	checker, err := openChecker(ctx, c.backends, c.Data, c.World)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checker.Close()) }()
	checker.Details, checker.Keep = c.Details, min(c.KeepSent, c.KeepInbox, c.KeepRequests)
	var equations []check.Equation
	if at, stopped := stoppedAt(c.Data); stopped {
		checker.Now = func() time.Time { return at }
		equations, err = checker.Run(ctx)
	} else {
		equations, err = checker.Settled(ctx, c.Settle)
	}
	if err != nil {
		return err
	}
	broken := 0
	for _, e := range equations {
		if e.Broken > 0 {
			broken++
		}
	}
	verdict := drill.Converged
	if broken > 0 {
		verdict = drill.Broken
	}
	if c.JSON {
		e := json.NewEncoder(s.out)
		e.SetIndent("", "  ")
		err = e.Encode(map[string]any{"verdict": verdict, "equations": equations})
	} else {
		w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(w, "%s\n%s: %d equations, %d broken\n", check.Table(equations), verdict, len(equations), broken) // Flush reports
		err = w.Flush()
	}
	if err == nil && broken > 0 {
		err = errors.New("not converged: at least one equation is broken")
	}
	return err
}

// stopping is how long before its last write a platform that stops may have ceased to begin anything.
const stopping = 5 * time.Second

// stoppedAt is when a platform that was stopped cleanly still did what became due: shortly before it wrote last, because its
// parts stop before its databases are closed. What became due after that is not overdue: nobody was there to do it, and the
// next start will.
func stoppedAt(dir string) (at time.Time, stopped bool) {
	if _, err := os.Stat(filepath.Join(dir, aliveFile)); !errors.Is(err, fs.ErrNotExist) {
		return at, false // it runs, or was killed
	}
	for _, service := range check.Services() {
		for _, ending := range []string{".db", ".db-wal"} {
			if info, err := os.Stat(filepath.Join(dir, service+ending)); err == nil && info.ModTime().After(at) {
				at = info.ModTime()
			}
		}
	}
	return at.Add(-stopping), !at.IsZero()
}
