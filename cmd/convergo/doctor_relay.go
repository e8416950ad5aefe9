package main

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

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

// ofRelay looks whether convergo relay could run with the settings. What only the relay has, such as how often it looks, it checks by itself
// when it starts.
func (e *examination) ofRelay(ctx context.Context) {
	unclaimed, err := parseSubjects(e.Unclaimed)
	if err != nil {
		err = fmt.Errorf("--unclaimed: %w", err)
	}
	if err == nil {
		err = e.relayed()
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
			e.note(levelWarning, "broker", "how large an event it takes cannot be seen; what it refuses becomes a dead event: %v", err)
		case most > 0:
			e.note(levelWarning, "broker", "an event's payload and headers have at most %d bytes together, because of %s: larger ones become dead events; let "+
				"what writes them refuse them", most, setting)
		}
	}
	if e.KeepSent < e.KeepBroker {
		e.note(levelWarning, "retention", shortReplay, e.KeepSent, e.KeepBroker)
	} else {
		e.note(levelOK, "retention", "sent events stay replayable for %v", e.KeepSent)
	}
	e.lease()
}

// relayed is what a relay says to the settings that it shares with the doctor.
func (e *examination) relayed() error {
	if strings.Contains(e.Database, "{service}") {
		return fmt.Errorf("--database %q: {service} means nothing to a relay, which has one outbox; for a platform ask without --relay", redacted(e.Database))
	}
	c := relayCommand{Database: e.Database, Broker: e.Broker, Addr: e.Addr, PlatformID: e.PlatformID, Workers: 1, Batch: 1, MaxAttempts: 1}
	c.Poll, c.RetryBase, c.RetryCap, c.ReadyLag, c.MaxWait = 1, 1, 1, 1, 1 // the doctor has none of these
	c.Lease, c.KeepSent, c.KeepBroker = e.Lease, e.KeepSent, e.KeepBroker
	return c.validate()
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
