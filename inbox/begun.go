package inbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// begun is how a message that kills the process is found where the broker does not count deliveries, and in the queues: by a note,
// committed before, of what the process was about to begin with. The batch loop has parts and accused, the retry loop has queues.
//
//  1. Before its first work at a partition a process notes the first of its messages that is not done with. Afterwards it notes
//     nothing more of that partition: there is no cost while all goes well.
//  2. A transaction that kills the process leaves nothing, so the next one begins with the same message, and the note counts that.
//     Any progress makes another message the first, and the count begins anew. What is done with is told by the marks, not by what
//     the broker heard before the process died.
//  3. Noted more often than Config.Redeliveries: the killer was in the transaction that began with this message, so it is among the
//     next Config.Batch messages of the partition. They are suspected, as if the broker had counted.
//
// Every partition has its own row, so another one that is well resets nothing. A partition that moves, and a stop before the first
// commit, count once as well: some innocents may be tried alone, and come through.
//
// The queues are one more partition. They are worked off in the order in which they are due, each in a transaction of its own, and
// what was worked off is due later or gone: the one that kills comes to the front.
type begun struct {
	parts   map[string]bool // noted by this process
	accused map[string]int  // how many more messages of the partition are suspected
	queues  bool            // noted by this process
}

// queuesPart is the name of the queues among the partitions.
const queuesPart = "(waiting)"

// start is where work at a partition begins.
type start struct{ at, times int }

// begin notes the partitions that this process meets for the first time, and returns the deliveries with the suspects among them
// marked by their Attempt. Its error is an outage.
func (c *Consumer[TX]) begin(ctx context.Context, deliveries []Delivery) ([]Delivery, error) {
	if c.notes == nil || c.cfg.Redeliveries < 0 {
		return deliveries, nil
	}
	var unknown []string
	for i := range deliveries {
		if p := deliveries[i].Partition; p != "" && !c.begun.parts[p] && !slices.Contains(unknown, p) {
			unknown = append(unknown, p)
		}
	}
	var starts map[string]start
	if len(unknown) > 0 {
		slices.Sort(unknown) // two processes note theirs in one order
		var err error
		if starts, err = c.noteStarts(ctx, deliveries, unknown); err != nil {
			if convergo.VerdictOf(err) == convergo.Outage {
				return deliveries, err
			}
			c.fails(&c.troubles.beginnings, "the beginning of work was not noted: a message that kills the process would not be found", err)
		} else {
			c.works(&c.troubles.beginnings)
		}
	}
	for p, s := range starts {
		c.begun.parts[p] = true
		if s.times > c.cfg.Redeliveries {
			c.begun.accused[p] = c.cfg.Batch
		}
	}
	if len(c.begun.accused) == 0 {
		return deliveries, nil
	}
	return c.accuse(deliveries, starts), nil
}

// noteStarts notes where work at the partitions begins. One of which nothing is new here is left out.
func (c *Consumer[TX]) noteStarts(ctx context.Context, deliveries []Delivery, parts []string) (starts map[string]start, err error) {
	err = c.update(ctx, func(ctx context.Context, tx TX) error {
		starts = map[string]start{}
		now := c.cfg.Now()
		for _, part := range parts {
			at, err := c.firstNew(ctx, tx, deliveries, part, now)
			if err != nil {
				return err
			}
			if at < 0 {
				continue
			}
			times, err := c.notes.Begin(ctx, tx, c.cfg.Consumer, part, deliveries[at].Event.Key, now)
			if err != nil {
				return err
			}
			starts[part] = start{at, times}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return starts, nil
}

// firstNew is the first delivery of the partition that a handler would get; -1 when there is none.
func (c *Consumer[TX]) firstNew(ctx context.Context, tx TX, deliveries []Delivery, part string, now time.Time) (int, error) {
	for i, d := range deliveries {
		if d.Partition != part || c.handlers[d.Event.Type] == nil || c.passesOver(d.Event) || usable(d) != nil {
			continue
		}
		marked, err := c.peek(ctx, tx, d.Event, now)
		if err != nil {
			return 0, err
		}
		if marked == Fresh {
			return i, nil
		}
	}
	return -1, nil
}

// accuse returns the deliveries with those of accused partitions as delivered too often.
func (c *Consumer[TX]) accuse(deliveries []Delivery, starts map[string]start) []Delivery {
	deliveries = slices.Clone(deliveries)
	for i := range deliveries {
		d := &deliveries[i]
		left := c.begun.accused[d.Partition]
		s, begins := starts[d.Partition]
		if left == 0 || begins && i < s.at {
			continue
		}
		d.Attempt = max(d.Attempt, c.cfg.Redeliveries+1)
		if left--; left == 0 {
			delete(c.begun.accused, d.Partition)
		} else {
			c.begun.accused[d.Partition] = left
		}
	}
	return deliveries
}

// beginQueue notes the first of the due queues that this process is about to work off, once, and lets the messages that its
// transaction would take be tried alone when too many processes have begun with it. Its error is an outage.
func (c *Consumer[TX]) beginQueue(ctx context.Context, due []convergo.Aggregate) error {
	if c.begun.queues || c.notes == nil || c.cfg.Redeliveries < 0 {
		return nil
	}
	for _, a := range due {
		noted, err := c.noteQueue(ctx, a)
		if noted && err == nil {
			c.begun.queues = true
			c.works(&c.troubles.queueNotes)
			return nil
		}
		if err != nil && outage(err) {
			return err
		}
		if err != nil {
			c.fails(&c.troubles.queueNotes, "the beginning of work at a queue was not noted", err, "aggregate", a.String())
		}
	}
	return nil
}

func (c *Consumer[TX]) noteQueue(ctx context.Context, a convergo.Aggregate) (noted bool, err error) {
	var t tally
	err = c.update(ctx, func(ctx context.Context, tx TX) error {
		t, noted = tally{}, false
		now := c.cfg.Now()
		messages, err := c.parking.Queue(ctx, tx, c.cfg.Consumer, a, c.cfg.PerQueue, now)
		if err != nil || len(messages) == 0 {
			return err
		}
		head := messages[0].Event
		if elsewhere, err := c.elsewhere(ctx, tx, head); err != nil || elsewhere {
			return err
		}
		times, err := c.notes.Begin(ctx, tx, c.cfg.Consumer, queuesPart, head.Key, now)
		if err != nil {
			return err
		}
		noted = true
		if times <= c.cfg.Redeliveries {
			return nil
		}
		if i := slices.IndexFunc(messages, suspected); i >= 0 {
			messages = messages[:i] // that one is tried alone, and the transaction ends before it
		}
		return c.suspectAll(ctx, tx, messages, fmt.Sprintf("waiting while %d processes began with its queue", times-1), &t, now)
	})
	if err != nil {
		return false, err
	}
	c.publish(&t)
	return noted, nil
}

func (c *Consumer[TX]) suspectAll(ctx context.Context, tx TX, messages []Queued, why string, t *tally, now time.Time) error {
	for _, m := range messages {
		if err := c.suspect(ctx, tx, m.Event, why, t, now); err != nil {
			return err
		}
	}
	return nil
}
