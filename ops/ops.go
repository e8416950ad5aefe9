// Package ops is what operators see and do: dead letters of both sides, redriving and discarding them, replaying what was
// sent, the backlog, and the retention of old rows. It is pure: data types, errors and the contract of a store; the
// console, the command line and the HTTP API speak it, the stores obey it.
package ops

import (
	"context"
	"errors"
	"time"

	"github.com/convergo/convergo"
)

// Errors that a caller can tell apart with errors.Is.
var (
	// ErrNotFound: no dead event or dead letter has that id, or it is not open any more.
	ErrNotFound = errors.New("no open dead letter has this id")
	// ErrEarlierDead: an earlier event of the same aggregate is dead too; redrive or discard that one first, so that the
	// aggregate's order is kept.
	ErrEarlierDead = errors.New("an earlier one of the same aggregate is dead too: redrive or discard that one first")
	// ErrQueued: the dead letter has no key, and a message with the same payload waits in the consumer's queue.
	ErrQueued = errors.New("another message without a key waits in the consumer's queue: wait until that one is through")
)

// MaxPageBytes is how much of payloads one list of dead events or dead letters has; a single one may be larger.
const MaxPageBytes = 8 << 20

// DeadEvent is an event that the relay gave up sending.
type DeadEvent struct {
	ID int64 // of the event's row; what RedriveEvent and DiscardEvent take
	// Event is without a payload, headers or other texts that are larger than an event's may be: nobody reads those.
	Event convergo.Event
	// PayloadBytes is how long the payload is in the store.
	PayloadBytes int64
	Attempts     int
	Error        string
	Place        string // where it failed, for example "relay.publish"
	DiedAt       time.Time
	Held         bool // its aggregate waits for a person
}

// State of a consumer's dead letter.
type State string

// The states of a dead letter. An open one waits for a person; the others are kept on record.
const (
	Open      State = "OPEN"
	Redriven  State = "REDRIVEN"
	Discarded State = "DISCARDED"
)

// DeadLetter is a message that a consumer gave up applying.
type DeadLetter struct {
	ID       string
	Consumer string
	Event    convergo.Event // what could be read, when the message was malformed
	Attempts int
	Error    string
	Place    string // where it failed, for example "handler"
	DiedAt   time.Time
	Held     bool // its aggregate waits for a person
	State    State
	ClosedAt time.Time // zero while open
	ClosedBy string
	Reason   string
}

// Queue is a number of unfinished rows and since when the oldest of them is there; Since is zero when there is none.
type Queue struct {
	Count int64
	Since time.Time
}

// Backlog is everything unfinished in one store, counted in its raw tables.
type Backlog struct {
	Pending     Queue // events to be sent; Since: written
	DelayedDue  Queue // delayed events whose time has come; Since: due
	Delayed     Queue // delayed events whose time has not come; Since: written. Not a fault, so not part of Unfinished
	Waiting     Queue // events behind a failed one of their aggregate, itself included; Since: written
	Dead        Queue // events that wait for a person; Since: died
	InboxWait   Queue // messages in the queues of blocked aggregates; Since: enqueued
	InboxDead   Queue // open dead letters; Since: died
	CallsOpen   Queue // outgoing calls to be made or under way, also those not due yet; Since: added
	CallsFailed Queue // outgoing calls that were definitely refused; Since: refused. Not part of Unfinished
}

// Unfinished is how many rows keep the store from being converged, those that wait for a person included.
func (b Backlog) Unfinished() int64 {
	return b.Pending.Count + b.DelayedDue.Count + b.Waiting.Count + b.Dead.Count + b.InboxWait.Count + b.InboxDead.Count + b.CallsOpen.Count
}

// Outbox is the operators' side of an outbox.
type Outbox interface {
	// DeadEvents lists up to limit dead events with an id above after (0: from the start), by id; fewer when their payloads are
	// more than MaxPageBytes together. None is the end.
	DeadEvents(ctx context.Context, limit int, after int64) ([]DeadEvent, error)
	// RedriveEvent sends a dead event again: it goes back to the head of its aggregate's queue with no attempts, due at now.
	// by and reason are kept on record: see Trail. ErrNotFound; ErrEarlierDead.
	RedriveEvent(ctx context.Context, id int64, by, reason string, now time.Time) error
	// DiscardEvent gives a dead event up for good; its aggregate's queue goes on. It is kept on record, with by and reason, as
	// long as a sent one, and that it was done for good: see Trail. ErrNotFound.
	DiscardEvent(ctx context.Context, id int64, by, reason string, now time.Time) error
	// Replay makes events pending again that were written, or were to be delivered, at or after since and have been sent; in
	// the order of writing. It returns how many. Not atomic: on an error some may be pending. Programs replay too, so it is the
	// caller who records a person's: see Trail.
	Replay(ctx context.Context, since, now time.Time) (int, error)
}

// Inbox is the operators' side of an inbox.
type Inbox interface {
	// DeadLetters lists up to limit open dead letters of the consumer ("": of all), oldest first, after the one with the id
	// after ("": from the start); fewer when their payloads are more than MaxPageBytes together. None is the end.
	DeadLetters(ctx context.Context, consumer string, limit int, after string) ([]DeadLetter, error)
	// RedriveLetter applies a dead letter again: it goes back to the head of its aggregate's queue with no attempts, and its
	// dedup mark is removed in the same transaction. by and reason are kept on record: see Trail. ErrNotFound; ErrEarlierDead;
	// ErrQueued.
	RedriveLetter(ctx context.Context, id, by, reason string, now time.Time) error
	// DiscardLetter gives a dead letter up for good; its aggregate's queue goes on. by and reason are kept on record. ErrNotFound.
	DiscardLetter(ctx context.Context, id, by, reason string, now time.Time) error
}

// Keeper counts what is unfinished and removes what is finished and old. The purges remove up to most rows by primary key
// and return how many; nothing unfinished, dead or open is ever removed.
type Keeper interface {
	Backlog(ctx context.Context, now time.Time) (Backlog, error)
	// PurgeSent removes events written before the time that were sent or discarded.
	PurgeSent(ctx context.Context, before time.Time, most int) (int, error)
	// PurgeMarks removes dedup rows of messages marked before the time. That of an open dead letter stays.
	PurgeMarks(ctx context.Context, before time.Time, most int) (int, error)
	// PurgeRequests removes recorded answers of requests before the time.
	PurgeRequests(ctx context.Context, before time.Time, most int) (int, error)
	// PurgeCalls removes outgoing calls that were done or refused before the time.
	PurgeCalls(ctx context.Context, before time.Time, most int) (int, error)
}

// Store is all of it.
type Store interface {
	Outbox
	Inbox
	Keeper
	Trail
}
