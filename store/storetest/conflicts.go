package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// givenUp: it is the function's own error that has the function's verdict, and only that.
func givenUp[TX any](r *rig[TX]) {
	err := r.Store.Update(r.ctx, func(context.Context, TX) error { return convergo.Permanent(errWanted) })
	if !errors.Is(err, errWanted) || convergo.VerdictOf(err) != convergo.Park {
		r.Errorf("a function's own error comes back as %v, %s", err, convergo.VerdictOf(err))
	}
	if r.Conflict == nil {
		return
	}
	for what, answer := range map[string]func(error) error{
		"the database's error": func(err error) error { return err },
		"its own":              func(error) error { return convergo.Permanent(errWanted) },
		"nothing":              func(error) error { return nil },
	} {
		runs, hooks := 0, 0
		err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
			runs++
			if h, ok := any(tx).(convergo.AfterCommit); ok {
				h.AfterCommit(func() { hooks++ })
			}
			if err := r.Add(ctx, tx, "n", 1); err != nil {
				return err
			}
			return answer(r.Conflict(ctx, tx))
		})
		if !errors.Is(err, convergo.ErrContended) || convergo.VerdictOf(err) != convergo.Outage || runs < 2 {
			r.Errorf("a function that returns %s: %v after %d runs, with the verdict %s", what, err, runs, convergo.VerdictOf(err))
		}
		equal(r, "hooks that ran", hooks, 0)
	}
	equal(r, "the effect", r.value("n"), 0)
}

// unlucky: the consumer's one attempt at a message is not spent on what the database asks for.
func unlucky[TX any](r *rig[TX]) {
	conflicts := 12
	if r.Conflict == nil {
		conflicts = 0
	}
	ctx, cancel := context.WithCancel(r.ctx)
	src := &oneMessage{event: event(order("1"), 1), again: make(chan struct{}, 1), acked: cancel}
	src.again <- struct{}{}
	c := inbox.New(r.Inbox, r.Parking, src, inbox.Config{Consumer: "c", MaxAttempts: 1, Outage: convergo.Backoff{Base: time.Millisecond}})
	var runs atomic.Int64
	c.Handle("OrderChanged", func(ctx context.Context, tx TX, _ convergo.Event) error {
		if int(runs.Add(1)) <= conflicts {
			return r.Conflict(ctx, tx)
		}
		return r.Add(ctx, tx, "n", 1)
	})
	r.must(c.Run(ctx))
	equal(r, "runs of the handler", runs.Load(), int64(conflicts)+1)
	equal(r, "the effect", r.value("n"), 1)
	letters, err := r.Operators.DeadLetters(r.ctx, "", 10, "")
	r.must(err)
	for _, l := range letters {
		r.Errorf("a dead letter after %d attempts: %s", l.Attempts, l.Error)
	}
	if stats := c.Stats(); stats.Failed != 0 {
		r.Errorf("%d failed attempts", stats.Failed)
	}
}

// oneMessage is a source that delivers an event until it is acknowledged.
type oneMessage struct {
	event convergo.Event
	again chan struct{} // has one when the event is to be delivered
	acked func()
}

func (s *oneMessage) Fetch(ctx context.Context, _ int) ([]inbox.Delivery, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.again:
	}
	return []inbox.Delivery{{
		Event: s.event, Attempt: 1,
		Ack: func(context.Context) error {
			s.acked()
			return nil
		},
		Return: func(context.Context, time.Duration) error {
			s.again <- struct{}{}
			return nil
		},
	}}, nil
}
