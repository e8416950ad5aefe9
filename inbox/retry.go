package inbox

import (
	"context"
	"fmt"
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
		c.stayRegistered(ctx, now)
		worked := false
		skipped := c.others.skipped(now)
		due, next, err := c.parking.Due(ctx, c.cfg.Consumer, queuesPerRound+skipped+skipped/8, now) // of many to be skipped fewer looks
		if due = c.others.leave(due); err == nil {
			err = c.beginQueue(ctx, due)
		}
		if err == nil {
			worked, err = c.drainAll(ctx, due)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			c.pause(ctx, failures, &c.troubles.queues, err)
		case worked:
			failures = 0 // and look again at once
			c.works(&c.troubles.queues)
		default:
			// Nothing was due, or another instance has the queues that were, or shall have them.
			failures = 0
			clear(c.tried)
			c.works(&c.troubles.queues)
			wait := c.cfg.Poll
			if !next.IsZero() && (next.After(now) || len(c.others.queues) == 0) {
				wait = min(wait, max(next.Sub(now), 10*time.Millisecond))
			}
			c.sleep(ctx, wait, c.wake)
		}
	}
}

// drainAll works off the queues and tells whether it did anything. A queue that cannot be worked off does not hold up the
// others; two such in a row are taken for an outage.
func (c *Consumer[TX]) drainAll(ctx context.Context, due []convergo.Aggregate) (worked bool, err error) {
	inARow := 0
	for i := 0; i < len(due) && inARow < 2 && ctx.Err() == nil; i++ {
		some, failed := c.drain(ctx, due[i])
		worked = worked || some
		if failed == nil {
			inARow = 0
			continue
		}
		err = failed
		if inARow++; outage(failed) {
			break
		}
	}
	return worked, err
}

// drain works off one queue in one transaction, head first. When that transaction fails as a whole for another reason
// than an outage, the head is tried alone, and if that fails too the failure is the head's.
func (c *Consumer[TX]) drain(ctx context.Context, a convergo.Aggregate) (worked bool, err error) {
	most := c.cfg.PerQueue
	if c.tried[a] { // the next one may be on trial too, and then the others would be read in vain
		most = 1
		delete(c.tried, a)
	}
	r, err := c.drainSome(ctx, a, most)
	if err != nil && r.read > 1 && !outage(err) {
		r, err = c.drainSome(ctx, a, 1)
	}
	switch {
	case err == nil && r.trial:
		c.tried[a] = true
		return true, c.try(ctx, r.head)
	case err == nil && r.elsewhere:
		c.others.keepOff(a, c.cfg.Now())
		return true, nil // the next look finds others
	case err == nil:
		c.contended.through(r.head.Event.Key)
		return r.read > 0, nil
	case r.read == 0 || !c.contended.blames(r.head.Event.Key, err):
		return false, err
	}
	return true, c.blameHead(ctx, r.head, err)
}

// round is what one transaction of a drain found.
type round struct {
	read      int    // messages
	head      Queued // the first of them
	trial     bool   // head is on trial: see try
	elsewhere bool   // head is for another instance: see awaited
}

// drainSome makes an attempt at up to most messages of the queue.
//
// Two instances may find the same queue due. Both come here, and the second reads it when the first has committed: it
// sees a queue that is gone, or not due, or has another head, and works on what there is. Nothing of Due is relied upon.
func (c *Consumer[TX]) drainSome(ctx context.Context, a convergo.Aggregate, most int) (r round, err error) {
	var t tally
	err = c.update(ctx, func(ctx context.Context, tx TX) error {
		t, r = tally{}, round{} // a store may run this again
		now := c.cfg.Now()
		messages, err := c.parking.Queue(ctx, tx, c.cfg.Consumer, a, most, now)
		if err != nil {
			return fmt.Errorf("queue of %s: %w", a, err)
		}
		if r.read = len(messages); r.read == 0 {
			return nil
		}
		r.head = messages[0]
		if r.elsewhere, err = c.elsewhere(ctx, tx, r.head.Event); err != nil || r.elsewhere {
			return err
		}
		if suspected(r.head) {
			r.trial, err = c.arraign(ctx, tx, r.head, &t, now)
			return err
		}
		if err := c.retrySome(ctx, tx, messages, &t, now); err != nil {
			return err
		}
		c.cfg.Probe.At("inbox.handled")
		return nil
	})
	if err != nil {
		return r, err
	}
	if r.read > 0 {
		c.cfg.Probe.At("inbox.committed")
	}
	c.publish(&t)
	return r, nil
}

// retrySome makes an attempt at each message until one blocks the others, is on trial, or is for another instance.
func (c *Consumer[TX]) retrySome(ctx context.Context, tx TX, messages []Queued, t *tally, now time.Time) error {
	for _, m := range messages {
		if suspected(m) { // not beside others
			return nil
		}
		if elsewhere, err := c.elsewhere(ctx, tx, m.Event); err != nil || elsewhere {
			return err
		}
		if blocks, err := c.retry(ctx, tx, m, t, now); err != nil || blocks {
			return err
		}
	}
	return nil
}

// blameHead records that head's transaction failed, unless another instance has worked on the queue since.
func (c *Consumer[TX]) blameHead(ctx context.Context, head Queued, cause error) error {
	var t tally
	err := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		now := c.cfg.Now()
		messages, err := c.parking.Queue(ctx, tx, c.cfg.Consumer, head.Event.Aggregate, 1, now)
		if err != nil || len(messages) == 0 || messages[0].Position != head.Position || messages[0].Attempts != head.Attempts {
			return err
		}
		_, err = c.fail(ctx, tx, head, fmt.Errorf("its transaction failed: %w", cause), &t, now)
		return err
	})
	if err != nil {
		return err
	}
	c.publish(&t)
	return nil
}

// retry makes an attempt at a waiting message. A message that did not fail and is not buried leaves its queue.
func (c *Consumer[TX]) retry(ctx context.Context, tx TX, m Queued, t *tally, now time.Time) (blocks bool, err error) {
	if wasMalformed(m.Event) { // somebody has redriven it
		_, err := c.bury(ctx, tx, Failure{Event: m.Event, Attempts: 1, Error: errMalformed.Error(), Place: "inbox.read"}, false, t, now)
		return false, err
	}
	handler, known := c.handlers[m.Event.Type]
	if !known { // it had a handler when it was queued, here or in another instance
		c.ignore(m.Event.Type)
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
