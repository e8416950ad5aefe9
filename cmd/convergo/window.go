package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/retain"
)

// keeps is a broker that tells how long it really keeps events, whatever --keep-broker says: that sets up what this program makes, and
// others make topics too, or change them.
type keeps interface {
	Keeps(ctx context.Context, topics []string) ([]relay.Kept, error)
}

// overlong says what breaks where the broker keeps events for longer than the marks of what consumers applied are kept, and what to do.
func overlong(kept []relay.Kept, keepInbox time.Duration) (findings []string) {
	for _, k := range kept {
		if retain.CheckWindow(keepInbox, k.Age) == nil {
			continue
		}
		age, longer := "without limit", "" // no --keep-inbox is for ever
		if k.Age > 0 {
			age, longer = fmt.Sprintf("up to %v", k.Age), fmt.Sprintf(", or set --keep-inbox above %v", k.Age)
		}
		findings = append(findings, fmt.Sprintf("%s keeps events %s (%s) and the marks of what consumers applied stay for %v (--keep-inbox): an event that comes "+
			"again later, for instance because a consumer's position was lost, is applied twice; let the broker keep events for less than the marks%s",
			k.Where, age, k.Setting, keepInbox, longer))
	}
	return findings
}

// warnOverlong logs where the broker keeps events for longer than marks are kept. It is no reason not to start: the danger begins when
// the broker loses a position, and a setting that somebody changed there must not keep the platform from coming back.
func (c *connected) warnOverlong(ctx context.Context, topics []string, keepInbox time.Duration, log *slog.Logger) {
	b, ok := c.broker.(keeps)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	kept, err := b.Keeps(ctx, topics)
	if err != nil {
		log.Warn("how long the broker keeps events cannot be seen; --keep-inbox must be longer", "error", err)
	}
	for _, text := range overlong(kept, keepInbox) {
		log.Warn("events can be applied twice: " + text)
	}
}

// kept asks the broker how long it keeps events.
func (e *examination) kept(ctx context.Context, b broker) {
	k, ok := b.(keeps)
	if !ok {
		return
	}
	var err error
	if e.atBroker, err = k.Keeps(ctx, topicsOf(e.Services)); err != nil {
		e.note(levelWarning, "retention", "how long the broker keeps events cannot be seen; --keep-inbox must be longer: %v", err)
	}
}

const shortReplay = "--keep-sent %v is shorter than --keep-broker %v: a broker that loses its data cannot be filled again completely"

// retention: what the broker keeps must be shorter than what consumers remember; sent events must outlive the broker's loss.
func (e *examination) retention() {
	if err := retain.CheckWindow(e.KeepInbox, e.KeepBroker); err != nil {
		e.note(levelError, "retention", "%v", err)
		return
	}
	findings := overlong(e.atBroker, e.KeepInbox)
	for _, text := range findings {
		e.note(levelWarning, "retention", "%s", text)
	}
	if e.KeepSent < e.KeepBroker {
		e.note(levelWarning, "retention", shortReplay, e.KeepSent, e.KeepBroker)
		return
	}
	if len(findings) > 0 {
		return
	}
	longest := e.KeepBroker
	for _, k := range e.atBroker {
		longest = max(longest, k.Age)
	}
	e.note(levelOK, "retention", "consumers remember for %v, the broker keeps up to %v, sent events stay replayable for %v", e.KeepInbox, longest, e.KeepSent)
}
