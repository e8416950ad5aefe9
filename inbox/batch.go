package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
)

// batches is the loop that takes new messages.
func (c *Consumer[TX]) batches(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		deliveries, err := c.source.Fetch(ctx, c.cfg.Batch)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			failures++
			c.pause(ctx, failures, &c.troubles.source, err)
			continue
		}
		c.works(&c.troubles.source)
		if len(deliveries) == 0 { // a source that breaks its contract must not make us spin
			c.sleep(ctx, 50*time.Millisecond, nil)
			continue
		}
		c.stats.fetched.Add(int64(len(deliveries)))
		c.cfg.Probe.At("inbox.fetched")
		if f := c.stranger(deliveries); f != nil {
			c.refuse(ctx, f, deliveries)
			return
		}
		rest, err := c.take(ctx, deliveries)
		if err == nil {
			failures = 0
			c.works(&c.troubles.store)
			continue
		}
		// Nothing of rest is stored, so nothing of it is acknowledged. It goes back at once and in order, not when the pause
		// is over: another live consumer may have a database that works, and ours asks for more only after the pause.
		c.giveBack(ctx, rest)
		failures++
		c.pause(ctx, failures, &c.troubles.store, err)
	}
}

// take handles what was fetched and returns what is not done when the store cannot be reached.
func (c *Consumer[TX]) take(ctx context.Context, deliveries []Delivery) (rest []Delivery, err error) {
	if deliveries = c.dismiss(ctx, deliveries); len(deliveries) == 0 {
		return nil, nil
	}
	if deliveries, err = c.begin(ctx, deliveries); err != nil {
		return deliveries, err
	}
	return c.apply(ctx, deliveries)
}

// apply handles the deliveries in one transaction, and if that fails for a reason that is not an outage one by one, so
// that a message that spoils every transaction it is in is found and does not hold up the others for ever. So it is when others
// want the same rows: small transactions meet fewer of them. It returns what is not done when the store cannot be reached.
func (c *Consumer[TX]) apply(ctx context.Context, deliveries []Delivery) (rest []Delivery, err error) {
	err = c.commit(ctx, deliveries)
	if err == nil {
		return nil, nil
	}
	if outage(err) {
		return deliveries, err
	}
	return c.oneByOne(ctx, deliveries)
}

// oneByOne gives each delivery a transaction of its own. A delivery whose failure cannot even be recorded is stuck: it
// goes back to the source, and so do later ones of its aggregate. Two such in a row are taken for an outage. A broker that
// knows positions only, and no single messages, must not let an Ack pass over one that was returned: its adapter's affair.
func (c *Consumer[TX]) oneByOne(ctx context.Context, deliveries []Delivery) (stuck []Delivery, err error) {
	waits := map[convergo.Aggregate]bool{}
	inARow := 0
	for i := range deliveries {
		d := deliveries[i]
		if waits[d.Event.Aggregate] {
			stuck = append(stuck, d)
			continue
		}
		failed := c.commit(ctx, deliveries[i:i+1])
		if failed != nil && c.contended.blames(d.Event.Key, failed) {
			failed = c.blame(ctx, d, failed) // is it this message or the store? If the failure can be recorded, the store works
		} else if failed == nil {
			c.contended.through(d.Event.Key)
		}
		if failed == nil {
			inARow = 0
			continue
		}
		err = failed
		stuck = append(stuck, d)
		waits[d.Event.Aggregate] = true
		if inARow++; inARow == 2 || outage(failed) {
			return append(stuck, deliveries[i+1:]...), err
		}
	}
	return stuck, err
}

// commit handles the deliveries in one transaction and acknowledges them after it.
//
// A savepoint for each message would cost two statements and, in most databases, a copy of what it changes, and nearly all
// messages succeed. So first all of them are handled without any. When a handler fails the transaction is undone and made
// again, now with savepoints, and with the failure in the place of that message's handler: it has made its attempt, the
// others make theirs. Where one failed others may, so the next batches have savepoints from the start.
func (c *Consumer[TX]) commit(ctx context.Context, deliveries []Delivery) error {
	var p pass
	if c.careful == 0 {
		err := c.transact(ctx, deliveries, &p)
		if p.failure == nil || !errors.Is(err, errPass) || convergo.VerdictOf(err) == convergo.Outage { // then it was the database's
			return err
		}
		c.careful = carefulBatches
	} else {
		c.careful--
	}
	p.savepoints = true
	return c.transact(ctx, deliveries, &p)
}

// carefulBatches is how many batches after one with a failure have savepoints from the start.
const carefulBatches = 50

// pass is one way through a batch.
type pass struct {
	savepoints bool
	at         int   // the delivery whose handler failed in a pass without savepoints; its place in the batch
	failure    error // how; nil when none has
}

// visit is what a pass does with one delivery.
type visit struct {
	*pass
	place int
}

func (p *pass) of(place int) visit { return visit{p, place} }

var errPass = errors.New("a handler failed, and its message had no savepoint")

// first makes the first attempt at a message, as the pass wants it.
func (c *Consumer[TX]) first(
	ctx context.Context, tx TX, m Queued, h Handler[TX], v visit, t *tally, now time.Time,
) (blocks bool, err error) {
	if v.savepoints {
		if failure := v.failure; failure != nil && v.place == v.at {
			h = func(context.Context, TX, convergo.Event) error { return failure }
		}
		return c.run(ctx, tx, m, h, t, now)
	}
	marked, failure, err := c.attempt(ctx, tx, m, h, now)
	if failure != nil && ctx.Err() == nil && convergo.VerdictOf(failure) != convergo.Outage {
		v.at, v.pass.failure = v.place, failure
		return false, errPass
	}
	return c.conclude(ctx, tx, m, marked, failure, err, t, now)
}

func (c *Consumer[TX]) transact(ctx context.Context, deliveries []Delivery, p *pass) error {
	var t tally
	err := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{} // a store may run this again
		if !p.savepoints {
			p.failure = nil
		}
		if err := c.applyAll(ctx, tx, deliveries, p, &t); err != nil {
			return err
		}
		c.cfg.Probe.At("inbox.handled")
		return nil
	})
	if err != nil {
		return err
	}
	c.cfg.Probe.At("inbox.committed")
	c.publish(&t)
	c.ack(ctx, deliveries)
	return nil
}

func (c *Consumer[TX]) update(ctx context.Context, fn func(ctx context.Context, tx TX) error) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.store.Update(context.WithValue(ctx, clock{}, c.cfg.Now), fn)
}

func (c *Consumer[TX]) applyAll(ctx context.Context, tx TX, deliveries []Delivery, p *pass, t *tally) error {
	now := c.cfg.Now()
	aggregates := make([]convergo.Aggregate, 0, len(deliveries))
	seen := make(map[convergo.Aggregate]bool, len(deliveries))
	for _, d := range deliveries {
		if a := d.Event.Aggregate; d.Malformed == nil && !seen[a] {
			seen[a] = true
			aggregates = append(aggregates, a)
		}
	}
	blocked, err := c.parking.Blocked(ctx, tx, c.cfg.Consumer, aggregates)
	if err != nil {
		return fmt.Errorf("blocked aggregates: %w", err)
	}
	if blocked == nil {
		blocked = map[convergo.Aggregate]bool{}
	}
	for i, d := range deliveries {
		if err := c.applyOne(ctx, tx, d, p.of(i), blocked, t, now); err != nil {
			return err
		}
	}
	return nil
}

// applyOne handles one delivery. Its error spoils the whole transaction; a failure of the message itself does not, it is
// recorded in the transaction.
func (c *Consumer[TX]) applyOne(
	ctx context.Context, tx TX, d Delivery, v visit, blocked map[convergo.Aggregate]bool, t *tally, now time.Time,
) error {
	if c.passesOver(d.Event) {
		t.ignored++
		return nil
	}
	if err := usable(d); err != nil {
		return c.buryMalformed(ctx, tx, d.Event, err, t, now)
	}
	handler, known := c.handlers[d.Event.Type]
	waits := blocked[d.Event.Aggregate]
	if !known {
		awaited, err := c.awaited(ctx, tx, d.Event.Type)
		if err != nil {
			return err
		}
		if !awaited {
			c.ignore(d.Event.Type)
			t.ignored++
			return nil
		}
		waits = true
	}
	if suspect := c.overdelivered(d); waits || suspect {
		marked, err := c.peek(ctx, tx, d.Event, now)
		switch {
		case err != nil:
			return err
		case waits:
			blocked[d.Event.Aggregate] = blocked[d.Event.Aggregate] || marked != Duplicate
			return c.queueUp(ctx, tx, d, marked, t, now)
		case marked == Fresh:
			blocked[d.Event.Aggregate] = true
			t.accuse(d.Event.Aggregate)
			return c.suspect(ctx, tx, d.Event, overdelivery(d), t, now)
		}
	}
	blocks, err := c.first(ctx, tx, Queued{Event: d.Event}, handler, v, t, now)
	if blocks {
		blocked[d.Event.Aggregate] = true
	}
	return err
}

// queueUp puts a delivery behind the others of its aggregate, which is blocked. Delivered again because its ack was lost, this very
// message may be the queue's head (Enqueue is once per key), or done with: applied, or the dead letter that blocks. What is done with
// must not wait behind itself. One that is suspected behind another suspect of its aggregate is tried alone like that one.
func (c *Consumer[TX]) queueUp(ctx context.Context, tx TX, d Delivery, marked Marked, t *tally, now time.Time) error {
	if marked == Duplicate {
		t.duplicates++
		return nil
	}
	t.queued++
	err := c.parking.Enqueue(ctx, tx, c.cfg.Consumer, d.Event, now)
	if err == nil && marked == Fresh && t.accused[d.Event.Aggregate] && c.overdelivered(d) {
		err = c.suspect(ctx, tx, d.Event, overdelivery(d), t, now)
	}
	return err
}

var errPeek = errors.New("only asked")

// peek is what Mark would answer; it leaves no row.
func (c *Consumer[TX]) peek(ctx context.Context, tx TX, e convergo.Event, now time.Time) (marked Marked, err error) {
	err = c.store.Nested(ctx, tx, func(ctx context.Context, tx TX) (err error) {
		if marked, err = c.store.Mark(ctx, tx, c.cfg.Consumer, e, false, now); err != nil {
			return err
		}
		return errPeek
	})
	if errors.Is(err, errPeek) {
		return marked, nil
	}
	return marked, fmt.Errorf("%s %s: %w", e.Type, e.Key, err)
}

// attempt marks m and, when it is new, handles it. failure is the handler's own.
func (c *Consumer[TX]) attempt(
	ctx context.Context, tx TX, m Queued, h Handler[TX], now time.Time,
) (marked Marked, failure, err error) {
	if marked, err = c.store.Mark(ctx, tx, c.cfg.Consumer, m.Event, c.cfg.RefuseStale, now); err == nil && marked == Fresh {
		failure = guard(ctx, tx, m.Event, h)
	}
	return marked, failure, err
}

// run makes an attempt at m inside a savepoint and records the failure when there is one. blocks tells that the
// aggregate's next messages must wait. err spoils the whole transaction: the store's, or an outage.
func (c *Consumer[TX]) run(ctx context.Context, tx TX, m Queued, h Handler[TX], t *tally, now time.Time) (blocks bool, err error) {
	var marked Marked
	var failure error
	err = c.store.Nested(ctx, tx, func(ctx context.Context, tx TX) (err error) {
		if marked, failure, err = c.attempt(ctx, tx, m, h, now); err == nil {
			err = failure
		}
		return err
	})
	return c.conclude(ctx, tx, m, marked, failure, err, t, now)
}

// conclude records what came of an attempt.
func (c *Consumer[TX]) conclude(
	ctx context.Context, tx TX, m Queued, marked Marked, failure, err error, t *tally, now time.Time,
) (blocks bool, _ error) {
	switch {
	case failure != nil && ctx.Err() != nil:
		// The transaction's time is over: whose fault it was is found out alone.
		return false, fmt.Errorf("%s %s: %w", m.Event.Type, m.Event.Key, errors.Join(ctx.Err(), failure))
	case failure != nil && convergo.VerdictOf(failure) == convergo.Outage:
		return false, fmt.Errorf("%s %s: %w", m.Event.Type, m.Event.Key, failure)
	case failure != nil:
		return c.fail(ctx, tx, m, failure, t, now)
	case err != nil:
		return false, fmt.Errorf("%s %s: %w", m.Event.Type, m.Event.Key, err)
	}
	switch marked {
	case Duplicate:
		t.duplicates++
	case Stale:
		t.stale++
	case Mismatch:
		// An effect of this key has happened, so the aggregate's order has no hole: a person looks, nothing waits.
		_, err := c.bury(ctx, tx, Failure{
			Event: m.Event, Attempts: m.Attempts + 1, Place: "inbox.mark",
			Error: "the key was used before with another payload: the producer gave two events one key, or built one event twice differently",
		}, false, t, now)
		return false, err
	default:
		t.applied++
	}
	return false, nil
}

// fail records a failed attempt of the handler.
func (c *Consumer[TX]) fail(ctx context.Context, tx TX, m Queued, cause error, t *tally, now time.Time) (blocks bool, err error) {
	f := Failure{Event: m.Event, Attempts: m.Attempts + 1, Error: cause.Error(), Place: "handler"}
	var p panicked
	if errors.As(cause, &p) {
		f.Place = "handler " + p.place
	}
	if convergo.VerdictOf(cause) == convergo.Park || f.Attempts >= c.cfg.MaxAttempts {
		hold := c.cfg.OnDead == HoldAggregate
		buried, err := c.bury(ctx, tx, f, hold, t, now)
		return hold && buried, err
	}
	f.Next = now.Add(c.cfg.Backoff.Delay(f.Attempts))
	if err := c.parking.Fail(ctx, tx, c.cfg.Consumer, f, now); err != nil {
		return true, fmt.Errorf("parking %s: %w", m.Event.Key, err)
	}
	t.failed = append(t.failed, f)
	return true, nil
}

// bury writes the dead letter, unless another instance has done with the message meanwhile. buried tells which.
func (c *Consumer[TX]) bury(ctx context.Context, tx TX, f Failure, hold bool, t *tally, now time.Time) (buried bool, err error) {
	buried, err = c.parking.Bury(ctx, tx, c.cfg.Consumer, f, hold, now)
	if err != nil {
		return false, fmt.Errorf("dead letter %s: %w", f.Event.Key, err)
	}
	if !buried {
		t.duplicates++
		return false, c.parking.Dequeue(ctx, tx, c.cfg.Consumer, f.Event, now)
	}
	t.dead = append(t.dead, f)
	return true, nil
}

// blame records, in a transaction of its own, that d's transaction failed. cause is d's fault if that works. A message
// whose aggregate has a queue goes behind that queue and not, as a failed one would, to its head.
func (c *Consumer[TX]) blame(ctx context.Context, d Delivery, cause error) error {
	var t tally
	now := c.cfg.Now()
	err := c.update(ctx, func(ctx context.Context, tx TX) error {
		t = tally{}
		if err := usable(d); err != nil {
			return c.buryMalformed(ctx, tx, d.Event, err, &t, now)
		}
		blocked, err := c.parking.Blocked(ctx, tx, c.cfg.Consumer, []convergo.Aggregate{d.Event.Aggregate})
		if err != nil {
			return err
		}
		if blocked[d.Event.Aggregate] {
			t.queued++
			return c.parking.Enqueue(ctx, tx, c.cfg.Consumer, d.Event, now)
		}
		_, err = c.fail(ctx, tx, Queued{Event: d.Event}, fmt.Errorf("its transaction failed: %w", cause), &t, now)
		return err
	})
	if err != nil {
		return errors.Join(cause, err)
	}
	c.publish(&t)
	c.ack(ctx, []Delivery{d})
	return nil
}

// ack acknowledges what is committed, in the order of delivery.
func (c *Consumer[TX]) ack(ctx context.Context, deliveries []Delivery) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	for _, d := range deliveries {
		if d.Ack == nil {
			continue
		}
		if err := d.Ack(ctx); err != nil {
			c.stats.ackErrors.Add(1)
		}
	}
	c.cfg.Probe.At("inbox.acked")
}

// giveBack returns deliveries to the source. One that cannot be returned comes again when the broker's patience ends.
func (c *Consumer[TX]) giveBack(ctx context.Context, deliveries []Delivery) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var first *Delivery
	var failure error
	left := 0
	for i, d := range deliveries {
		if d.Return == nil {
			continue
		}
		if err := d.Return(ctx, 0); err != nil {
			if left++; left == 1 {
				first, failure = &deliveries[i], err
			}
		}
	}
	if left == 0 {
		c.works(&c.troubles.returns)
		return
	}
	c.fails(&c.troubles.returns, "messages could not be returned", failure, "messages", left, "first", first.Event.Key)
}
