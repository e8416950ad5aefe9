package trade

import (
	"context"
	"io/fs"
	"log/slog"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
)

// DB is a service's own database.
type DB interface {
	// Update runs fn in one write transaction and commits it when fn returns nil; durable on return. fn may be grouped with
	// others into one commit, so it must not call Update again nor wait for anybody who does. A database that locks rows may
	// abort the transaction to end a deadlock: fn is then run again from its start, so it resets what it collects.
	Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	// View runs fn in a read-only transaction with one snapshot.
	View(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	// Nested runs fn inside a savepoint of tx: when fn fails only what it wrote is undone.
	Nested(ctx context.Context, tx convergo.Tx, fn func(ctx context.Context, tx convergo.Tx) error) error
	// Dialect is the form of SQL that the database wants.
	Dialect() sqltext.Dialect
}

// Deps is what every service is given.
type Deps struct {
	DB     DB
	Outbox *outbox.Outbox[convergo.Tx]
	Calls  *outside.Calls[convergo.Tx]
	Now    func() time.Time
	Log    *slog.Logger
}

// Service is one room of the platform as cmd/convergo wires it.
type Service interface {
	// Name is also the name of its database, its topic and its consumer: "order", "payment", …
	Name() string
	// Migrations are the goose migrations of its own tables.
	Migrations() fs.FS
	// Prefixes are the first path elements that it serves, for example "/orders".
	Prefixes() []string
	// Routes registers its operations. POST handlers run inside the transaction of their Idempotency-Key (TxOf).
	Routes(api huma.API)
	// Handlers by event type; TopicOf tells where each comes from.
	Handlers() map[string]inbox.Handler[convergo.Tx]
	// Calls by kind; the outgoing calls it makes.
	Calls() map[string]outside.Handler[convergo.Tx]
}
