package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/errgroup"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/retain"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/simulate"
)

// platform is everything that runs in this process.
type platform struct {
	folder   *folder
	cfg      serveCommand
	log      *slog.Logger
	probe    convergo.Probe
	broker   *connected
	largest  int // event that the broker takes; see room
	units    []*unit
	world    *outsideWorld // nil when the outside world is somewhere else
	api      huma.Config
	journal  *drill.Journal // of the faults that a drill asks for
	refilled time.Time      // when the broker was refilled; zero when that is settled
}

// unit is a service with its database and its engine.
type unit struct {
	service trade.Service
	store   *opened
	relay   *relay.Relay
	inbox   *inbox.Consumer[convergo.Tx]
	calls   *outside.Calls[convergo.Tx]
	retain  *retain.Retainer
	sweep   func(ctx context.Context) error // nil when the service has nothing to sweep
	handler http.Handler
}

// openPlatform opens the databases and the broker and wires the services. Nothing runs yet.
func openPlatform(ctx context.Context, cfg serveCommand, f *folder, log *slog.Logger) (_ *platform, err error) {
	p := &platform{folder: f, cfg: cfg, log: log, api: trade.APIConfig(version(), log)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.probe, err = crashAt(cfg.CrashAt, os.Stderr); err != nil {
		return nil, err
	}
	if cfg.FaultRate > 0 {
		if p.journal, err = drill.OpenJournal(f.file(faultsFile)); err != nil {
			return nil, err
		}
	}
	databases := cfg.filesInFolder()
	if err = f.refuseLost(databases); err != nil {
		return nil, err
	}
	if err = p.oweRefill(); err != nil {
		return nil, err
	}
	p.broker, err = connectBroker(ctx, cfg.brokerURL(), brokerOptions{
		dir: f.file(brokerFolder), maxAge: cfg.KeepBroker, unclaimed: unheard(), probe: p.probe, log: log,
	})
	if err != nil {
		return nil, err
	}
	p.broker.warn(ctx, log)
	p.largest = p.broker.warnRoom(ctx, topicsOf(cfg.Services), "larger events are refused when they are written", log)
	p.broker.warnOverlong(ctx, topicsOf(cfg.Services), cfg.KeepInbox, log)
	if cfg.World == "" {
		p.world, err = openWorld(ctx, f.file(worldFile), f.Secrets, cfg.local(), simulate.Faults{}, cfg.Transit, log)
		if err != nil {
			return nil, err
		}
	}
	for _, name := range cfg.Services {
		u, err := p.openUnit(ctx, name)
		if u != nil {
			p.units = append(p.units, u)
		}
		if err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
	}
	if err = f.keepSecrets(); err != nil { // before the first of a platform's tables: from here on the folder is the databases' own
		return nil, err
	}
	for i, name := range cfg.Services {
		if err = p.fillUnit(ctx, p.units[i], name); err != nil {
			return nil, fmt.Errorf("service %s: %w", name, err)
		}
	}
	if err = f.remember(databases); err != nil {
		return nil, err
	}
	if err = f.keepPlatformID(); err != nil {
		return nil, err
	}
	return p, p.refill(ctx)
}

// openUnit opens the database of a service, which must be this platform's or nobody's. It returns the unit also with an error, as far as
// it was opened, so that it can be closed.
func (p *platform) openUnit(ctx context.Context, name string) (*unit, error) {
	probe := slowDisk(p.cfg.CommitDelay, p.probe)
	address, setting := p.cfg.databaseURL(p.cfg.Data, name), p.cfg.databaseSetting(name)
	store, err := openStoreWith(ctx, address, storeOptions{name: name, setting: setting, probe: probe, log: p.log})
	if err != nil {
		return nil, err
	}
	u := &unit{store: store}
	if slices.Contains(p.cfg.filesInFolder(), name) {
		if err := p.folder.refuseOther(ctx, name, store.file); err != nil {
			return u, err
		}
		// This process holds the folder's lock: whoever had a lease is dead.
		if err := store.file.BreakLeases(ctx); err != nil {
			return u, err
		}
	} else if err := p.folder.refuseTaken(ctx, address, store); err != nil {
		return u, err
	}
	return u, nil
}

// fillUnit makes the service's tables and wires its parts.
func (p *platform) fillUnit(ctx context.Context, u *unit, name string) error {
	store, log := u.store, p.log.With("service", name)
	if err := store.Migrate(ctx, "trade", trade.Migrations()); err != nil {
		return err
	}
	u.calls = outside.New[convergo.Tx](store.calls, outside.Config{
		Name: name, Backoff: backoff(p.cfg.RetryBase, p.cfg.RetryCap), Lease: p.cfg.CallLease, Log: log, Probe: of(name, p.probe),
	})
	deps := trade.Deps{
		DB: store, Outbox: outbox.New[convergo.Tx](store, outbox.Config{MaxPayload: p.largest}), Calls: u.calls, Now: time.Now, Log: log,
	}
	if err := p.newService(u, name, deps); err != nil {
		return err
	}
	if err := store.Migrate(ctx, name, u.service.Migrations()); err != nil {
		return err
	}
	for kind, h := range u.service.Calls() {
		u.calls.Handle(kind, h)
	}
	return p.wireUnit(ctx, u, name, log)
}

func (p *platform) wireUnit(ctx context.Context, u *unit, name string, log *slog.Logger) error {
	workers := 0 // the default: while one batch waits for the broker's answer another settles
	if p.broker.inside != nil {
		workers = 1 // it answers at once: a second worker would only halve the batches
	}
	u.relay = relay.New(u.store, unshared{p.broker, p}, relay.Config{
		Name: name, Workers: workers, Lease: p.cfg.Lease, Origin: p.origin(), Log: log, Probe: of(name, p.probe),
	})
	u.store.OnEvents(u.relay.Wake)
	p.broker.tellWhenBack(u.relay.BrokerBack)
	u.store.OnCalls(u.calls.Wake)
	handlers := u.service.Handlers()
	var subjects []convergo.Subject
	for eventType := range handlers {
		subjects = append(subjects, convergo.Subject{Topic: trade.TopicOf(eventType), Type: eventType})
	}
	slices.SortFunc(subjects, func(a, b convergo.Subject) int { return strings.Compare(a.String(), b.String()) })
	if len(subjects) > 0 {
		source, err := p.broker.Subscribe(ctx, name, subjects)
		if err != nil {
			return err
		}
		u.inbox = inbox.New[convergo.Tx](u.store, u.store, source, inbox.Config{
			Consumer: name, Backoff: backoff(p.cfg.RetryBase, p.cfg.RetryCap), Log: log, Probe: of(name, p.probe),
			Origin: p.origin(), TakeFrom: p.cfg.TakeFrom, PassOver: p.cfg.PassOver, Place: p.cfg.place(),
		})
		for eventType, h := range handlers {
			if p.cfg.FaultRate > 0 {
				h = drill.Faulty(h, name, p.cfg.FaultRate, faultSeed(p.cfg.FaultSeed, name, eventType), p.journal)
			}
			u.inbox.Handle(eventType, h)
		}
	}
	jobs := []retain.Job{
		{Name: "sent events", Keep: p.cfg.KeepSent, Purge: u.store.PurgeSent},
		{Name: "inbox rows", Keep: p.cfg.KeepInbox, Purge: u.store.PurgeMarks},
		{Name: "recorded requests", Keep: p.cfg.KeepRequests, Purge: u.store.PurgeRequests},
		{Name: "finished calls", Keep: p.cfg.KeepSent, Purge: u.store.PurgeCalls},
	}
	if own, ok := u.service.(interface{ Retention() []retain.Job }); ok {
		jobs = append(jobs, own.Retention()...)
	}
	u.retain = retain.New(jobs, retain.Config{Log: log})
	mux := http.NewServeMux()
	api := trade.NewAPI(mux, p.api)
	u.service.Routes(api)
	operationsRoutes(api, u)
	served := problems(mux)
	u.handler = idempotency.Middleware[convergo.Tx](u.store, idempotency.Config{
		Scope: trade.ScopeOf, MaxBody: trade.MaxBody, Log: log, Problem: idempotencyProblem, Probe: of(name, p.probe),
	})(served)
	if open := openPaths(u.service); len(open) > 0 {
		u.handler = bypass(open, served, u.handler)
	}
	return nil
}

// run runs everything until ctx ends, and then until it has stopped.
func (p *platform) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, u := range p.units {
		name := u.service.Name()
		for what, part := range map[string]func(context.Context) error{
			"relay": u.relay.Run, "calls": u.calls.Run, "retention": u.retain.Run, "inbox": u.inboxRun(), "sweep": u.sweepRun(p.log),
		} {
			if part == nil {
				continue
			}
			g.Go(func() error {
				if err := part(ctx); err != nil {
					return fmt.Errorf("%s of %s: %w", what, name, err)
				}
				return nil
			})
		}
	}
	if p.world != nil {
		g.Go(func() error { return p.world.Run(ctx) })
	}
	g.Go(func() error { return p.beat(ctx) })
	return g.Wait()
}

func (u *unit) inboxRun() func(context.Context) error {
	if u.inbox == nil {
		return nil
	}
	return u.inbox.Run
}

// sweepRun sweeps every few seconds. A sweep that fails is logged and comes again.
func (u *unit) sweepRun(log *slog.Logger) func(context.Context) error {
	if u.sweep == nil {
		return nil
	}
	return func(ctx context.Context) error {
		every(ctx, sweepEvery, func() {
			if err := u.sweep(ctx); err != nil && ctx.Err() == nil {
				log.Error("sweep failed; it comes again", "service", u.service.Name(), "error", err)
			}
		})
		return nil
	}
}

const (
	sweepEvery = 5 * time.Second
	beatEvery  = 5 * time.Second
)

func (p *platform) beat(ctx context.Context) error {
	every(ctx, beatEvery, func() {
		if err := errors.Join(p.folder.beat(), p.settleOwed(ctx)); err != nil && ctx.Err() == nil {
			p.log.Error("sign of life", "error", err)
		}
	})
	return nil
}

func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// close closes what is open; nothing may run any more.
func (p *platform) close() error {
	var errs []error
	for _, u := range p.units {
		errs = append(errs, u.store.Close())
	}
	if p.world != nil {
		errs = append(errs, p.world.close())
	}
	if p.broker != nil {
		errs = append(errs, p.broker.close())
	}
	return errors.Join(errs...)
}

// refuseForeignFolder tells whether DIR holds something that is not ours, before anything is written.
func refuseForeignFolder(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(entries) == 0) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	ours := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	if !ours(lockFile) && !ours(secretsFile) {
		return fmt.Errorf("data folder %s is not empty and was not made by convergo; name a new or empty folder with --data", path)
	}
	return nil
}
