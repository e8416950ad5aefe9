// Package inbox applies each event once per consumer: the dedup row and the handler's own writes commit together.
package inbox

import (
	"context"
	"time"

	"github.com/convergo/convergo"
)

// Handler applies an event inside tx. What it writes through tx, and the events that it adds to an outbox in tx, commit
// with the dedup row or not at all. It waits for no network. Its error's verdict decides: again (default), or
// convergo.Permanent for the dead letters at once, or convergo.Unreachable when its own database cannot be reached. It may be
// run again for one event, when the database has aborted the transaction: it keeps nothing outside of tx.
type Handler[TX any] func(ctx context.Context, tx TX, event convergo.Event) error

// Marked is the answer of Store.Mark.
type Marked uint8

// The answers of Store.Mark.
const (
	Fresh     Marked = iota // first time: the row is inserted, run the handler
	Duplicate               // done before with the same payload: nothing to do
	Mismatch                // the key was used before with another payload: a producer's fault, for a person
	Stale                   // not newer than the last applied version of its aggregate (only when asked to refuse those)
)

// Queued is a message kept in the consumer's own database: the head or the tail of a blocked aggregate's queue.
type Queued struct {
	Event     convergo.Event
	Position  int64 // order within the aggregate's queue
	Attempts  int   // failed attempts so far
	LastError string
}

// MaxQueueBytes is how much of payloads Parking.Queue reads; a single one may be larger.
const MaxQueueBytes = 8 << 20

// Failure is a failed attempt at a message.
type Failure struct {
	Event    convergo.Event
	Attempts int // including this one
	Error    string
	Place    string // where it failed, for example "handler"
	Next     time.Time
}

// Store is what applying needs of a database. All methods with a tx act inside it.
type Store[TX any] interface {
	// Update runs fn in one write transaction and commits it when fn returns nil. Durable on return. When the transaction
	// cannot begin the error is convergo.Unreachable: it says nothing about fn, and no message is blamed for it.
	//
	// A database that locks rows may abort the transaction to end a deadlock, or ask for it to be repeated. Update then rolls
	// back and runs fn again from its start, a few times at most and with a pause between: fn resets what it collects outside
	// of tx. When the tries are used up the error is convergo.Unreachable and wraps convergo.ErrContended: no message is to blame. Functions that an aborted run
	// gave to convergo.AfterCommit never run. Whatever fn made of the error, that does not matter: once the database has
	// aborted the transaction, or a savepoint in it, for such a reason, every further call with tx fails and fn is run again,
	// also when it returns nil or an error of its own. Otherwise a handler that met a deadlock would spend an attempt.
	Update(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	// Nested runs fn inside a savepoint of tx: when fn fails or panics only what it wrote is undone, and tx stays usable.
	Nested(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error
	// Mark inserts the dedup row of (consumer, event.Key), before any work, so that a concurrent duplicate waits for this
	// transaction. With refuseStale it also answers Stale for a version not above the last one marked for its aggregate; so
	// does the instance that comes second when two mark versions of one aggregate at once. Nothing of a key is kept but its
	// digest: Once marks under keys that no event can have.
	Mark(ctx context.Context, tx TX, consumer string, event convergo.Event, refuseStale bool, now time.Time) (Marked, error)
}

// Parking is what keeping failed messages needs of a database. All methods with a tx act inside it.
type Parking[TX any] interface {
	// Blocked tells which of the aggregates have a queue at this consumer. Until tx ends nobody else may drain those queues or
	// append to them: a database that locks rows locks theirs for update, in one order.
	Blocked(ctx context.Context, tx TX, consumer string, aggregates []convergo.Aggregate) (map[convergo.Aggregate]bool, error)
	// Enqueue appends an event to its aggregate's queue; once per consumer and message. A message in a queue is known by its
	// key, aggregate and payload together, here and below: one that has another's key is not taken for it.
	Enqueue(ctx context.Context, tx TX, consumer string, event convergo.Event, now time.Time) error
	// Fail records a failed attempt: the event is (or becomes) the head of its aggregate's queue, due again at f.Next. One that
	// waits in the queue already keeps its place.
	Fail(ctx context.Context, tx TX, consumer string, f Failure, now time.Time) error
	// Due returns up to limit aggregates whose queue is due, and when the next one will be due (zero: none waits). It locks
	// nothing and may be out of date before it returns: what is to be done is read with Queue.
	Due(ctx context.Context, consumer string, limit int, now time.Time) ([]convergo.Aggregate, time.Time, error)
	// Queue takes the aggregate's queue until tx ends, as Blocked does, and then reads up to most of its messages, head
	// first, as the last transaction that had it left them: fewer when their payloads are more than MaxQueueBytes together; only
	// the head when that has failed before; none when the queue is gone, held for a person or not due at now. While another
	// transaction has it, Queue waits, or answers none.
	Queue(ctx context.Context, tx TX, consumer string, aggregate convergo.Aggregate, most int, now time.Time) ([]Queued, error)
	// Dequeue removes a message that was applied; the queue's next message is due at once, an empty queue is gone.
	Dequeue(ctx context.Context, tx TX, consumer string, event convergo.Event, now time.Time) error
	// Bury moves the event to the dead letters and marks its key as done with. With hold the aggregate's queue waits for a
	// person, even if it is empty; otherwise it goes on. When the key was marked meanwhile for the same payload (another
	// instance has applied the message, or buried it) buried is false and nothing is written: the caller takes the message out of
	// its queue. It asks by inserting the mark, so that of many who bury a message at once one does.
	Bury(ctx context.Context, tx TX, consumer string, f Failure, hold bool, now time.Time) (buried bool, err error)
}

// Notes is what a Parking may have besides: what the instances of a consumer tell one another through its database. Without it
// a message that kills its process is found only with sources that count deliveries, and an event of a type without a handler is
// ignored even if a newer instance has one. All methods act inside tx.
type Notes[TX any] interface {
	// Begin notes that work is about to begin at the message with that key, the first of a partition that is not done with, and
	// returns how often in a row that was noted: 1 when the partition's last note was of another key. Config.Redeliveries is
	// measured by it. part is a partition's name, of at most 300 bytes.
	Begin(ctx context.Context, tx TX, consumer, part string, key convergo.Key, now time.Time) (times int, err error)
	// Register notes that an instance of the consumer has handlers for the types, and runs at now.
	Register(ctx context.Context, tx TX, consumer string, types []string, now time.Time) error
	// Registered returns the types that were registered for the consumer at since or later.
	Registered(ctx context.Context, tx TX, consumer string, since time.Time) ([]string, error)
}

// Delivery is one message from a broker.
type Delivery struct {
	Event convergo.Event
	// Malformed is set when the message is not a valid event; Event then holds what could be read.
	Malformed error
	// Attempt counts deliveries by the broker, 1 for the first, 0 when it cannot tell.
	Attempt int
	// Partition names, where the broker cannot count the deliveries to processes that died, the ordered part of its events that
	// this one is of: whoever has it next begins with the first of its messages that is not acknowledged. At most 300 bytes. It
	// lets the inbox count itself. Empty: the broker counts, or has no order.
	Partition string
	// Ack tells the broker that the message is done with. A failed Ack leads to a redelivery, nothing worse.
	Ack func(ctx context.Context) error
	// Return hands the message back, to be delivered again after the delay.
	Return func(ctx context.Context, delay time.Duration) error
}

// Source is what the inbox needs of a broker: one durable named subscription. It may deliver events of other types than were asked
// for, of the same topics: what no instance of the consumer has a handler for is acknowledged and ignored.
type Source interface {
	// Fetch returns between 1 and most deliveries, in the broker's order. It waits until there is one or ctx ends. Any
	// error is an outage; the consumer pauses and calls again.
	Fetch(ctx context.Context, most int) ([]Delivery, error)
}
