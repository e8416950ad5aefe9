package outside

import (
	"context"
)

// Handler makes the calls of one kind.
type Handler[TX any] struct {
	// Do makes the call. No transaction is open. c.Key is the idempotency key to hand on. Its error's verdict decides:
	// convergo.Permanent when the other side definitely did not and will not do it; anything else is ambiguous and leads
	// to Query and then Do again with the same key.
	Do func(ctx context.Context, c Claimed) (result []byte, err error)
	// Query asks the other side whether it knows c.Key. It is called before Do whenever c is ambiguous. known=false means
	// that it definitely has no trace of it. Nil when the other side deduplicates by the key and cannot be asked.
	Query func(ctx context.Context, c Claimed) (result []byte, known bool, err error)
	// Done acts on the result in the transaction that records it.
	Done func(ctx context.Context, tx TX, c Claimed, result []byte) error
	// Refused acts on a definite failure in the transaction that records it.
	Refused func(ctx context.Context, tx TX, c Claimed, cause error) error
}

// Calls schedules and makes outgoing calls.
type Calls[TX any] struct{ store Store[TX] }
