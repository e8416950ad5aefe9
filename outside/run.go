package outside

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// Run makes calls until ctx ends, then waits for those in flight, each bounded by its lease, and returns nil. Its only error
// is being called while it runs.
func (c *Calls[TX]) Run(ctx context.Context) error {
	if !c.life.CompareAndSwap(false, true) {
		return fmt.Errorf("outside %s: Run was called while the calls run; make second ones with New", c.cfg.Name)
	}
	defer c.life.Store(false)
	defer c.running.Wait()
	outage := convergo.Backoff{Base: 100 * time.Millisecond, Cap: 5 * time.Second}
	failures := 0
	for ctx.Err() == nil {
		free := c.reserve(ctx)
		if free == 0 {
			return nil
		}
		taken, wait, err := c.claim(ctx, free)
		for range free - taken {
			<-c.slots
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			c.stats.outages.Add(1)
			c.fails(&c.claims, "outgoing calls cannot be claimed, pausing", err)
			c.sleep(ctx, outage.Delay(failures), false)
		case taken == free: // there may be more
			failures = 0
			c.works(&c.claims, "outgoing calls can be claimed again")
		default:
			failures = 0
			c.works(&c.claims, "outgoing calls can be claimed again")
			c.sleep(ctx, wait, true)
		}
	}
	return nil
}

// reserve waits for a free worker and takes all that are free, so that every claimed call starts at once and its lease
// is not spent in a queue. It returns 0 only when ctx has ended.
func (c *Calls[TX]) reserve(ctx context.Context) int {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for n := 1; ; n++ {
		select {
		case c.slots <- struct{}{}:
		default:
			return n
		}
	}
}

// attempts are the calls of one claim: they share its clock.
type attempts struct {
	ctx    context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func (a *attempts) done() {
	if a.left.Add(-1) == 0 {
		a.cancel()
	}
}

// claim takes due calls and starts them. It returns how many, and how long nothing will be due.
func (c *Calls[TX]) claim(ctx context.Context, free int) (taken int, wait time.Duration, err error) {
	if len(c.kinds) == 0 {
		return 0, time.Hour, nil
	}
	// The clock of the attempts starts before the lease does: whatever the claim takes, the calls end before the lease.
	// It is not cancelled with ctx: what is in flight at a shutdown is finished, and a claim that was sent is not wasted.
	group := &attempts{}
	group.ctx, group.cancel = context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Timeout)
	now := c.cfg.Now()
	calls, next, err := c.store.Claim(group.ctx, c.kinds, c.cfg.Lease, free, now)
	if err != nil || len(calls) == 0 {
		group.cancel()
	}
	if err != nil {
		return 0, 0, err
	}
	c.stats.claimed.Add(int64(len(calls)))
	c.stats.running.Add(int64(len(calls)))
	group.left.Store(int64(len(calls)))
	for _, call := range calls {
		c.running.Go(func() {
			more := false
			defer func() { // also when a probe or a handler ends the goroutine
				group.done()
				c.stats.running.Add(-1)
				<-c.slots
				if more {
					c.Wake()
				}
			}()
			more = c.attempt(group.ctx, call)
		})
	}
	wait = c.cfg.Poll
	soonest := time.Millisecond
	if len(calls) == 0 {
		soonest = sameMoment
	}
	if !next.IsZero() {
		wait = min(wait, max(next.Sub(now), soonest))
	}
	return len(calls), wait, nil
}

// sameMoment keeps a loop from asking without a pause for a call that the store says is due and does not hand out: another
// instance is about to finish it.
const sameMoment = 10 * time.Millisecond

// fails tells the log of something that is tried again until it works, but not of each try.
func (c *Calls[TX]) fails(l *convergo.FailureLog, message string, err error, args ...any) {
	if failures, within, worth := l.Failed(c.cfg.Now()); worth {
		c.cfg.Log.Warn(message, slices.Concat([]any{"calls", c.cfg.Name}, args,
			[]any{"failures", failures, "for", within.Round(time.Millisecond), "error", err})...)
	}
}

// works ends what fails has told of.
func (c *Calls[TX]) works(l *convergo.FailureLog, message string) {
	if failures, within, worth := l.Worked(c.cfg.Now()); worth {
		c.cfg.Log.Info(message, "calls", c.cfg.Name, "failures", failures, "after", within.Round(time.Millisecond))
	}
}

func (c *Calls[TX]) sleep(ctx context.Context, d time.Duration, wakeable bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	wake := c.wake
	if !wakeable {
		wake = nil
	}
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}
