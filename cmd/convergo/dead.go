package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// deadCommand is `convergo dead`: what an outbox or an inbox gave up is listed, sent again or given up for good. It says what the
// operations of serve say, for those who have no serve: the outbox of an application in another language.
type deadCommand struct {
	List    deadListCommand    `cmd:"" help:"List what waits for a person, without payloads."`
	Show    deadShowCommand    `cmd:"" help:"Show one with its payload, headers and error."`
	Redrive deadRedriveCommand `cmd:"" help:"Send (of an inbox: apply) again."`
	Discard deadDiscardCommand `cmd:"" help:"Give up for good: its aggregate goes on without it."`
	Log     deadLogCommand     `cmd:"" help:"List what persons did: who, when, and why."`
}

// Help implements kong.HelpProvider.
func (deadCommand) Help() string {
	return `An event that the relay gave up sending is dead and holds its aggregate until a person decides.

Examples:
  convergo dead list --database postgres://shop@db/shop
  convergo dead show 4711 --database postgres://shop@db/shop
  convergo dead redrive 4711 --config relay.yaml
  convergo dead redrive --all --topic order --error 'unroutable' --rate 20 --dry-run --config relay.yaml
  convergo dead discard 4711 --reason 'test data' --config relay.yaml
  convergo dead discard --all --error 'not JSON' --reason 'test data' --expect 12 --config relay.yaml
  convergo dead log --config relay.yaml
  convergo dead list --letters --service shipping --config convergo.yaml`
}

// deadPlace says whose dead ones are meant. Which are chosen is said on the command line only, never in a file or the environment.
type deadPlace struct {
	backends `embed:""`
	Data     string `default:"convergo-data" type:"path" placeholder:"DIR" help:"Data folder with the databases that are files (default: ${default})."`
	Service  string `env:"-" placeholder:"NAME" help:"A service of the platform. Without: --database is the outbox of an application."`
	Letters  bool   `env:"-" help:"Messages that a consumer gave up applying, instead of events that a relay gave up sending."`
	JSON     bool   `env:"-" help:"As JSON."`
}

// deadChoice are filters. Those that are given all have to fit.
type deadChoice struct {
	Topic     string `env:"-" placeholder:"NAME" help:"Only of this topic."`
	Type      string `env:"-" placeholder:"NAME" help:"Only of this event type."`
	Aggregate string `env:"-" placeholder:"TYPE/ID" help:"Only of this aggregate."`
	Key       string `env:"-" placeholder:"KEY" help:"Only the event of this key."`
	Error     string `env:"-" placeholder:"TEXT" help:"Only those whose error has this text in it."`
	Consumer  string `env:"-" placeholder:"NAME" help:"With --letters: only of this consumer."`
	DiedSince string `env:"-" placeholder:"TIME" help:"Only those that died at or after this time: RFC 3339, or how long ago (2h)."`
}

// deadItem is a dead event or a dead letter.
type deadItem struct {
	id       string
	consumer string
	event    convergo.Event
	attempts int
	err      string
	place    string
	diedAt   time.Time
	held     bool
	size     int64 // of the payload in the store; of one that is larger than it may be event has none
}

// fits is the filters as one question.
func (c deadChoice) fits(now time.Time) (func(deadItem) bool, error) {
	var from time.Time
	if c.DiedSince != "" {
		var err error
		if from, err = since(c.DiedSince, now); err != nil {
			return nil, misuse(fmt.Errorf("--died-since: %s", strings.TrimPrefix(err.Error(), "--since ")))
		}
	}
	is := func(want, is string) bool { return want == "" || want == is }
	return func(i deadItem) bool {
		return is(c.Topic, i.event.Topic) && is(c.Type, i.event.Type) && is(c.Aggregate, i.event.Aggregate.String()) && is(c.Key, string(i.event.Key)) &&
			is(c.Consumer, i.consumer) && strings.Contains(i.err, c.Error) && !i.diedAt.Before(from)
	}, nil
}

// graves are the dead of one store.
type graves struct {
	store   *opened
	letters bool
}

// mostListed is how many characters of an error a list shows: a remedy that stands at its end is among them.
const mostListed = 400

// deadPage is how many are read at a time: each may have the largest payload.
const deadPage = 50

// open opens the store, for reading only when nothing is to be changed.
func (p deadPlace) open(ctx context.Context, change bool, log *slog.Logger) (*graves, error) {
	address, name := p.Database, "outbox"
	switch {
	case p.Service != "" && !slices.Contains(serviceNames(), p.Service):
		return nil, misuse(fmt.Errorf("--service: there is no service %q; there are %s", p.Service, strings.Join(serviceNames(), ", ")))
	case p.Service != "":
		if err := p.validate(); err != nil {
			return nil, misuse(err)
		}
		address, name = p.databaseURL(p.Data, p.Service), p.Service
	case address == "" || strings.Contains(address, "{service}"):
		return nil, misuse(errors.New("whose? Name a service of the platform with --service, or the outbox of an application with --database URL"))
	}
	store, err := openTables(ctx, name, address, change, log)
	if err != nil {
		return nil, err
	}
	return &graves{store, p.Letters}, nil
}

func (g graves) close() error { return g.store.Close() }

// page is up to n behind the one with the id after, oldest first.
func (g graves) page(ctx context.Context, after string, n int) (items []deadItem, err error) {
	if g.letters {
		letters, err := g.store.DeadLetters(ctx, "", n, after)
		for _, l := range letters {
			items = append(items, deadItem{l.ID, l.Consumer, l.Event, l.Attempts, l.Error, l.Place, l.DiedAt, l.Held, int64(len(l.Event.Payload))})
		}
		return items, err
	}
	id, err := eventID(after)
	if err != nil {
		return nil, err
	}
	events, err := g.store.DeadEvents(ctx, n, id)
	for _, e := range events {
		items = append(items, deadItem{strconv.FormatInt(e.ID, 10), "", e.Event, e.Attempts, e.Error, e.Place, e.DiedAt, e.Held, e.PayloadBytes})
	}
	return items, err
}

func eventID(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, misuse(fmt.Errorf("%q is not the id of a dead event, which is a number; dead letters need --letters", text))
	}
	return id, nil
}

// each calls do for those that fit, oldest first, until it returns false. What died after before is not among them: one that is sent
// again and dies again would come for ever. Without before all are.
func (g graves) each(ctx context.Context, after string, before time.Time, fits func(deadItem) bool, do func(deadItem) (bool, error)) error {
	for {
		items, err := g.page(ctx, after, deadPage)
		if err != nil {
			return err
		}
		for _, i := range items {
			after = i.id
			if !before.IsZero() && i.diedAt.After(before) || !fits(i) {
				continue
			}
			if goOn, err := do(i); err != nil || !goOn {
				return err
			}
		}
		if len(items) == 0 { // a page of large ones is shorter
			return nil
		}
	}
}

// find is the one with the id. A dead event stands behind the number before its own; letters have no order that an id tells.
func (g graves) find(ctx context.Context, id string) (found deadItem, err error) {
	if g.letters {
		err = g.each(ctx, "", time.Time{}, func(i deadItem) bool { return i.id == id }, func(i deadItem) (bool, error) {
			found = i
			return false, nil
		})
	} else {
		n, wrong := eventID(id)
		if wrong != nil {
			return found, wrong
		}
		items, wrong := g.page(ctx, strconv.FormatInt(max(n-1, 0), 10), 1)
		if id, err = strconv.FormatInt(n, 10), wrong; len(items) > 0 && items[0].id == id {
			found = items[0]
		}
	}
	if err == nil && found.id == "" {
		err = g.none(id)
	}
	return found, err
}

// none is the error for an id of which nothing waits.
func (g graves) none(id string) error {
	what := ops.ErrNotFound
	if !g.letters {
		what = errNoEvent
	}
	return fmt.Errorf("%s: %w", id, what)
}

// errNoEvent is ops.ErrNotFound for those who ask for an event.
const errNoEvent = notFoundError("no dead event has this id")

type notFoundError string

func (e notFoundError) Error() string { return string(e) }

func (notFoundError) Is(target error) bool { return target == ops.ErrNotFound }

type deadListCommand struct {
	deadPlace  `embed:""`
	deadChoice `embed:""`
	After      string `env:"-" placeholder:"ID" help:"Begin behind this one: the last of the page before."`
	Limit      int    `env:"-" default:"100" help:"How many at most (default: ${default})."`
}

// Run lists.
func (c deadListCommand) Run(ctx context.Context, s streams) (err error) {
	if c.Limit < 1 {
		return misuse(errors.New("--limit is at least 1"))
	}
	fits, err := c.fits(time.Now())
	if err != nil {
		return err
	}
	g, err := c.open(ctx, false, discarded())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	var items []deadItem
	more := false
	err = g.each(ctx, c.After, time.Time{}, fits, func(i deadItem) (bool, error) {
		if more = len(items) == c.Limit; more {
			return false, nil
		}
		i.event.Payload, i.event.Headers = nil, nil // not shown here, and there may be many
		items = append(items, i)
		return true, nil
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeDead(s.out, items, more)
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tDIED\tTYPE\tAGGREGATE\tATTEMPTS\tHOLDS\tERROR") // Flush reports
	for _, i := range items {
		holds := "-"
		if i.held {
			holds = "yes"
		}
		what := i.event.Topic + "." + i.event.Type
		if i.consumer != "" {
			what += " at " + i.consumer
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", i.id, i.diedAt.UTC().Format(time.RFC3339), printable(what),
			printable(i.event.Aggregate.String()), i.attempts, holds, cut(printable(i.err), mostListed))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if more {
		_, err = fmt.Fprintf(s.out, "there are more: --after %s\n", items[len(items)-1].id)
	}
	return err
}

type deadShowCommand struct {
	deadPlace `embed:""`
	ID        string `arg:"" help:"Its id."`
	Bytes     int    `env:"-" default:"4096" help:"How much of the payload is shown (default: ${default})."`
}

// Run shows one.
func (c deadShowCommand) Run(ctx context.Context, s streams) (err error) {
	g, err := c.open(ctx, false, discarded())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	i, err := g.find(ctx, c.ID)
	if err != nil {
		return err
	}
	whole := int(i.size)
	i.event.Payload = i.event.Payload[:min(len(i.event.Payload), max(c.Bytes, 0))]
	if c.JSON {
		return writeDeadOne(s.out, i, whole)
	}
	return describeDead(s.out, i, whole)
}
