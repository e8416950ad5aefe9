package convergo

import (
	"context"
	"database/sql"
)

// Tx is what the engine's SQL stores and a handler need of a transaction. *sql.Tx and *sqlx.Tx are, and so are the *sql.Tx inside
// a bun.Tx, the ConnPool of a gorm transaction, and the *sql.Tx that an ent client was given. Placeholders are '?' in the SQL that
// handlers pass to a Tx they were handed; a store whose database wants another form rewrites them.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// AfterCommit is offered by transactions that can run a function after a successful commit (and not after a rollback,
// nor after a rollback to a savepoint that the call was made in). It carries wake-ups, which are hints: a transaction
// that lacks it delays delivery to the next poll, nothing else.
type AfterCommit interface {
	AfterCommit(func())
}

// Probe is called at a named point of a flow, such as "relay.published" or "order.commit.before". Tests and drills use
// it to kill the process there. A nil Probe does nothing.
type Probe func(point string)

// At calls the probe when there is one.
func (p Probe) At(point string) {
	if p != nil {
		p(point)
	}
}
