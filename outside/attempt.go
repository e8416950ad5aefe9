package outside

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/convergo/convergo"
)

// attempt makes one claimed call and records what came of it.
//
// Where can the process die? Before Do: the lease expires, the next owner finds the call ambiguous, asks, is told "no
// trace" and makes it. After Do and before the record: the next owner asks and is told the result. During the record:
// it is one transaction. In no place is the call made with another key, and in none is it forgotten.
//
// more tells that another call may have become due by it: the next of its group, or its own retry.
func (c *Calls[TX]) attempt(ctx context.Context, call Claimed) (more bool) {
	c.cfg.Probe.At("outside.reserved")
	h := c.handlers[call.Kind]
	if call.Ambiguous {
		c.stats.takenOver.Add(1)
	}
	result, outcome, cause := c.call(ctx, h, call)
	c.cfg.Probe.At("outside.called")
	recorded := c.record(ctx, h, call, result, outcome, cause)
	c.cfg.Probe.At("outside.finished")
	return call.Group != "" || outcome.State == Waiting || !recorded
}

// call asks and does. cause is set for Waiting and Failed outcomes.
func (c *Calls[TX]) call(ctx context.Context, h Handler[TX], call Claimed) (result []byte, o Outcome, cause error) {
	noTrace := false
	if call.Ambiguous && h.Query != nil {
		c.stats.asked.Add(1)
		known := false
		err := guard("query", func() (err error) { result, known, err = h.Query(ctx, call); return err })
		switch {
		case err != nil:
			// Not even "permanent" is an answer here: that the question was refused says nothing about the call.
			return nil, c.later(call, true), fmt.Errorf("asking about %s %s: %w", call.Kind, call.Key, err)
		case known:
			return result, Outcome{State: Done, Result: result}, nil
		}
		noTrace = true
	}
	if c.spent(call) && (noTrace || !call.Ambiguous || h.Query == nil) {
		return nil, Outcome{State: Failed}, fmt.Errorf("%s %s: %d attempts: %w", call.Kind, call.Key, call.Attempts, ErrGaveUp)
	}
	if err := ctx.Err(); err != nil {
		// The process stood still for so long that the lease may have gone: whoever has it now may be calling.
		return nil, c.later(call, call.Ambiguous), fmt.Errorf("%s %s: no time left to call: %w", call.Kind, call.Key, err)
	}
	c.stats.made.Add(1)
	err := guard("do", func() (err error) { result, err = h.Do(ctx, call); return err })
	var unsent notSent
	switch {
	case err == nil:
		return result, Outcome{State: Done, Result: result}, nil
	case convergo.VerdictOf(err) == convergo.Park:
		return nil, Outcome{State: Failed}, fmt.Errorf("%s %s: %w", call.Kind, call.Key, err)
	case errors.As(err, &unsent):
		// This attempt did not leave; an earlier one may still be on its way, so what was ambiguous stays so.
		return nil, c.later(call, call.Ambiguous), fmt.Errorf("%s %s: %w", call.Kind, call.Key, err)
	default:
		return nil, c.later(call, true), fmt.Errorf("%s %s: %w", call.Kind, call.Key, err)
	}
}

func (c *Calls[TX]) spent(call Claimed) bool {
	return c.cfg.MaxAttempts > 0 && call.Attempts >= c.cfg.MaxAttempts
}

func (c *Calls[TX]) later(call Claimed, ambiguous bool) Outcome {
	return Outcome{State: Waiting, Ambiguous: ambiguous, Next: c.cfg.Now().Add(c.cfg.Backoff.Delay(call.Attempts + 1))}
}

var errLeaseLost = errors.New("the lease has gone to another owner")

// record writes the outcome together with what it means. When that fails for another reason than a lost lease, the call
// is put back as ambiguous; when that fails too the lease expires and the next owner asks. It tells whether o was recorded.
func (c *Calls[TX]) record(ctx context.Context, h Handler[TX], call Claimed, result []byte, o Outcome, cause error) (recorded bool) {
	if cause != nil {
		o.Error = cause.Error()
	}
	err := c.settle(ctx, call, o, func(ctx context.Context, tx TX) error {
		switch {
		case o.State == Done && h.Done != nil:
			return guard("done", func() error { return h.Done(ctx, tx, call, result) })
		case o.State == Failed && h.Refused != nil:
			return guard("refused", func() error { return h.Refused(ctx, tx, call, cause) })
		}
		return nil
	})
	recorded = err == nil
	if err != nil && !errors.Is(err, errLeaseLost) {
		failure := err
		o = c.later(call, true)
		o.Error = "recording the outcome: " + failure.Error()
		err = c.settle(ctx, call, o, func(context.Context, TX) error { return nil })
		c.unrecorded(call, failure, err)
	}
	if err == nil {
		c.works(&c.records, "outcomes of outgoing calls can be recorded again")
	}
	switch {
	case errors.Is(err, errLeaseLost):
		c.stats.lost.Add(1)
		c.cfg.Log.Warn("outcome of an outgoing call dropped, its lease was lost; the new owner asks the other side",
			"calls", c.cfg.Name, "kind", call.Kind, "key", call.Key)
	case err != nil:
		c.stats.outages.Add(1)
	case o.State == Done:
		c.stats.done.Add(1)
	case o.State == Failed:
		c.stats.refused.Add(1)
		c.cfg.Log.Error("outgoing call refused for good", "calls", c.cfg.Name, "kind", call.Kind, "key", call.Key,
			"attempts", call.Attempts+1, "error", o.Error)
	default:
		c.stats.retried.Add(1)
		c.cfg.Log.Warn("outgoing call will be tried again", "calls", c.cfg.Name, "kind", call.Kind, "key", call.Key,
			"attempts", call.Attempts+1, "next", o.Next, "ambiguous", o.Ambiguous, "error", o.Error)
	}
	return recorded
}

// unrecorded tells that the outcome of a call could not be recorded. Was it put back (back is nil), then something is wrong with this
// call, and a person should know of it; else with the store, and so with every call.
func (c *Calls[TX]) unrecorded(call Claimed, failure, back error) {
	if back == nil || errors.Is(back, errLeaseLost) {
		c.cfg.Log.Error("outcome of an outgoing call could not be recorded, it will be asked for again",
			"calls", c.cfg.Name, "kind", call.Kind, "key", call.Key, "attempts", call.Attempts+1, "error", failure)
		return
	}
	c.fails(&c.records, "outcomes of outgoing calls cannot be recorded, they will be asked for again", failure, "kind", call.Kind, "key", call.Key)
}

// settle has its own time: the call's own may be used up, and what it brought must still be written. If the lease has
// expired by then and was taken over, the token says so.
func (c *Calls[TX]) settle(ctx context.Context, call Claimed, o Outcome, act func(context.Context, TX) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.SettleTimeout)
	defer cancel()
	return c.store.Update(ctx, func(ctx context.Context, tx TX) error {
		held, err := c.store.Finish(ctx, tx, call, o, c.cfg.Now())
		if err != nil {
			return err
		}
		if !held {
			return errLeaseLost
		}
		return act(ctx, tx)
	})
}

// guard turns a panic of a handler into an error that names the place.
func guard(step string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in %s at %s: %v", step, panicPlace(), p)
		}
	}()
	return fn()
}

// panicPlace is the file and line that panicked, as seen from a deferred function.
func panicPlace() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", frame.File[strings.LastIndex(frame.File, "/")+1:], frame.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}
