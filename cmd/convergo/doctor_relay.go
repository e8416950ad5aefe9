package main

import (
	"context"
	"io/fs"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// outboxSubject is what findings about an application's database are about.
const outboxSubject = "database of the relay"

// meantRelay is a hint for who has given the settings of a relay to a doctor of platforms.
func (c doctorCommand) meantRelay() string {
	if c.Database != "" && !strings.Contains(c.Database, "{service}") || strings.HasPrefix(c.Broker, "webhook:") {
		return "; or, if these are the settings of `convergo relay`, ask `convergo doctor --relay`"
	}
	return ""
}

// whose is who would run with the settings: the platform, under the name that it has in the sentence, or a relay.
func (e *examination) whose(platform string) string {
	if e.Relay {
		return "the relay"
	}
	return platform
}

// ofRelay looks whether convergo relay could run with the settings.
func (e *examination) ofRelay(ctx context.Context) {
	if strings.Contains(e.Database, "{service}") {
		e.note(levelError, "settings", "--database %q: {service} means nothing to a relay, which has one outbox; for a platform ask without --relay",
			redacted(e.Database))
		return
	}
	c := e.relay()
	err := c.validate()
	var unclaimed []convergo.Subject
	if err == nil {
		unclaimed, err = c.subjects()
	}
	if err != nil {
		e.note(levelError, "settings", "%v", err)
		return
	}
	e.note(levelOK, "settings", "they fit together")
	e.database(ctx, "relay")
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if b := e.connected(ctx, brokerOptions{maxAge: e.KeepBroker, unclaimed: unclaimed, look: true, log: discarded()}); b != nil {
		defer func() { _ = b.close() }() // nothing was sent
		if c, ok := b.broker.(checks); ok {
			e.warnings(ctx, "broker", c)
		}
		switch most, setting, err := b.room(ctx, nil); {
		case err != nil:
			e.note(levelWarning, "broker", "%s: %v", unseenRoom, err)
		case most > 0:
			e.note(levelWarning, "broker", "an event's payload and headers have at most %d bytes together, because of %s: %s", most, setting, largerDie)
		}
	}
	if e.KeepSent < e.KeepBroker {
		e.note(levelWarning, "retention", shortReplay, e.KeepSent, e.KeepBroker)
	} else {
		e.note(levelOK, "retention", "sent events stay replayable for %v", e.KeepSent)
	}
	e.lease()
}

// relay is the command whose settings these are.
func (c doctorCommand) relay() relayCommand {
	return relayCommand{
		Database: c.Database, Broker: c.Broker, Addr: c.Addr, PlatformID: c.PlatformID, relayFlags: c.relayFlags, Lease: c.Lease, RetryBase: c.RetryBase,
		RetryCap: c.RetryCap, KeepSent: c.KeepSent, KeepBroker: c.KeepBroker, ReadyLag: c.ReadyLag, Log: c.Log, LogJSON: c.LogJSON,
	}
}

// migrated is a set of migrations that a database has.
type migrated struct {
	name       string
	migrations fs.FS
}

// migrations of a service's database, or of an application's.
func (e *examination) migrations(name string) []migrated {
	if e.Relay {
		return []migrated{{"engine", nil}}
	}
	return []migrated{{"engine", nil}, {"trade", trade.Migrations()}, {name, serviceNamed(name).Migrations()}}
}
