package trade

import (
	"context"

	"github.com/convergo/convergo"
)

// TxOf is the transaction of the request's Idempotency-Key, in which a POST handler does all its work. It panics in a
// handler that is not behind idempotency.Middleware: a programming error.
func TxOf(ctx context.Context) convergo.Tx {
	panic("trade.TxOf: waits for package idempotency")
}
