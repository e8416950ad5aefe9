package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// A message can kill the process that handles it: it makes a handler take all memory, or call os.Exit, or overflow the
// stack, which no recover catches. Its transaction is rolled back, nothing is recorded, the broker delivers it again, and
// the next process dies of it too, for ever, with every message of its batch.
//
// The only trace is the broker's count of deliveries, or our own of beginnings: see begun. It accuses the whole batch, and an outage
// of the database raises it as well, so it is a suspicion and no proof:
//
//  1. A message that was delivered more often than Config.Redeliveries is not handled but put at the head of its
//     aggregate's queue, in the batch's transaction, with the note that it is suspected.
//  2. Each attempt at a suspect is recorded before it is made, in a transaction of its own, and made alone. If the process
//     survives, the outcome is recorded as any other, and the suspicion is over: the queue's next message is due at once, because
//     one that is only suspected has no attempts yet.
//  3. If the process dies, the record is there. After Config.Trials such records the message is buried; its place is "process".
const (
	suspicion    = "process: "
	placeProcess = "process"
)

// suspected tells whether the queued message is on trial.
func suspected(m Queued) bool { return strings.HasPrefix(m.LastError, suspicion) }

// overdelivered tells whether the broker has counted too many deliveries that nobody settled.
func (c *Consumer[TX]) overdelivered(d Delivery) bool {
	return c.cfg.Redeliveries > 0 && d.Attempt > c.cfg.Redeliveries
}

func overdelivery(d Delivery) string {
	return fmt.Sprintf("delivered %d times and never settled", d.Attempt)
}

// suspect lets a message be tried alone. One that is in no queue becomes the head of its aggregate's.
func (c *Consumer[TX]) suspect(ctx context.Context, tx TX, e convergo.Event, why string, t *tally, now time.Time) error {
	f := Failure{
		Event: e, Place: placeProcess, Next: now,
		Error: fmt.Sprintf("%s%s: it may kill the process, so it is tried alone", suspicion, why),
	}
	if err := c.parking.Fail(ctx, tx, c.cfg.Consumer, f, now); err != nil {
		return fmt.Errorf("parking %s: %w", e.Key, err)
	}
	t.failed = append(t.failed, f)
	return nil
}

// arraign records that an attempt at m is about to be made, or buries m when too many such records came to nothing. It is
// not due again before this attempt has surely ended, so that no other instance makes one meanwhile.
//
// Attempts are one more than such records; without any they are 0, as suspect writes it, or 1, as older versions have.
func (c *Consumer[TX]) arraign(ctx context.Context, tx TX, m Queued, t *tally, now time.Time) (trial bool, err error) {
	f := Failure{Event: m.Event, Attempts: m.Attempts, Error: m.LastError, Place: placeProcess}
	if made := max(m.Attempts-1, 0); made >= c.cfg.Trials && !c.survived[m.Event.Key] {
		f.Error = fmt.Sprintf("%d attempts at it began and none ended, each alone: it kills the process", made)
		_, err := c.bury(ctx, tx, f, c.cfg.OnDead == HoldAggregate, t, now)
		return false, err
	}
	if !c.survived[m.Event.Key] {
		f.Attempts++
	}
	f.Attempts = max(f.Attempts, 2)
	f.Next = now.Add(c.cfg.Timeout)
	if err := c.parking.Fail(ctx, tx, c.cfg.Consumer, f, now); err != nil {
		return false, fmt.Errorf("parking %s: %w", m.Event.Key, err)
	}
	return true, nil
}

// try makes the attempt that arraign has recorded.
func (c *Consumer[TX]) try(ctx context.Context, m Queued) error {
	var t tally
	a := m.Event.Aggregate
	c.survived[m.Event.Key] = false
	err := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		blocked, err := c.parking.Blocked(ctx, tx, c.cfg.Consumer, []convergo.Aggregate{a}) // takes the queue
		if err != nil || !blocked[a] {
			return err
		}
		_, err = c.retry(ctx, tx, m, &t, c.cfg.Now())
		return err
	})
	switch {
	case err == nil:
		delete(c.survived, m.Event.Key)
		c.contended.through(m.Event.Key)
		c.publish(&t)
		return nil
	case !c.contended.blames(m.Event.Key, err):
		c.survived[m.Event.Key] = true // this attempt proves nothing: the next one does not count
		return err
	}
	delete(c.survived, m.Event.Key)
	t = tally{}
	failed := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		_, err := c.fail(ctx, tx, m, fmt.Errorf("its transaction failed: %w", err), &t, c.cfg.Now())
		return err
	})
	if failed != nil {
		return errors.Join(err, failed)
	}
	c.publish(&t)
	return nil
}
