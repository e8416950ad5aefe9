// Package outbox writes events into the caller's own transaction: commit, and the event exists; roll back, and it never did.
package outbox

import (
	"context"

	"github.com/convergo/convergo"
)

// Store is the part of a database that the outbox needs. TX is the transaction type that the caller works with, for
// example convergo.Tx (anything shaped like *sql.Tx) or *memory.Tx.
type Store[TX any] interface {
	// Insert writes the events, in order, as rows of tx and makes each pending, or delayed when DeliverAt is set. fresh[i] is
	// false when the outbox already has an event with events[i].Key: nothing is written for it and tx stays usable. Events
	// are valid (convergo.Event.Validate). Durable when tx commits. Any error means that tx must be rolled back.
	// Insert arranges a wake-up through convergo.AfterCommit when tx offers it.
	Insert(ctx context.Context, tx TX, events []convergo.Event) (fresh []bool, err error)
}
