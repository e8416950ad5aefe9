package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/convergo/convergo/relay"
)

// doctorCommand is `convergo doctor`: it takes the settings of serve, or of a relay, and looks whether that could run with them. It
// changes nothing, so it may be asked before a roll-out, on what is running.
type doctorCommand struct {
	serveCommand
	Relay bool `env:"-" help:"The settings are those of convergo relay: look at its outbox and its broker."`
	JSON  bool `help:"The findings as JSON."`

	relayFlags `embed:"" group:"With --relay"`
}

// finding is one thing that the doctor looked at.
type finding struct {
	Subject string `json:"subject"` // "database of order", "broker", …
	Level   string `json:"level"`   // ok, change, warning or error
	Detail  string `json:"detail"`  // what is so, and what to do about it
}

const (
	levelOK      = "ok"
	levelChange  = "change" // serve would make or change it; the doctor does not
	levelWarning = "warning"
	levelError   = "error"
)

// examination collects findings.
type examination struct {
	doctorCommand
	findings []finding
	fresh    int          // databases that nothing is in yet
	secret   bool         // there are secrets already
	taken    bool         // a database outside the data folder has a platform's tables
	atBroker []relay.Kept // how long it really keeps events, as far as it tells
	now      func() time.Time
}

func (e *examination) note(level, subject, format string, args ...any) {
	e.findings = append(e.findings, finding{subject, level, fmt.Sprintf(format, args...)})
}

// Run examines and fails when something would keep the platform from running. What can be lost is a warning.
func (c doctorCommand) Run(ctx context.Context, s streams) error {
	e := &examination{doctorCommand: c, now: time.Now}
	if c.Relay {
		e.ofRelay(ctx)
	} else if err := c.validate(); err != nil {
		e.note(levelError, "settings", "%v%s", err, c.meantRelay())
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
		return fmt.Errorf("%d of %d findings would keep %s from running", bad, len(e.findings), e.whose("the platform"))
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
	for _, f := range grouped(e.findings) {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Subject, f.Detail) // Flush reports
	}
	return w.Flush()
}

const ofDatabase = "database of "

// grouped has one line for databases of which the same is to be said.
func grouped(all []finding) (lines []finding) {
	at := map[finding]int{}
	for _, f := range all {
		name, ok := strings.CutPrefix(f.Subject, ofDatabase)
		same := finding{ofDatabase, f.Level, f.Detail}
		if i, before := at[same]; ok && before {
			lines[i].Subject = strings.Replace(lines[i].Subject, ofDatabase, "databases of ", 1) + ", " + name
			continue
		}
		if ok {
			at[same] = len(lines)
		}
		lines = append(lines, f)
	}
	return lines
}

func (e *examination) examine(ctx context.Context) {
	for _, name := range e.Services {
		e.database(ctx, name)
	}
	e.secrets()
	e.broker(ctx)
	e.retention()
	e.lease()
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
	strangers  = 0o027 // the rights of those who do not own a file; its group may read it, as orchestrators mount secrets
)

// database looks at a service's database without changing it: whether it answers, whose clock is right, whether tables can be made.
func (e *examination) database(ctx context.Context, name string) {
	subject := ofDatabase + name
	if e.Relay {
		subject = outboxSubject
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	source, file, err := openSource(e.databaseURL(e.Data, name))
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	if file != "" {
		if e.file(subject, file) {
			e.store(ctx, subject, name)
		}
		return
	}
	defer func() { _ = source.DB.Close() }() // only read
	before := e.now()
	facts, err := factsOf(ctx, source)
	took := e.now().Sub(before)
	if err != nil {
		e.note(levelError, subject, "%v", e.unseen(ctx, name, err))
		return
	}
	e.note(levelOK, subject, "%s answers in %v", facts.version, took.Round(time.Millisecond))
	if skew := facts.now.Sub(before.Add(took / 2)); skew.Abs() > mostSkew+took {
		e.note(levelWarning, subject, "its clock differs from this machine's by %v: leases go by its clock and are not hurt, delayed events and timeouts go by "+
			"this machine's; let both follow one time server", skew.Round(time.Millisecond))
	}
	if !facts.writable {
		e.note(levelError, subject, "takes no writes: it is a replica, or read only; name the primary")
	}
	if !facts.mayCreate && !facts.migrated {
		e.note(levelError, subject, "the account may not make tables in %s, and there are none: before the first start GRANT %s", source.Schema, facts.grant)
		return
	}
	e.store(ctx, subject, name)
}

// unseen is why a database cannot be looked at. What the server itself answered is said as serve says it, with what to do.
func (e *examination) unseen(ctx context.Context, name string, err error) error {
	address := e.databaseURL(e.Data, name)
	var postgres *pgconn.PgError
	var mysql *driver.MySQLError
	noTLS := errors.Is(err, driver.ErrNoTLS) || strings.Contains(err.Error(), "server refused TLS") // pgx has no error of its own
	if !errors.As(err, &postgres) && !errors.As(err, &mysql) && !noTLS {
		if a, broken := parseAddress(address); broken == nil {
			err = advised(a.unopened(err), err)
		}
		return fmt.Errorf("does not answer: %w", err)
	}
	store, refusal := openStoreWith(ctx, address, storeOptions{name: name, look: true, log: discarded()})
	if refusal == nil {
		return errors.Join(fmt.Errorf("cannot be looked at: %w", err), store.Close())
	}
	why := strings.TrimPrefix(refusal.Error(), redacted(address)+": ")
	if _, after, found := strings.Cut(why, " store "+name+": "); found { // the finding says whose it is
		why = after
	}
	return fmt.Errorf("refuses: %s", why)
}

// store asks the store itself, opened for reading, how far its tables have come and what of its settings can lose something.
func (e *examination) store(ctx context.Context, subject, name string) {
	store, err := openStoreWith(ctx, e.databaseURL(e.Data, name), storeOptions{name: name, look: true, log: discarded()})
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	defer func() { _ = store.Close() }() // only read
	if !e.schema(ctx, subject, name, store) {
		return
	}
	if c, ok := store.database.(checks); ok {
		e.warnings(ctx, subject, c)
	}
	e.times(ctx, subject, store)
	b, err := store.Backlog(ctx, time.Now())
	if err != nil {
		e.note(levelError, subject, "%v", err)
		return
	}
	if n := b.Dead.Count + b.InboxDead.Count; n > 0 {
		where := fmt.Sprintf("/ops/%s/dead-events and dead-letters", name)
		if e.Relay {
			where = "convergo dead list, and dead list --letters"
		}
		e.note(levelWarning, subject, "%d events or messages wait for a person: see %s", n, where)
	}
}

// schema says which migrations serve would apply, and tells whether the engine's tables are those that this program reads.
func (e *examination) schema(ctx context.Context, subject, name string, store *opened) (readable bool) {
	var pending, ahead []string
	began := false
	for _, set := range e.migrations(name) {
		have, newest, err := store.Version(ctx, set.name, set.migrations)
		if err != nil {
			e.note(levelError, subject, "%v", err)
			return false
		}
		began = began || have > 0
		e.taken = e.taken || have > 0 && set.name == "trade" && !slices.Contains(e.filesInFolder(), name)
		switch {
		case have < newest:
			pending = append(pending, fmt.Sprintf("%s %s", set.name, span(have+1, newest)))
		case have > newest:
			ahead = append(ahead, fmt.Sprintf("%s has version %d, this program knows %d", set.name, have, newest))
		}
		readable = readable || set.name == "engine" && have >= newest
	}
	switch {
	case !began:
		e.fresh++
		e.note(levelChange, subject, "empty: %s will make its tables (migrations %s)", e.whose("serve"), strings.Join(pending, ", "))
	case len(pending) > 0:
		e.note(levelChange, subject, "%s will apply the migrations %s", e.whose("serve"), strings.Join(pending, ", "))
	case len(ahead) > 0:
		e.note(levelOK, subject, "a newer program has migrated it, and lets this one run with it: %s", strings.Join(ahead, ", "))
	default:
		e.note(levelOK, subject, "its tables are those of this version")
	}
	return readable
}

func span(from, to int64) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d…%d", from, to)
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

// file tells whether there is a database to look into.
func (e *examination) file(subject, path string) bool {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir, err := os.Stat(filepath.Dir(path))
		if err == nil && !dir.IsDir() {
			e.note(levelError, subject, "%s is not a folder", filepath.Dir(path))
			return false
		}
		e.fresh++
		e.note(levelChange, subject, "%s is not there yet: %s will make it", path, e.whose("serve"))
	case err != nil:
		e.note(levelError, subject, "%v", err)
	case !info.Mode().IsRegular():
		e.note(levelError, subject, "%s is not a file", path)
	default:
		e.note(levelOK, subject, "%s, %d KiB", path, info.Size()>>10)
		return info.Size() > 0
	}
	return false
}

// broker connects as serve would, without making anything there, and asks for what is missing, what does not fit, and settings that
// can lose something.
func (e *examination) broker(ctx context.Context) {
	if e.embedded() {
		e.note(levelOK, "broker", "embedded in this process: other processes cannot reach it")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	b := e.connected(ctx, brokerOptions{maxAge: e.KeepBroker, unclaimed: unheard(), look: true, log: discarded()})
	if b == nil {
		return
	}
	defer func() { _ = b.close() }() // nothing was sent
	if l, ok := b.broker.(looks); ok {
		e.missing(ctx, l)
	}
	if c, ok := b.broker.(checks); ok {
		e.warnings(ctx, "broker", c)
	}
	e.kept(ctx, b.broker)
	e.room(ctx, b)
}

// connected is the broker, nil when it cannot be used.
func (e *examination) connected(ctx context.Context, o brokerOptions) *connected {
	b, err := connectBroker(ctx, e.brokerURL(), o)
	switch {
	case err != nil:
		e.note(levelError, "broker", "%v", err)
	case b.at.Scheme == "webhook":
		e.note(levelOK, "broker", "%s can be read; its endpoints are not asked", redacted(e.brokerURL()))
	default:
		e.note(levelOK, "broker", "%s answers", redacted(e.brokerURL()))
	}
	return b
}

func (e *examination) missing(ctx context.Context, l looks) {
	missing, err := l.Missing(ctx, topicsOf(e.Services), listeners(e.Services))
	for _, one := range each(err) {
		e.note(levelError, "broker", "%v", one)
	}
	if len(missing) > 0 {
		e.note(levelChange, "broker", "serve will make %s", strings.Join(missing, ", "))
	}
	e.occupied(ctx, l)
	if err == nil && len(missing) == 0 {
		e.note(levelOK, "broker", "everything that these services need there is made, with as many partitions as here")
	}
}

// occupied warns of a platform that begins where something is already: maybe another's. One process of several that share their secrets
// may begin later than the others.
func (e *examination) occupied(ctx context.Context, l looks) {
	if e.fresh < len(e.Services) || e.secret && len(e.Services) < len(serviceNames()) {
		return
	}
	for _, topic := range topicsOf(e.Services) {
		if missing, err := l.Missing(ctx, []string{topic}, nil); err == nil && len(missing) == 0 {
			e.note(levelWarning, "broker", "the databases are new, but the place for the events of topic %s is there already, under prefix %q: if it is another "+
				"platform's, give this one a ?prefix= of its own (and on NATS a ?stream=)", topic, e.prefix())
			return
		}
	}
}

// each error of several that were joined.
func each(err error) []error {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		return several.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
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
	e.secret = err == nil
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Secrets == "" && e.taken:
		e.note(levelError, "secrets", "%s is not there, and a database has the tables of a platform: %s", path, takenRemedy)
	case errors.Is(err, fs.ErrNotExist) && e.Secrets == "":
		e.note(levelChange, "secrets", "%s is not there yet: serve will make it", path)
	case err != nil:
		e.note(levelError, "secrets", "%v", err)
	case info.Mode().Perm()&strangers != 0:
		e.note(levelWarning, "secrets", "%s can be read or changed by others (%v): chmod 600, or 640 for a group", path, info.Mode().Perm())
	default:
		s, err := readSecrets(path)
		switch {
		case err != nil:
			e.note(levelError, "secrets", "%v", err)
		case s.PlatformID == "" && e.PlatformID == "" && e.Secrets != "":
			e.note(levelOK, "secrets", `%s; before you change its channel_secret add "platform_id": %q, which comes from that now`, path, s.platform())
		default:
			e.note(levelOK, "secrets", "%s, of platform %s", path, cmp.Or(e.PlatformID, s.platform()))
		}
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
	answer, err := direct().Do(r)
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
