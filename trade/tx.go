package trade

import (
	"context"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
)

// TxOf is the transaction of the request's Idempotency-Key, in which a POST handler does all its work. It panics in a
// handler that is not behind idempotency.Middleware: a programming error.
func TxOf(ctx context.Context) convergo.Tx {
	tx, ok := idempotency.Tx[convergo.Tx](ctx)
	if !ok {
		panic("trade.TxOf: the handler does not run behind idempotency.Middleware")
	}
	return tx
}

// RequestKey is the Idempotency-Key of the request that a POST handler serves: the cause of what it does. Like TxOf it
// panics in a handler that is not behind idempotency.Middleware.
func RequestKey(ctx context.Context) convergo.Key {
	key, ok := idempotency.KeyOf(ctx)
	if !ok {
		panic("trade.RequestKey: the handler does not run behind idempotency.Middleware")
	}
	return key
}
