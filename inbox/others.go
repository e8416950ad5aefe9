package inbox

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// others is what an instance knows of the other instances of its consumer. During a roll-out they may have handlers for types that
// this one does not know: an event of such a type is not ignored but kept in its aggregate's queue, and so are the later ones of the
// aggregate, whatever their type. An instance that has the handler takes the queue up.
type others struct {
	registered time.Time // when this instance's types were registered last; Run's, then the retry loop's

	mu    sync.Mutex
	types map[string]bool // registered by any instance
	asked map[string]bool // since read
	read  time.Time
	told  map[string]bool

	// Of the retry loop alone: queues whose heads are for another instance, and until when they are not looked at.
	queues map[convergo.Aggregate]time.Time
}

const (
	// rosterAge is how old the list of registered types may be before it is read again, when somebody asks.
	rosterAge = time.Second
	// keepOffFor is how long a queue that is for another instance is left alone at least.
	keepOffFor = 10 * time.Second
	// perQueue is added for each queue that is left alone already: when there are very many, those that were looked at first must not
	// come again before the last were looked at, or what is due behind them all would never be.
	perQueue = 20 * time.Millisecond
	// mostSkipped bounds how many of such queues are read over to find others.
	mostSkipped = 200_000
)

// introduce registers the types that have handlers, before any event is taken. It is false when ctx has ended.
func (c *Consumer[TX]) introduce(ctx context.Context) bool {
	for failures := 1; ctx.Err() == nil; failures++ {
		err := c.register(ctx)
		if err == nil {
			return true
		}
		c.pause(ctx, failures, &c.troubles.types, err)
	}
	return false
}

func (c *Consumer[TX]) register(ctx context.Context) error {
	types := slices.Sorted(maps.Keys(c.handlers))
	now := c.cfg.Now()
	if c.notes != nil && len(types) > 0 {
		err := c.update(ctx, func(ctx context.Context, tx TX) error {
			return c.notes.Register(ctx, tx, c.cfg.Consumer, types, now)
		})
		if err != nil {
			return err
		}
	}
	c.others.registered = now
	c.works(&c.troubles.types)
	return nil
}

// stayRegistered registers the types again before others take this instance for gone.
func (c *Consumer[TX]) stayRegistered(ctx context.Context, now time.Time) {
	every := time.Hour
	if c.cfg.Await > 0 {
		every = min(every, c.cfg.Await/4)
	}
	if now.Sub(c.others.registered) < every {
		return
	}
	if err := c.register(ctx); err != nil {
		c.fails(&c.troubles.types, "the types that it handles are not registered again yet", err)
	}
}

// awaited tells whether another instance has said that it handles the type, for which this one has no handler. The database is asked
// at most once a second, and when a type is met for the first time since.
func (c *Consumer[TX]) awaited(ctx context.Context, tx TX, eventType string) (bool, error) {
	if c.notes == nil || c.cfg.Await < 0 {
		return false, nil
	}
	now := c.cfg.Now()
	if answer, known := c.others.look(eventType, now); known {
		return answer, nil
	}
	types, err := c.notes.Registered(ctx, tx, c.cfg.Consumer, now.Add(-c.cfg.Await))
	if err != nil {
		return false, err
	}
	answer, first := c.others.note(eventType, types, now)
	if first {
		c.cfg.Log.Warn("events of a type that only other instances handle are kept for those", "consumer", c.cfg.Consumer, "type", eventType)
	}
	return answer, nil
}

// look answers from what is known; known is false when the database has to be asked.
func (o *others) look(eventType string, now time.Time) (answer, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	age := now.Sub(o.read)
	return o.types[eventType], o.asked[eventType] && age >= 0 && age < rosterAge
}

// note keeps the list; first is true when the answer is yes and never was before.
func (o *others) note(eventType string, types []string, now time.Time) (answer, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if age := now.Sub(o.read); o.asked == nil || age < 0 || age >= rosterAge {
		o.read, o.asked = now, map[string]bool{}
	}
	o.asked[eventType] = true
	o.types = make(map[string]bool, len(types))
	for _, t := range types {
		o.types[t] = true
	}
	if o.told == nil {
		o.told = map[string]bool{}
	}
	if answer = o.types[eventType]; answer && !o.told[eventType] {
		o.told[eventType], first = true, true
	}
	return answer, first
}

// elsewhere tells whether a waiting event is for another instance.
func (c *Consumer[TX]) elsewhere(ctx context.Context, tx TX, e convergo.Event) (bool, error) {
	if c.handlers[e.Type] != nil || wasMalformed(e) {
		return false, nil
	}
	return c.awaited(ctx, tx, e.Type)
}

// dismiss acknowledges, without a transaction, what is known to be nobody's, and returns the rest.
func (c *Consumer[TX]) dismiss(ctx context.Context, deliveries []Delivery) []Delivery {
	ignored := func(d Delivery) bool {
		if c.handlers[d.Event.Type] != nil || d.Malformed != nil {
			return false
		}
		if c.notes == nil || c.cfg.Await < 0 {
			return usable(d) == nil
		}
		awaited, known := c.others.look(d.Event.Type, c.cfg.Now())
		return known && !awaited && usable(d) == nil
	}
	if !slices.ContainsFunc(deliveries, ignored) {
		return deliveries
	}
	var rest, done []Delivery
	for _, d := range deliveries {
		if ignored(d) {
			c.ignore(d.Event.Type)
			done = append(done, d)
		} else {
			rest = append(rest, d)
		}
	}
	c.stats.ignored.Add(int64(len(done)))
	c.ack(ctx, done)
	return rest
}

// skipped is how many queues are to be left alone at now.
func (o *others) skipped(now time.Time) int {
	maps.DeleteFunc(o.queues, func(_ convergo.Aggregate, until time.Time) bool { return !until.After(now) })
	return min(len(o.queues), mostSkipped)
}

// leave returns the queues that are not to be left alone.
func (o *others) leave(due []convergo.Aggregate) []convergo.Aggregate {
	if len(o.queues) == 0 {
		return due
	}
	return slices.DeleteFunc(due, func(a convergo.Aggregate) bool { _, skip := o.queues[a]; return skip })
}

// keepOff leaves a queue alone for a while.
func (o *others) keepOff(a convergo.Aggregate, now time.Time) {
	if o.queues == nil {
		o.queues = map[convergo.Aggregate]time.Time{}
	}
	o.queues[a] = now.Add(keepOffFor + time.Duration(len(o.queues))*perQueue)
}
