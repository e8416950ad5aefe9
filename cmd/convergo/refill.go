package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

const (
	// syncInterval is the broker's: what it confirmed within it before a power cut may be lost.
	syncInterval = 10 * time.Second
	brokerFolder = "broker"
	refillFile   = "REFILL"
)

// owed says since when the events of which services may be missing in the broker. It is a file, so that a start that is
// killed, or that runs some of the services only, leaves to the next one what it did not make good.
type owed map[string]time.Time

func (f *folder) owed() (owed, error) {
	o := owed{}
	text, err := os.ReadFile(f.file(refillFile))
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; when it cannot be read, delete it and replay each service's events of the last days", f.file(refillFile), err)
	}
	return o, nil
}

func (f *folder) writeOwed(o owed) error {
	if len(o) == 0 {
		err := os.Remove(f.file(refillFile))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	return writeDurably(f.file(refillFile), text)
}

// add owes every service its events since then, unless more is owed already.
func (o owed) add(since time.Time) {
	for _, name := range serviceNames() {
		if before, ok := o[name]; !ok || since.Before(before) {
			o[name] = since
		}
	}
}

// oweRefill writes down, before the broker's files are touched, what it may have lost. When the platform was not stopped
// cleanly that is everything written since shortly before its last sign of life; when the folder is gone it is everything
// that the broker should have.
func (p *platform) oweRefill() error {
	if !p.cfg.embedded() {
		return nil // what a broker outside has lost is said by its keepers: convergo replay --since
	}
	o, err := p.folder.owed()
	if err != nil {
		return err
	}
	if !p.folder.Died.IsZero() {
		o.add(p.folder.Died.Add(-syncInterval - 2*beatEvery).UTC())
	}
	if _, err := os.Stat(p.folder.file(brokerFolder)); errors.Is(err, fs.ErrNotExist) && p.folder.used() {
		o.add(p.brokerHorizon())
	}
	return p.folder.writeOwed(o)
}

// used tells whether a service has ever run on the folder.
func (f *folder) used() bool {
	return slices.ContainsFunc(serviceNames(), func(name string) bool {
		_, err := os.Stat(f.file(name + ".db"))
		return err == nil
	})
}

// brokerHorizon is the time before which the broker need not have anything.
func (p *platform) brokerHorizon() time.Time { return time.Now().Add(-p.cfg.KeepBroker).UTC() }

// refill puts events that the broker may have lost back into the outboxes of the services that run here. Consumers that
// have them already notice the keys: they remember them for longer than the broker keeps events.
func (p *platform) refill(ctx context.Context) error {
	if p.broker.inside == nil {
		return p.folder.beat()
	}
	o, err := p.folder.owed()
	if err != nil {
		return err
	}
	if p.broker.inside.Recovery().Events > 0 { // files that are damaged
		o.add(p.brokerHorizon())
		if err := p.folder.writeOwed(o); err != nil {
			return err
		}
	}
	for _, u := range p.units {
		name := u.service.Name()
		since, ok := o[name]
		if !ok {
			continue
		}
		if horizon := p.brokerHorizon(); since.Before(horizon) {
			since = horizon
		}
		n, err := u.store.Replay(ctx, since, time.Now())
		if err != nil {
			return fmt.Errorf("service %s: refill the broker: %w", name, err)
		}
		if n > 0 {
			p.log.Info("events that the broker may have lost are sent again", "service", name, "since", since, "events", n,
				"stopped_cleanly", p.folder.Died.IsZero(), "broker", p.broker.inside.Recovery())
		}
	}
	p.refilled = time.Now()
	return p.folder.beat()
}

// settleOwed forgets what the services here owed when the broker surely has it: their outboxes are empty and it has synced
// since. Until then a second power cut owes the same again, because what was sent once more may be lost once more.
func (p *platform) settleOwed(ctx context.Context) error {
	if p.refilled.IsZero() || time.Since(p.refilled) < 2*syncInterval {
		return nil
	}
	for _, u := range p.units {
		b, err := u.store.Backlog(ctx, time.Now())
		if err != nil {
			return err
		}
		if b.Pending.Count+b.Waiting.Count+b.DelayedDue.Count > 0 {
			p.refilled = time.Now() // and another two syncs from when they are
			return nil
		}
	}
	if err := p.forgetOwed(); err != nil {
		return err
	}
	p.refilled = time.Time{}
	return nil
}

// forgetOwed strikes the services that run here off the list.
func (p *platform) forgetOwed() error {
	o, err := p.folder.owed()
	if err != nil {
		return err
	}
	for _, u := range p.units {
		delete(o, u.service.Name())
	}
	return p.folder.writeOwed(o)
}
