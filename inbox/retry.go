package inbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// queuesPerRound bounds one look of the retry loop; what is left is taken in the next, at once.
const queuesPerRound = 64

// retries is the loop that works off the queues of blocked aggregates.
func (c *Consumer[TX]) retries(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		now := c.cfg.Now()
		queues, next, err := c.parking.Due(ctx, c.cfg.Consumer, queuesPerRound, c.cfg.PerQueue, now)
		if err == nil {
			err = c.drainAll(ctx, queues)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			c.pause(ctx, failures, "queues cannot be worked off", err)
		case slices.ContainsFunc(queues, func(q Queue) bool { return len(q.Messages) > 0 }):
			failures = 0 // and look again at once
		default:
			failures = 0
			wait := c.cfg.Poll
			if !next.IsZero() {
				wait = min(wait, max(next.Sub(now), 10*time.Millisecond))
			}
			c.sleep(ctx, wait, c.wake)
		}
	}
}

// drainAll works off the queues. A queue that cannot be worked off does not hold up the others; two such in a row are
// taken for an outage.
func (c *Consumer[TX]) drainAll(ctx context.Context, queues []Queue) (err error) {
	inARow := 0
	for i := 0; i < len(queues) && inARow < 2 && ctx.Err() == nil; i++ {
		if len(queues[i].Messages) == 0 { // a store that breaks its contract must not make us spin
			continue
		}
		failed := c.drain(ctx, queues[i])
		if failed == nil {
			inARow = 0
			continue
		}
		err = failed
		if inARow++; convergo.VerdictOf(failed) == convergo.Outage {
			return err
		}
	}
	return err
}

// drain works off one queue in one transaction, head first. When that transaction fails as a whole for another reason
// than an outage, the head is tried alone, and if that fails too the failure is the head's.
func (c *Consumer[TX]) drain(ctx context.Context, q Queue) error {
	err := c.drainSome(ctx, q.Messages)
	if err == nil || convergo.VerdictOf(err) == convergo.Outage {
		return err
	}
	head := q.Messages[:1]
	if len(q.Messages) > 1 {
		if err = c.drainSome(ctx, head); err == nil || convergo.VerdictOf(err) == convergo.Outage {
			return err
		}
	}
	var t tally
	cause, now := err, c.cfg.Now()
	err = c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		_, err := c.fail(ctx, tx, head[0], fmt.Errorf("its transaction failed: %w", cause), &t, now)
		return err
	})
	if err != nil {
		return err
	}
	c.publish(&t)
	return nil
}

func (c *Consumer[TX]) drainSome(ctx context.Context, messages []Queued) error {
	var t tally
	err := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		now := c.cfg.Now()
		// Takes the queue's lock, on a database that has such: see Run.
		a := messages[0].Event.Aggregate
		if blocked, err := c.parking.Blocked(ctx, tx, c.cfg.Consumer, []convergo.Aggregate{a}); err != nil || !blocked[a] {
			return err
		}
		for _, m := range messages {
			duplicates := t.duplicates
			blocks, err := c.retry(ctx, tx, m, &t, now)
			if err != nil {
				return err
			}
			// A duplicate may mean that another instance has worked on this queue since Due was read, and may have left it
			// held for a person. What comes next is read again rather than taken from an old list.
			if blocks || t.duplicates > duplicates {
				break
			}
		}
		c.cfg.Probe.At("inbox.handled")
		return nil
	})
	if err != nil {
		return err
	}
	c.cfg.Probe.At("inbox.committed")
	c.publish(&t)
	return nil
}

// retry makes an attempt at a waiting message. A message that did not fail and is not buried leaves its queue.
func (c *Consumer[TX]) retry(ctx context.Context, tx TX, m Queued, t *tally, now time.Time) (blocks bool, err error) {
	if wasMalformed(m.Event) { // somebody has redriven it
		return false, c.bury(ctx, tx, Failure{Event: m.Event, Attempts: 1, Error: errMalformed.Error(), Place: "inbox.read"}, false, t, now)
	}
	handler, known := c.handlers[m.Event.Type]
	if !known { // it had a handler when it was queued
		t.ignored++
		return false, c.parking.Dequeue(ctx, tx, c.cfg.Consumer, m.Event, now)
	}
	before := len(t.failed) + len(t.dead)
	if blocks, err = c.run(ctx, tx, m, handler, t, now); err != nil {
		return false, err
	}
	if len(t.failed)+len(t.dead) > before { // Fail and Bury have put it where it belongs
		return blocks, nil
	}
	return false, c.parking.Dequeue(ctx, tx, c.cfg.Consumer, m.Event, now)
}
