// Package outside runs effects outside the database (a payment channel, a carrier, an SMS provider), where no
// transaction reaches: the call and its idempotency key are committed before it is made, a lease lets another instance
// take over, an ambiguous outcome is asked about before it is tried again with the same key, and the result is
// recorded together with what it means.
package outside

import (
	"context"
	"time"

	"github.com/convergo/convergo"
)

// Call is one outgoing call, a row that is written in the transaction that decided on it.
type Call struct {
	Kind    string       // names the handler, for example "channel.refund"
	Key     convergo.Key // unique per store; handed on to the other side as its idempotency key
	Group   string       // calls of one group are made one after another, in the order in which they were added; "" means none
	Payload []byte
	// NotBefore delays the call. Zero means at once.
	NotBefore time.Time
}

// Claimed is a call under a lease.
type Claimed struct {
	Call
	Token    int64 // new at each claim
	Attempts int   // failed or unfinished attempts so far
	// Ambiguous: an earlier attempt may have reached the other side (it timed out, or its owner died): ask first.
	Ambiguous bool
}

// Outcome of an attempt.
type Outcome struct {
	State  State
	Result []byte    // for Done
	Error  string    // for Waiting and Failed
	Next   time.Time // for Waiting
	// Ambiguous for Waiting: whether the attempt may have reached the other side.
	Ambiguous bool
}

// State of a call's row.
type State uint8

// The states.
const (
	Waiting State = iota // to be made, or to be made again
	Started              // under a lease
	Done                 // the other side did it; result recorded
	Failed               // the other side definitely refused, or a person gave it up
)

// Store is what outgoing calls need of a database.
type Store[TX any] interface {
	// Update runs fn in one write transaction and commits it when fn returns nil. Durable on return. It may run fn again from
	// its start when the database has aborted the transaction (see inbox.Store): fn resets what it collects outside of tx.
	Update(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	// Add writes the call's row in tx; fresh is false, and nothing is written, when the key is there already. It arranges a
	// wake-up through convergo.AfterCommit when tx offers it.
	//
	// Of two transactions that add to one group at the same time the second waits in Add until the first has ended: the order
	// of a group is the order of commits, and once a call is there none can come before it. A database that locks rows locks a
	// row of the group, in Add only, until tx ends. A claim then needs the lock of the call's own row alone: that nothing open
	// is older stays true once it is.
	Add(ctx context.Context, tx TX, call Call, now time.Time) (fresh bool, err error)
	// Claim takes up to limit due calls of the kinds: Waiting ones that are due and Started ones whose lease has expired
	// (Ambiguous then), of each group only the oldest that is neither Done nor Failed. However many claim at once, a call is
	// given to one of them, and of a group there is never more than one Started call. It commits the lease, durable on
	// return, and says when the next call is due (zero: none). Expiry is judged by the database's clock.
	Claim(ctx context.Context, kinds []string, lease time.Duration, limit int, now time.Time) ([]Claimed, time.Time, error)
	// Finish records the outcome in tx, only if the token still stands; held is false, and nothing is written, when not.
	// A Waiting outcome adds one to the attempts.
	Finish(ctx context.Context, tx TX, c Claimed, o Outcome, now time.Time) (held bool, err error)
}
