// Package idempotency gives HTTP POST requests an Idempotency-Key: the first request does the work, later ones with the
// same content get its answer again, and the claim, the work and the recorded answer commit together.
package idempotency

import (
	"context"
	"time"

	"github.com/convergo/convergo"
)

// Record is a finished request.
type Record struct {
	Scope       string          // who and where: principal + method + path, at most 255 bytes, compared as bytes
	Key         convergo.Key    // as the client sent it
	Fingerprint convergo.Digest // of what the client sent
	Status      int
	Header      map[string]string // of the answer: Content-Type, Location
	Body        []byte
	At          time.Time
}

// Store is what the middleware needs of a database.
type Store[TX any] interface {
	// Update runs fn in one write transaction and commits it when fn returns nil. Durable on return. It may run fn again from
	// its start when the database has aborted the transaction (see inbox.Store): fn resets what it collects outside of tx.
	Update(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	// Nested runs fn inside a savepoint of tx: when fn fails or panics only what it wrote is undone, and tx stays usable.
	Nested(ctx context.Context, tx TX, fn func(ctx context.Context, tx TX) error) error
	// FindRequest returns the record of (scope, key), or nil.
	FindRequest(ctx context.Context, tx TX, scope string, key convergo.Key) (*Record, error)
	// RecordRequest inserts r; fresh is false, and nothing is written, when (scope, key) is there already. When another
	// transaction is recording the same it waits until that one has ended.
	RecordRequest(ctx context.Context, tx TX, r Record) (fresh bool, err error)
}
