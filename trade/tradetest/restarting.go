package tradetest

import (
	"context"
	"errors"

	"github.com/convergo/convergo"
)

// restarting is a database that runs every function of Update twice and rolls the first run back, as one that locks rows
// does when it has to end a deadlock. A service that keeps anything of the first run fails its own tests on it.
type restarting struct{ Store }

var errDeadlock = errors.New("the bench has aborted the transaction")

// Update runs fn, rolls back whatever it says, and runs it again.
func (r restarting) Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error {
	err := r.Store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		_ = fn(ctx, tx)
		return errDeadlock
	})
	if !errors.Is(err, errDeadlock) {
		return err // it did not begin
	}
	return r.Store.Update(ctx, fn)
}
