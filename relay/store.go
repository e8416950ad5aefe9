// Package relay carries events out of a store and into a broker, in order per aggregate, at least once.
package relay

import (
	"context"
	"errors"
	"time"

	"github.com/convergo/convergo"
)

// ErrLeaseLost is wrapped by Store.Settle's error when a lease it needs no longer stands.
var ErrLeaseLost = errors.New("lease lost")

// Lease is the right to relay a lane. Token is new at each acquisition: a lease that was lost and taken again by the
// same relay is another lease.
type Lease struct {
	Lane  convergo.Lane
	Token int64
}

// LeaseRequest asks for lanes.
type LeaseRequest struct {
	Owner string  // unique per life of a relay, never reused
	Held  []Lease // leases to renew
	// Busy: the first Busy of Held have events in flight. They are renewed but never given up, also when that leaves the owner
	// with more than its share: another relay that took such a lane would send those events a second time.
	Busy int
	// RenewOnly: renew Held and do nothing else; take no lane and give none up. A relay that is about to stop asks so.
	RenewOnly bool
	Term      time.Duration // how long from now, by the database's clock
}

// Pending is one event to be sent, with what is known of earlier attempts.
type Pending struct {
	Seq int64 // position; order within the lane
	// Lane whose lease gives the right to it: the one that its row names, which is Event.Aggregate.Lane() unless another
	// program wrote the row wrongly.
	Lane     convergo.Lane
	Event    convergo.Event
	Attempts int // failed attempts so far
	// Held: an earlier event of the aggregate is not through yet. It must not be published; settle it as Aside.
	Held bool
	// Queued: it comes from the queue of a blocked aggregate and not from the lane itself.
	Queued bool
	// Malformed is set when the event is too large to be read, or its headers are no JSON object of texts; Event then holds what
	// could be read. It is never sent: the relay buries it when its turn has come.
	Malformed error
}

// Claim is what a relay may work on now.
type Claim struct {
	// Events in sequence order within each aggregate. Queued events come first; of a blocked aggregate whose head has
	// failed before, only the head.
	Events []Pending
	// NextDue is when the next delayed event or the next retry in these lanes becomes due; zero when there is none.
	NextDue time.Time
	// More: at least one lane had more pending events than perLane, or than there was room for.
	More bool
	// Unowned: some lane, no matter whose share it is, was given back, or its lease has ended by the database's clock. A claim for no
	// leases need not tell.
	Unowned bool
}

// Failure is a failed attempt.
type Failure struct {
	Pending
	Error string    // cut to 2,000 bytes by the store
	Next  time.Time // when to try again; ignored for the dead
	Place string    // where it failed, for example "relay.publish"
}

// Settlement is the outcome of a batch. An event stands in one list at most; one in no list stays as it is.
type Settlement struct {
	Leases []Lease // every lane that an event below belongs to
	Sent   []Pending
	Aside  []Pending // move from the lane to the queue of its blocked aggregate
	Failed []Failure // attempts+1, aggregate blocked until Next, the event heads its aggregate's queue
	// Dead events leave for the dead letters (attempts+1). With HoldAggregate the aggregate stays blocked until a person
	// redrives or discards the dead letter; otherwise its queue goes on at once.
	Dead          []Failure
	HoldAggregate bool
	Now           time.Time
}

// Store is what the relay needs of a database. Every method is bounded by ctx and is safe for concurrent use.
type Store interface {
	// Lease renews req.Held, then takes free or expired lanes, and those of the owner's that are not in Held (the answer
	// that told of them was lost), so that every live relay of this store ends up with its
	// fair share (the ceiling of Lanes / live relays), giving up renewed ones above it, the last of Held first and the Busy ones
	// never. It returns all leases now held, the renewed ones in the order of Held.
	// A renewed lease keeps its token; an acquired one has a new token, greater than every earlier token of the lane.
	// Expiry is set and judged by the database's clock. A lease in Held with a stale token is not renewed.
	Lease(ctx context.Context, req LeaseRequest) ([]Lease, error)
	// Release gives leases back at once, each only if its token still stands, and ends the owner's membership.
	Release(ctx context.Context, owner string, leases []Lease) error
	// Claim makes due delayed events pending and reads up to perLane events of each lane. It locks nothing: a lease is
	// the right to work, not a lock on rows. A relay whose lease has ended may still claim, beside the new owner: a delayed
	// event becomes pending once all the same, and those of an aggregate in the order of their times.
	//
	// Whatever the rows hold, events of MaxClaimBytes at most are read, or a single one, and one more while it is read. What
	// has no room is left for the next claims, never in the middle of a lane; every lane gets its turn. Another program's row that is
	// larger than an event may be is not read at all: see Pending.Malformed.
	Claim(ctx context.Context, leases []Lease, perLane int, now time.Time) (Claim, error)
	// Settle records the outcome in one transaction, all or nothing. It returns ErrLeaseLost, and changes nothing, when
	// any of s.Leases no longer stands (token or expiry). Durable on return. Settling the same again, after an answer that
	// was lost, changes nothing (an event that is not where the settlement would take it from is left alone).
	Settle(ctx context.Context, s Settlement) error
	// Hasten makes blocked aggregates of the leases' lanes due now that would be due later: those whose last failure's text begins
	// with mark, up to most of them, and tells how many. Those that are held for a person stay so. It says nothing about leases: an
	// aggregate that is due is tried by whoever has its lane.
	Hasten(ctx context.Context, leases []Lease, mark string, most int, now time.Time) (int, error)
}

// Publisher is what the relay needs of a broker.
type Publisher interface {
	// Publish sends the events and returns one error per event, nil when the broker has confirmed that it is stored and
	// routed. Of one aggregate's events, none is sent after an earlier one of the same call failed (it then fails too).
	// convergo.Permanent errors are the message's own fault, convergo.Unreachable ones the broker's; so is an answer that did not
	// come before ctx ended. convergo.Unavailable ones are the receiver's of this event alone: it waits, the others go on, and no
	// attempt beyond the first is spent. An error without a verdict spends an attempt; one that has a method RetryAt() time.Time is tried
	// again no sooner than that. An Unavailable one whose method Underway() bool tells true means that the receiver was sent the event and
	// has not answered yet: another Publish of it asks for the answer, and is due in a second.
	Publish(ctx context.Context, events []convergo.Event) []error
}

// Warning is a setting of a broker or database under which something confirmed can be lost.
type Warning struct {
	Setting string // its name, for example "min.insync.replicas of topic order"
	Value   string // as found
	Want    string // the value under which nothing is lost
	Loses   string // what can be lost as it is, in a sentence
}

// String is one line for a log or a terminal.
func (w Warning) String() string {
	return w.Setting + " is " + w.Value + ", want " + w.Want + ": " + w.Loses
}
