package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
)

// deadAct is which ones, and how fast.
type deadAct struct {
	deadPlace  `embed:""`
	deadChoice `embed:""`
	IDs        []string `arg:"" optional:"" name:"id" help:"Their ids."`
	All        bool     `env:"-" help:"All that fit the filters, instead of ids."`
	Expect     *int     `env:"-" placeholder:"N" help:"With --all: how many these are; with another number nothing is done. Discard wants it."`
	DryRun     bool     `env:"-" help:"Say which, and what would be refused; what it tries is rolled back."`
	Rate       float64  `env:"-" default:"100" help:"How many a second at most; 0 for no limit (default: ${default})."`
	By         string   `env:"-" placeholder:"NAME" help:"Who does it; kept on record (default: you)."`
}

type deadRedriveCommand struct {
	deadAct `embed:""`
	Reason  string `env:"-" placeholder:"TEXT" help:"Why; kept on record."`
}

// Run sends again.
func (c deadRedriveCommand) Run(ctx context.Context, s streams) error {
	if len(c.Reason) > ops.MaxText {
		return misuse(fmt.Errorf("--reason has at most %d bytes", ops.MaxText))
	}
	return c.act(ctx, s, "redriven", false, func(ctx context.Context, g *graves, id, by string) error {
		if g.letters {
			return g.store.RedriveLetter(ctx, id, by, c.Reason, time.Now())
		}
		n, err := eventID(id)
		if err != nil {
			return err
		}
		return g.store.RedriveEvent(ctx, n, by, c.Reason, time.Now())
	})
}

type deadDiscardCommand struct {
	deadAct `embed:""`
	Reason  string `env:"-" required:"" placeholder:"TEXT" help:"Why; kept on record."`
}

// Run gives up for good.
func (c deadDiscardCommand) Run(ctx context.Context, s streams) error {
	if n := len(strings.TrimSpace(c.Reason)); n < 3 || len(c.Reason) > ops.MaxText {
		return misuse(fmt.Errorf("--reason has 3 to %d bytes", ops.MaxText))
	}
	return c.act(ctx, s, "discarded", true, func(ctx context.Context, g *graves, id, by string) error {
		if g.letters {
			return g.store.DiscardLetter(ctx, id, by, c.Reason, time.Now())
		}
		n, err := eventID(id)
		if err != nil {
			return err
		}
		return g.store.DiscardEvent(ctx, n, by, c.Reason, time.Now())
	})
}

// chosen is one of those that something is to be done to. Its aggregate is asked for by a dry run.
type chosen struct {
	id, key string
	of      aggregateAt
}

// aggregateAt is an aggregate, of dead letters at a consumer: what is done to one dead of it decides about the next of it, and of no other.
type aggregateAt struct {
	consumer  string
	aggregate convergo.Aggregate
}

func (i deadItem) chosen() chosen {
	return chosen{i.id, string(i.event.Key), aggregateAt{i.consumer, i.event.Aggregate}}
}

// does is what is done to one.
type does func(ctx context.Context, g *graves, id, by string) error

// act does it to those that were chosen. One that cannot be helped does not stop the others.
func (c deadAct) act(ctx context.Context, s streams, done string, forGood bool, do does) (err error) {
	now := time.Now()
	fits, err := c.fits(now)
	if err == nil {
		err = c.validateChoice()
	}
	if err != nil {
		return err
	}
	g, err := c.open(ctx, true, logOf(s))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	by := c.By
	if by == "" {
		by = me()
	}
	t := &toll{out: s.out, done: done, dry: c.DryRun, asJSON: c.JSON}
	var these []chosen
	if c.All {
		err = g.each(ctx, "", now, fits, func(i deadItem) (bool, error) {
			these = append(these, i.chosen())
			return true, nil
		})
		if err == nil {
			err = c.confirm(len(these), done, forGood)
		}
	} else {
		these, err = g.named(ctx, c.IDs, t)
	}
	if err != nil {
		return err
	}
	return errors.Join(c.doTo(ctx, g, t, these, by, do), t.report())
}

func (c deadAct) validateChoice() error {
	switch {
	case c.All == (len(c.IDs) > 0):
		return misuse(errors.New("which? Give ids, or --all with filters; `convergo dead list` shows them"))
	case !c.All && c.deadChoice != (deadChoice{}):
		return misuse(errors.New("ids and filters do not go together: with filters use --all"))
	case !c.All && c.Expect != nil:
		return misuse(errors.New("--expect is for --all: ids say how many they are"))
	case !(c.Rate >= 0):
		return misuse(errors.New("--rate is not negative"))
	case len(c.By) > ops.MaxText:
		return misuse(fmt.Errorf("--by has at most %d bytes", ops.MaxText))
	}
	return nil
}

// confirm refuses to do to all that fit what the person has not said the number of. What cannot be undone wants it said.
func (c deadAct) confirm(n int, done string, forGood bool) error {
	switch {
	case c.Expect != nil && *c.Expect != n:
		return fmt.Errorf("--expect %d, but they are %d: nothing was %s; `convergo dead list` with the same filters shows them", *c.Expect, n, done)
	case c.Expect == nil && forGood && !c.DryRun:
		return misuse(fmt.Errorf("%d would be %s for good: look at them with --dry-run, then say it again with --expect %d", n, done, n))
	}
	return nil
}

// doTo does it to each of these in their order, or tries.
func (c deadAct) doTo(ctx context.Context, g *graves, t *toll, these []chosen, by string, do does) error {
	one := func(_ int, i chosen) error {
		err := do(ctx, g, i.id, by)
		if refusal(err) {
			t.refuse(i.id, g.worded(i.id, err))
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", i.id, err)
		}
		return t.add(i)
	}
	if c.DryRun {
		refused, err := g.rehearse(ctx, these, func(ctx context.Context, id string) error { return do(ctx, g, id, by) })
		if err != nil {
			return err
		}
		one = func(at int, i chosen) error {
			if why := refused[at]; why != nil {
				t.refuse(i.id, g.worded(i.id, why))
				return nil
			}
			return t.add(i)
		}
	}
	var limit *rate.Limiter
	if c.Rate > 0 && !c.DryRun {
		limit = rate.NewLimiter(rate.Limit(c.Rate), 1)
	}
	for at, i := range these {
		if limit != nil {
			if err := limit.Wait(ctx); err != nil {
				return err
			}
		}
		if err := one(at, i); err != nil {
			return err
		}
	}
	return nil
}

// refusal tells an answer about one of them from a failure of the whole.
func refusal(err error) bool {
	return errors.Is(err, ops.ErrNotFound) || errors.Is(err, ops.ErrEarlierDead) || errors.Is(err, ops.ErrQueued)
}

// worded is a refusal in the words of this command.
func (g graves) worded(id string, err error) error {
	if errors.Is(err, ops.ErrNotFound) {
		return g.none(id)
	}
	return err
}

// errRolledBack ends the transaction of a rehearsal.
var errRolledBack = errors.New("only tried")

// rehearse does it to all of these and undoes it, and returns what was refused, by place in these. Those of one aggregate share a
// transaction: what is done to one decides about the next, and no lock is held for longer than they need.
func (g graves) rehearse(ctx context.Context, these []chosen, do func(ctx context.Context, id string) error) (map[int]error, error) {
	refused := map[int]error{}
	groups, order := map[aggregateAt][]int{}, []aggregateAt{}
	for at, i := range these {
		if groups[i.of] == nil {
			order = append(order, i.of)
		}
		groups[i.of] = append(groups[i.of], at)
	}
	for _, group := range order {
		var answers map[int]error
		err := g.store.Update(ctx, func(ctx context.Context, _ convergo.Tx) error {
			answers = map[int]error{} // a database may ask for another try
			for _, at := range groups[group] {
				err := do(ctx, these[at].id)
				if err != nil && !refusal(err) {
					return fmt.Errorf("%s: %w", these[at].id, err)
				}
				answers[at] = err
			}
			return errRolledBack
		})
		if !errors.Is(err, errRolledBack) {
			return nil, err
		}
		for at, why := range answers {
			refused[at] = why
		}
	}
	return refused, nil
}

// named are those of the ids: events as they are named, letters oldest first, because all are read to find one.
func (g graves) named(ctx context.Context, ids []string, t *toll) (these []chosen, err error) {
	if g.letters {
		left := map[string]bool{}
		for _, id := range ids {
			left[id] = true
		}
		err := g.each(ctx, "", time.Time{}, func(i deadItem) bool { return left[i.id] }, func(i deadItem) (bool, error) {
			delete(left, i.id)
			these = append(these, i.chosen())
			return len(left) > 0, nil
		})
		for id := range left {
			if err == nil {
				t.refuse(id, g.none(id))
			}
		}
		return these, err
	}
	for _, id := range ids {
		i, err := g.find(ctx, id)
		switch {
		case errors.Is(err, ops.ErrNotFound):
			t.refuse(id, err)
		case err != nil:
			return nil, err
		default:
			these = append(these, i.chosen())
		}
	}
	return these, nil
}

// me is who runs the program, as far as the system tells.
func me() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
