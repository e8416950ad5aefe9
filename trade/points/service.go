// Package points keeps the customers' loyalty points. An order may lock points when it is created; paying it spends what it
// used of them, frees the rest and grants new ones; canceling it frees the lock; refunding it gives spent points back and takes
// granted ones back in proportion to the cash.
//
// Points have no currency: one point is worth one minor unit of the order that spends it, and one point is granted per whole unit
// of the order's currency paid in cash, at least one per order. Every change is an entry whose key is its business
// identity, written in the transaction that changes the balance; the sum of a customer's entries is balance - debt. What was granted and
// spent again and must then be taken back becomes debt, which any later credit pays first; a balance is never negative. While there
// is a debt no point is available: what an order unlocks pays it.
package points

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
)

//go:embed migrations/*.sql queries.sql
var files embed.FS

// Name of the service, its database, its topic and its consumer.
const Name = "points"

// States of an order here.
const (
	Locked   machine.State = "LOCKED"
	Rejected machine.State = "REJECTED" // the customer has not enough points; nothing is locked
	Released machine.State = "RELEASED" // unlocked before payment; also the tombstone of a cancellation that came first
	Paid     machine.State = "PAID"     // spent and granted
)

// Kinds of entries; the key of each starts with its kind.
const (
	grantKind   = "GRANT"          // GRANT:{key}: by the operator
	orderPoint  = "ORDER_POINT"    // ORDER_POINT:{no}: for a paid order
	lockKind    = "POINT_LOCK"     // POINT_LOCK:{no}
	spendKind   = "POINT_SPEND"    // POINT_SPEND:{no}
	unlockKind  = "POINT_UNLOCK"   // POINT_UNLOCK:{no}: what was locked and not spent
	backKind    = "POINT_BACK"     // POINT_BACK:{refund_no}: spent points given back
	reverseKind = "POINT_REVERSAL" // POINT_REVERSAL:{refund_no}: granted points taken back
)

// Service is the points service. It is safe for concurrent use.
type Service struct {
	trade.Deps
	sql    sqltext.Set
	orders machine.Machine
}

var _ trade.Service = (*Service)(nil)

// New is the points service on its own database, whose migrations (Migrations and trade.Migrations) have been applied.
func New(deps trade.Deps) (*Service, error) {
	set, err := sqltext.Load(files, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("points: %w", err)
	}
	return &Service{Deps: deps, sql: set, orders: machine.Machine{
		Name: "points", Table: "points_order", ID: "order_no", State: "state", Version: "version",
		Initial: []machine.State{Locked, Rejected, Released, Paid},
		Moves: []machine.Move{
			{Name: "pay", From: []machine.State{Locked}, To: Paid},
			{Name: "release", From: []machine.State{Locked}, To: Released},
		},
	}}, nil
}

// Name is "points".
func (s *Service) Name() string { return Name }

// Migrations of its tables.
func (s *Service) Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes is /points.
func (s *Service) Prefixes() []string { return []string{"/" + Name} }

// Calls is empty: the points service calls nobody.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] { return nil }

// Handlers of the order's events.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.OrderCreated:  s.created,
		trade.OrderCanceled: s.canceled,
		trade.OrderPaid:     s.paid,
		trade.OrderRefunded: s.refunded,
	}
}

// change runs a named statement and tells how many rows it changed.
func (s *Service) change(ctx context.Context, tx convergo.Tx, name string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, s.sql.Get(name), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// emit adds an answer about an order to the outbox.
func (s *Service) emit(ctx context.Context, tx convergo.Tx, eventType string, key convergo.Key, version int64, a trade.Answer) error {
	e, err := trade.NewEvent(eventType, key, a.OrderNo, version, a)
	if err != nil {
		return err
	}
	return s.Outbox.Add(ctx, tx, e)
}
