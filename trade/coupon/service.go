// Package coupon locks a coupon when an order is created with its code, redeems it when the order is paid, and gives it back
// when the order is canceled before or refunded in full after.
//
// The limits count reservations (locked + redeemed), in one conditional statement each, with CHECKs behind them. A use is a
// row whose identity is business type, business id and customer; what an order does to a coupon it can do once, and it
// can give back only what it used itself.
package coupon

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
const Name = "coupon"

// bizOrder is the business type of a use by an order, the only one so far.
const bizOrder = "order"

// States of a use.
const (
	Locked   machine.State = "LOCKED"
	Rejected machine.State = "REJECTED" // the coupon could not be used; nothing is counted
	Redeemed machine.State = "REDEEMED"
	Released machine.State = "RELEASED" // given back before payment; also the tombstone of a cancellation that came first
	Returned machine.State = "RETURNED" // given back by a full refund
)

// Service is the coupon service. It is safe for concurrent use.
type Service struct {
	trade.Deps
	sql  sqltext.Set
	uses machine.Machine
}

var _ trade.Service = (*Service)(nil)

// New is the coupon service on its own database, whose migrations (Migrations and trade.Migrations) have been applied.
func New(deps trade.Deps) (*Service, error) {
	set, err := sqltext.Load(files, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("coupon: %w", err)
	}
	return &Service{Deps: deps, sql: set, uses: machine.Machine{
		Name: "coupon", Table: "coupon_use", ID: "use_key", State: "state", Version: "version",
		Initial: []machine.State{Locked, Rejected, Released},
		Moves: []machine.Move{
			{Name: "redeem", From: []machine.State{Locked}, To: Redeemed},
			{Name: "release", From: []machine.State{Locked}, To: Released},
			{Name: "return", From: []machine.State{Redeemed}, To: Returned},
		},
	}}, nil
}

// Name is "coupon".
func (s *Service) Name() string { return Name }

// Migrations of its tables.
func (s *Service) Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes are /coupons and /coupon.
func (s *Service) Prefixes() []string { return []string{"/coupons", "/" + Name} }

// Calls is empty: the coupon service calls nobody.
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

// emit adds an answer about a use to the outbox, keyed "{eventType}:{orderNo}:v{version}".
func (s *Service) emit(ctx context.Context, tx convergo.Tx, eventType string, version int64, a trade.Answer) error {
	e, err := trade.NewEvent(eventType, "", a.OrderNo, version, a)
	if err != nil {
		return err
	}
	return s.Outbox.Add(ctx, tx, e)
}
