package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/internal/freeport"
)

// platformUnderTest is what a drill does to a platform, one process or many.
type platformUnderTest interface {
	Start(ctx context.Context) error
	Stop(timeout time.Duration) error
	Kill() error
	// disturb makes the i-th thing of a day go wrong and says what it was; when it returns, everything runs again.
	disturb(ctx context.Context, i int) (what string, err error)
}

// alone is a platform in one process.
type alone struct{ *drill.Child }

func (a alone) disturb(ctx context.Context, _ int) (string, error) {
	if err := a.Kill(); err != nil {
		return "", err
	}
	return drill.FaultKill, a.Start(context.WithoutCancel(ctx))
}

// fleet is a platform of many processes: instances of each service, and relays beside those that the services have.
type fleet struct {
	services []*member // the first of them is the entry: it passes on what is for the others
	relays   []*member
	disturbs map[string]string // commands that make something else go wrong, by name
	random   *rand.Rand
	lease    time.Duration
}

type member struct {
	*drill.Child
	name string
	dir  string
}

func (f *fleet) members() []*member { return slices.Concat(f.services, f.relays) }

// Start starts every service, the entry last, and then the relays: those need the tables that the services make.
func (f *fleet) Start(ctx context.Context) error {
	if err := f.start(ctx, f.services); err != nil {
		return err
	}
	return f.start(ctx, f.relays)
}

func (f *fleet) start(ctx context.Context, some []*member) error {
	g := new(errgroup.Group)
	g.SetLimit(4)
	for _, m := range some {
		g.Go(func() error {
			if err := m.Child.Start(ctx); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Stop asks all to stop and waits for each.
func (f *fleet) Stop(timeout time.Duration) error {
	g := new(errgroup.Group)
	for _, m := range f.members() {
		g.Go(func() error {
			if err := m.Child.Stop(timeout); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Kill kills all.
func (f *fleet) Kill() error {
	var errs []error
	for _, m := range f.members() {
		errs = append(errs, m.Child.Kill())
	}
	return errors.Join(errs...)
}

// disturb goes round: a service is killed, each command is run, a relay is killed, a process is paused beyond its leases.
func (f *fleet) disturb(ctx context.Context, i int) (string, error) {
	kinds := []string{"service"}
	kinds = append(kinds, slices.Sorted(maps.Keys(f.disturbs))...)
	if len(f.relays) > 0 {
		kinds = append(kinds, "relay")
	}
	kinds = append(kinds, "pause")
	switch kind := kinds[i%len(kinds)]; kind {
	case "service":
		m := f.services[f.random.IntN(len(f.services))]
		return "kill of " + m.name, f.restart(ctx, m)
	case "relay":
		m := f.relays[f.random.IntN(len(f.relays))]
		return "kill of " + m.name, f.restart(ctx, m)
	case "pause":
		all := f.members()
		m := all[f.random.IntN(len(all))]
		return "pause of " + m.name, f.pause(ctx, m)
	default:
		out, err := exec.CommandContext(ctx, "sh", "-c", f.disturbs[kind]).CombinedOutput()
		if err != nil {
			return kind, fmt.Errorf("--disturb %s: %w: %s", kind, err, strings.TrimSpace(string(out)))
		}
		return kind, nil
	}
}

func (f *fleet) restart(ctx context.Context, m *member) error {
	if err := m.Kill(); err != nil {
		return err
	}
	return m.Child.Start(context.WithoutCancel(ctx))
}

// pause stops a process for two of its leases: others take its lanes over, and it wakes up as one that does not know.
func (f *fleet) pause(ctx context.Context, m *member) error {
	if err := m.Pause(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(2 * f.lease):
	}
	return m.Resume()
}

// journals are the files in which the members note the faults that they were asked to make.
func (f *fleet) journals() (files []string) {
	for _, m := range f.services {
		files = append(files, filepath.Join(m.dir, faultsFile))
	}
	return files
}

// fleetLease is the term of every lease in a drill of many processes, so that a take-over takes seconds.
const fleetLease = 3 * time.Second

// newFleet lays the processes out. Nothing is started. It returns the address of the entry.
func (c demoCommand) newFleet(program, dir, secretsPath, worldURL, entry string, log io.Writer) (*fleet, error) {
	f := &fleet{disturbs: c.Disturb, random: rand.New(rand.NewPCG(c.Seed, 0x666c656574)), lease: fleetLease}
	peers := map[string]string{"order": "http://" + entry}
	addresses := map[string][]string{"order": {entry}}
	for _, service := range serviceNames() {
		for len(addresses[service]) < c.Instances {
			address, err := freeport.Address()
			if err != nil {
				return nil, err
			}
			addresses[service] = append(addresses[service], address)
		}
		peers[service] = "http://" + addresses[service][0]
	}
	shared, err := readSecrets(secretsPath)
	if err != nil {
		return nil, err
	}
	// Said to all of them, and nothing of the CONVERGO_ variables around the demo: the services and their relays are one platform.
	id := []string{"--platform-id", shared.platform()}
	var others []string
	for _, service := range serviceNames() {
		others = append(others, service+"="+peers[service])
	}
	for i := range c.Instances {
		for _, service := range serviceNames() {
			m := &member{name: fmt.Sprintf("%s-%d", service, i+1), dir: filepath.Join(dir, fmt.Sprintf("%s-%d", service, i+1))}
			m.Child = &drill.Child{Program: program, URL: "http://" + addresses[service][i], Output: log, Without: envPrefix, Args: slices.Concat([]string{
				"serve", "--data", m.dir, "--secrets", secretsPath, "--services", service, "--addr", addresses[service][i], "--peers", strings.Join(others, ";"),
				"--world", worldURL, "--lease", f.lease.String(), "--call-lease", f.lease.String(),
			}, id, c.drillArgs(i))}
			m.Env = c.backendEnv(dir)
			f.services = append(f.services, m)
		}
	}
	var unclaimed []string
	for _, s := range unheard() {
		unclaimed = append(unclaimed, s.String())
	}
	for i := range c.Relays {
		service := serviceNames()[i%len(serviceNames())]
		address, err := freeport.Address()
		if err != nil {
			return nil, err
		}
		m := &member{name: fmt.Sprintf("relay-%d of %s", i+1, service), dir: dir}
		m.Child = &drill.Child{Program: program, URL: "http://" + address, Output: log, Without: envPrefix, Args: slices.Concat([]string{
			"relay", "--name", fmt.Sprintf("relay-%d", i+1), "--addr", address, "--lease", f.lease.String(), "--log", "warn",
			"--retry-base", "50ms", "--retry-cap", "500ms", "--unclaimed", strings.Join(unclaimed, ","),
		}, id), Env: []string{"CONVERGO_DATABASE=" + c.databaseURL(dir, service), "CONVERGO_BROKER=" + c.brokerURL()}}
		f.relays = append(f.relays, m)
	}
	return f, os.MkdirAll(dir, 0o700)
}

// backendEnv hands the databases and the broker on to a child, where no list of processes shows the passwords in them.
func (c demoCommand) backendEnv(dir string) []string {
	var each []string
	for _, service := range serviceNames() {
		each = append(each, service+"="+c.databaseURL(dir, service))
	}
	return []string{"CONVERGO_BROKER=" + c.brokerURL(), "CONVERGO_DATABASES=" + strings.Join(each, ";")}
}
