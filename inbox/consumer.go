package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// Policy says what a dead letter does to the later messages of its aggregate.
type Policy uint8

// The policies.
const (
	// HoldAggregate keeps the aggregate's later messages in its queue until a person redrives or discards the dead letter.
	HoldAggregate Policy = iota
	// SkipEvent lets them go on at once.
	SkipEvent
)

// Config of a Consumer. Consumer is required, the rest has defaults that are fit for production.
type Config struct {
	// Consumer is the durable name under which this consumer's dedup rows, queues and dead letters are kept. Two consumers
	// with different names each apply every event once.
	Consumer string
	Batch    int // messages per transaction, at most; default 100
	PerQueue int // waiting messages of one blocked aggregate per transaction, at most; default 100
	// Backoff between the attempts at a message. Default: convergo.Backoff's.
	Backoff convergo.Backoff
	// MaxAttempts at a message before it becomes a dead letter. Default convergo.DefaultMaxAttempts.
	MaxAttempts int
	OnDead      Policy // default HoldAggregate
	// Redeliveries is how often the broker may deliver a message that was never settled before it is suspected of killing the
	// process, and tried alone; -1: never. Where the broker does not count deliveries (Delivery.Partition), and for messages that
	// wait in a queue, it is how many processes may have begun with it in a row. Default 10.
	Redeliveries int
	// Trials is how many attempts at a suspected message may begin and not end before it is a dead letter. Default 3.
	Trials int
	// Await is for how long events of a type that this instance has no handler for are kept, with the later ones of their
	// aggregates, for one that has: counted from when such an instance was last seen running. Afterwards they are ignored. -1:
	// they are ignored at once. Default 24 h.
	Await time.Duration
	// RefuseStale drops, and counts, events whose version is not above the last one applied of their aggregate, by whichever
	// instance. It is what keeps the order when a reader or a relay that stood still for too long wakes up beside its successor.
	RefuseStale bool
	// Origin names the platform that this consumer belongs to. An event that another platform's relay has sent stops it: see
	// Foreign. Events without an origin pass. Default none: events of all platforms are applied.
	Origin string
	// TakeFrom are other platforms whose events are applied too, such as a name that this one had before.
	TakeFrom []string
	// PassOver are platforms whose events are acknowledged, counted as ignored and not applied: those that one which was here by
	// mistake has left.
	PassOver []string
	// Place says in Foreign and its log line where the source reads, for people: a broker's address and prefix.
	Place string
	// Outage is the pause while the store or the source cannot be reached. Default 100 ms doubling up to 2 s.
	Outage convergo.Backoff
	// Timeout bounds one transaction; a handler that takes longer fails. Default 30 s.
	Timeout time.Duration
	// Poll is how often the retry loop looks for queues that somebody else made due (a redrive from another process), behind
	// wake-ups and known due times. Default 2 s.
	Poll time.Duration
	Now  func() time.Time // default time.Now
	Log  *slog.Logger     // default: discarded
	// Probe points: inbox.fetched, inbox.handled (before the commit), inbox.committed (before the acks), inbox.acked.
	Probe convergo.Probe
	// Alert is told of every new dead letter, after the commit. It must not block.
	Alert func(consumer string, f Failure)
}

// Stats are counts since the start.
type Stats struct {
	Fetched    int64 // messages from the source
	Applied    int64 // handlers that ran and were committed
	Duplicates int64
	Stale      int64
	Ignored    int64 // of a type without a handler
	Queued     int64 // put behind a blocked aggregate, or kept for an instance that has a handler
	Failed     int64 // attempts that will be repeated
	Dead       int64 // dead letters written
	AckErrors  int64 // acknowledgements that failed; each leads to a redelivery
	Outages    int64 // transactions and fetches that failed as a whole
}

// Consumer applies a source's events. Make it with New.
type Consumer[TX any] struct {
	store     Store[TX]
	parking   Parking[TX]
	source    Source
	cfg       Config
	handlers  map[string]Handler[TX]
	wake      chan struct{}
	running   atomic.Bool
	foreign   atomic.Pointer[Foreign]
	careful   int                         // by the loop of new messages alone: see commit
	survived  map[convergo.Key]bool       // by the retry loop alone: suspects whose last attempt met an outage
	tried     map[convergo.Aggregate]bool // by the retry loop alone: queues whose last head was on trial
	notes     Notes[TX]                   // nil: the store has none
	begun     begun
	others    others
	ignored   ignored
	contended contention
	troubles  troubles
	stats     struct {
		fetched, applied, duplicates, stale, ignored, queued, failed, dead, ackErrors, outages atomic.Int64
	}
}

// New returns a Consumer that has no handlers yet. An empty Config.Consumer is a programming error and panics.
func New[TX any](store Store[TX], parking Parking[TX], source Source, cfg Config) *Consumer[TX] {
	if cfg.Consumer == "" {
		panic("inbox: Config.Consumer is empty: dedup rows need a consumer's name")
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 100
	}
	if cfg.PerQueue <= 0 {
		cfg.PerQueue = 100
	}
	if cfg.MaxAttempts <= 0 {
		cfg.MaxAttempts = convergo.DefaultMaxAttempts
	}
	if cfg.Redeliveries == 0 {
		cfg.Redeliveries = 10
	}
	if cfg.Trials <= 0 {
		cfg.Trials = 3
	}
	if cfg.Await == 0 {
		cfg.Await = 24 * time.Hour
	}
	if cfg.Outage.Base <= 0 && len(cfg.Outage.Schedule) == 0 {
		cfg.Outage = convergo.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 2 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	notes, _ := any(parking).(Notes[TX])
	return &Consumer[TX]{
		store: store, parking: parking, source: source, cfg: cfg, handlers: map[string]Handler[TX]{}, wake: make(chan struct{}, 1),
		survived: map[convergo.Key]bool{}, tried: map[convergo.Aggregate]bool{}, notes: notes,
	}
}

// Handle names the handler of an event type. Call it before Run. Events of a type without a handler are acknowledged and
// counted as ignored, unless another instance of the consumer has one: see Config.Await; the first of each type is logged. A second handler of one type is a
// programming error and panics.
func (c *Consumer[TX]) Handle(eventType string, h Handler[TX]) {
	if _, twice := c.handlers[eventType]; twice || h == nil {
		panic(fmt.Sprintf("inbox: handler of %q: there is one already, or it is nil", eventType))
	}
	c.handlers[eventType] = h
}

// Wake makes the retry loop look for due queues now, for example after a redrive. It never blocks.
func (c *Consumer[TX]) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Stats returns the counts.
func (c *Consumer[TX]) Stats() Stats {
	s := &c.stats
	return Stats{
		Fetched: s.fetched.Load(), Applied: s.applied.Load(), Duplicates: s.duplicates.Load(), Stale: s.stale.Load(),
		Ignored: s.ignored.Load(), Queued: s.queued.Load(), Failed: s.failed.Load(), Dead: s.dead.Load(),
		AckErrors: s.ackErrors.Load(), Outages: s.outages.Load(),
	}
}

// ErrStopped is returned by Run when one of its loops ended although nobody asked it to: a handler or a probe ended its
// goroutine (runtime.Goexit). What it was doing is rolled back.
var ErrStopped = errors.New("consumer stopped by itself")

// Run registers the types that have handlers and then applies events until ctx ends, finishes the transaction in flight within
// Config.Timeout and returns nil. Two loops run beside one another: one takes new messages from the source, one retries queues of blocked aggregates.
//
// Can the two break the order of an aggregate? Say m4 waits in its queue and m5 arrives.
//  1. The batch loop asks Blocked inside the write transaction that will apply or enqueue m5. Where writers are serialised
//     (memory, SQLite) that transaction runs wholly before or wholly after the one that drains the queue.
//  2. Before: m5 is appended. The drain then dequeues only what it had read, m4; the queue still holds m5 and stays, and
//     the next round takes it.
//  3. After: the drain has committed m4 and the queue is gone; m5 is applied at once, after m4.
//
// A database that locks rows must make the two transactions meet at the queue's row: Blocked and Queue lock it for update,
// several in one order, and Dequeue deletes it only if the queue is empty. Then m5 waits for the drain, or the drain waits
// for m5, sees it and keeps the row. For the same reason two instances of a consumer never work on one queue at a time.
//
// A second call while the first runs is an error, and so is one without any handler (ErrNoHandler), before anything is fetched.
func (c *Consumer[TX]) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return fmt.Errorf("inbox %s: Run was called while the consumer runs; make a second one with New", c.cfg.Consumer)
	}
	defer c.running.Store(false)
	if len(c.handlers) == 0 {
		return fmt.Errorf("inbox %s: %w", c.cfg.Consumer, ErrNoHandler)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.begun = begun{parts: map[string]bool{}, accused: map[string]int{}}
	if !c.introduce(ctx) {
		return nil
	}
	done := make(chan struct{}, 2)
	for name, loop := range map[string]func(context.Context){"batch": c.batches, "retry": c.retries} {
		go func() {
			defer func() { // also after runtime.Goexit
				if ctx.Err() == nil {
					stop(fmt.Errorf("inbox %s: %s loop: %w", c.cfg.Consumer, name, ErrStopped))
				}
				done <- struct{}{}
			}()
			loop(ctx)
		}()
	}
	<-done
	<-done
	if err := context.Cause(ctx); errors.Is(err, ErrStopped) {
		return err
	}
	return nil
}

// bounded is the time of one transaction. It outlives ctx: what has begun when the consumer is stopped is finished.
func (c *Consumer[TX]) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Timeout)
}

// pause waits out an outage. failures counts from 1.
func (c *Consumer[TX]) pause(ctx context.Context, failures int, l *convergo.FailureLog, err error) {
	c.stats.outages.Add(1)
	wait := c.cfg.Outage.Delay(failures)
	c.fails(l, "consumer pauses", err, "cause", c.troubles.cause(l))
	c.sleep(ctx, wait, nil)
}

func (c *Consumer[TX]) sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}
