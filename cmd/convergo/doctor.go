package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/convergo/convergo/retain"
)

// doctorCommand is `convergo doctor`: it takes the settings of serve, and looks whether serve could run with them.
type doctorCommand struct {
	serveCommand
	JSON bool `help:"The findings as JSON."`
}

// finding is one thing that the doctor looked at.
type finding struct {
	Subject string `json:"subject"` // "database of order", "broker", …
	Level   string `json:"level"`   // ok, warning or error
	Detail  string `json:"detail"`  // what is so, and what to do about it
}

const (
	levelOK      = "ok"
	levelWarning = "warning"
	levelError   = "error"
)

// examination collects findings.
type examination struct {
	doctorCommand
	findings []finding
}

func (e *examination) note(level, subject, format string, args ...any) {
	e.findings = append(e.findings, finding{subject, level, fmt.Sprintf(format, args...)})
}

// Run examines and fails when something would keep the platform from running. What can be lost is a warning.
func (c doctorCommand) Run(ctx context.Context, s streams) error {
	e := &examination{doctorCommand: c}
	if err := c.validate(); err != nil {
		e.note(levelError, "settings", "%v", err)
	} else {
		e.note(levelOK, "settings", "they fit together")
		e.partial()
		e.examine(ctx)
	}
	if err := e.write(s); err != nil {
		return err
	}
	bad := 0
	for _, f := range e.findings {
		if f.Level == levelError {
			bad++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d findings would keep the platform from running", bad, len(e.findings))
	}
	return nil
}

func (e *examination) write(s streams) error {
	if e.JSON {
		out := json.NewEncoder(s.out)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"findings": e.findings})
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, f := range e.findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Subject, f.Detail) // Flush reports
	}
	return w.Flush()
}

func (e *examination) examine(ctx context.Context) {
	for _, name := range e.Services {
		e.database(ctx, name)
	}
	e.broker(ctx)
	e.retention()
	e.lease()
	e.secrets()
	for _, name := range slices.Sorted(maps.Keys(e.Peers)) {
		e.peer(ctx, name)
	}
}

// partial: a process that runs some of the services only must be able to reach the others, and the one outside world.
func (e *examination) partial() {
	if len(e.Services) == len(serviceNames()) {
		return
	}
	if e.embedded() {
		e.note(levelWarning, "settings", "--services leaves some out, and the embedded broker reaches no other process: name --broker")
	}
	if e.World == "" {
		e.note(levelWarning, "settings", "--services leaves some out and there is no --world: this process would simulate an outside world of its own; "+
			"let one process do so and give the others --world http://HOST:PORT of that one")
	}
}

const (
	patience   = 10 * time.Second // for an answer
	mostSkew   = time.Second      // between the clocks of this machine and a database
	leastLease = 2 * time.Second
	others     = 0o077 // the rights of those who do not own a file
)

// database looks at a service's database without changing it: whether it answers, whose clock is right, whether tables can be made.
func (e *examination) database(ctx context.Context, name string) {
	subject := "database of " + name
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	source, file, err := openSource(e.databaseURL(e.Data, name))
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	if file != "" {
		e.file(subject, file)
		return
	}
	defer func() { _ = source.DB.Close() }() // only read
	before := time.Now()
	facts, err := factsOf(ctx, source)
	took := time.Since(before)
	if err != nil {
		e.note(levelError, subject, "does not answer: %v", err)
		return
	}
	e.note(levelOK, subject, "%s answers in %v", facts.version, took.Round(time.Millisecond))
	if skew := facts.now.Sub(before.Add(took / 2)); skew.Abs() > mostSkew+took {
		e.note(levelWarning, subject, "its clock differs from this machine's by %v: leases go by its clock and are not hurt, delayed events and timeouts go by "+
			"this machine's; let both follow one time server", skew.Round(time.Millisecond))
	}
	if !facts.mayCreate && !facts.migrated {
		e.note(levelError, subject, "the account may not make tables in %s, and there are none: grant it CREATE for the first start", source.Schema)
		return
	}
	if !facts.migrated {
		e.note(levelOK, subject, "empty: the first start makes its tables")
		return
	}
	e.store(ctx, subject, name)
}

// store asks the store itself, whose tables are there, what of its database's settings can lose something.
func (e *examination) store(ctx context.Context, subject, name string) {
	store, err := openStore(ctx, name, e.databaseURL(e.Data, name), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	defer func() { _ = store.Close() }() // only read
	if c, ok := store.database.(checks); ok {
		e.warnings(ctx, subject, c)
	}
	b, err := store.Backlog(ctx, time.Now())
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	if n := b.Dead.Count + b.InboxDead.Count; n > 0 {
		e.note(levelWarning, subject, "%d events or messages wait for a person: see /ops/%s/dead-events and dead-letters", n, name)
	}
}

func (e *examination) warnings(ctx context.Context, subject string, c checks) {
	warnings, err := c.Check(ctx)
	if err != nil {
		e.note(levelError, subject, "its settings cannot be read: %v", err)
		return
	}
	for _, w := range warnings {
		e.note(levelWarning, subject, "%v", w)
	}
	if len(warnings) == 0 {
		e.note(levelOK, subject, "durable: no setting was found under which something confirmed is lost")
	}
}

func (e *examination) file(subject, path string) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir, err := os.Stat(filepath.Dir(path))
		if err == nil && !dir.IsDir() {
			e.note(levelError, subject, "%s is not a folder", filepath.Dir(path))
			return
		}
		e.note(levelOK, subject, "%s is not there yet: the first start makes it", path)
	case err != nil:
		e.note(levelError, subject, "%v", err)
	case !info.Mode().IsRegular():
		e.note(levelError, subject, "%s is not a file", path)
	default:
		e.note(levelOK, subject, "%s, %d KiB", path, info.Size()>>10)
	}
}

// broker connects as serve would, which makes what serve would make there, and asks for settings that can lose something.
func (e *examination) broker(ctx context.Context) {
	if e.embedded() {
		e.note(levelOK, "broker", "embedded in this process: other processes cannot reach it")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	b, err := connectBroker(ctx, e.brokerURL(), brokerOptions{maxAge: e.KeepBroker, unclaimed: unheard(), log: slog.New(slog.DiscardHandler)})
	if err != nil {
		e.note(levelError, "broker", "%v", err)
		return
	}
	defer func() { _ = b.close() }() // nothing was sent
	e.note(levelOK, "broker", "%s answers", redacted(e.brokerURL()))
	if c, ok := b.broker.(checks); ok {
		e.warnings(ctx, "broker", c)
	}
}

// retention: what the broker keeps must be shorter than what consumers remember; sent events must outlive the broker's loss.
func (e *examination) retention() {
	if err := retain.CheckWindow(e.KeepInbox, e.KeepBroker); err != nil {
		e.note(levelError, "retention", "%v", err)
		return
	}
	if e.KeepSent < e.KeepBroker {
		e.note(levelWarning, "retention", "--keep-sent %v is shorter than --keep-broker %v: a broker that loses its data cannot be filled again completely",
			e.KeepSent, e.KeepBroker)
		return
	}
	e.note(levelOK, "retention", "consumers remember for %v, the broker keeps %v, sent events stay replayable for %v", e.KeepInbox, e.KeepBroker, e.KeepSent)
}

func (e *examination) lease() {
	if e.Lease < leastLease {
		e.note(levelWarning, "leases", "--lease %v is so short that a slow moment of the database costs leases; want %v or more", e.Lease, leastLease)
	}
}

func (e *examination) secrets() {
	path := e.Secrets
	if path == "" {
		path = filepath.Join(e.Data, secretsFile)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Secrets == "":
		e.note(levelOK, "secrets", "%s is not there yet: the first start makes it", path)
	case err != nil:
		e.note(levelError, "secrets", "%v", err)
	case info.Mode().Perm()&others != 0:
		e.note(levelWarning, "secrets", "%s can be read by others (%v): chmod 600", path, info.Mode().Perm())
	default:
		if _, err := readSecrets(path); err != nil {
			e.note(levelError, "secrets", "%v", err)
			return
		}
		e.note(levelOK, "secrets", "%s", path)
	}
}

func (e *examination) peer(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Peers[name]+"/healthz", nil)
	if err != nil {
		e.note(levelError, "peer "+name, "%v", err)
		return
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		e.note(levelWarning, "peer "+name, "does not answer (requests for it are answered 502 until it does): %v", err)
		return
	}
	_ = answer.Body.Close() // its status is enough
	if answer.StatusCode != http.StatusOK {
		e.note(levelWarning, "peer "+name, "%s/healthz answers %s", e.Peers[name], answer.Status)
		return
	}
	e.note(levelOK, "peer "+name, "answers")
}
