// Package inventory keeps the stock: on hand, reserved and sold per SKU. It holds stock when an order is created, deducts it
// when the order is paid, releases it when the order is canceled and takes it back when the order is refunded.
//
// Every change is one conditional statement that checks and changes at once, a flow row whose key is the business identity
// of the change, and an effect, all in the transaction of the event. An order's lines are merged by SKU and its SKUs are taken
// in sorted order, so that two orders cannot wait for each other in a circle.
//
// # Hot SKUs
//
// A SKU is one row, and a row has one writer at a time until that writer commits. What keeps a hot SKU from stopping the shop:
// the inbox applies a batch of orders per commit, so the row is locked and synced once per batch and not once per order; an order of one
// SKU needs no savepoint of its own; the hot statement touches one row by primary key and nothing is read from that row before. On
// SQLite a service has one writer anyway, and a hot SKU costs the same as a hundred cold ones: BenchmarkOrders, durable, in batches of
// 100, on two cores that others were using too: 2,350 to 3,470 orders/s on one SKU, 1,850 to 3,060 on a hundred; about 300 one by one.
// On PostgreSQL and MySQL several processes that hold the same hot SKU wait for each other's commits: its limit is orders per batch ×
// commits per second of one process, which bucket rows would multiply; there are none yet.
package inventory

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
const Name = "inventory"

// States of an order here.
const (
	Held     machine.State = "HELD"
	Rejected machine.State = "REJECTED" // something was short or unknown; nothing is held
	Released machine.State = "RELEASED" // given back before payment; also the tombstone of a cancellation that came first
	Deducted machine.State = "DEDUCTED"
)

// Kinds of flow rows; the key of each starts with its kind.
const (
	receive = "RECEIVE"
	reserve = "RESERVE"
	release = "RELEASE"
	deduct  = "DEDUCT"
	restock = "RETURN"
)

// Service is the inventory. It is safe for concurrent use.
type Service struct {
	trade.Deps
	sql    sqltext.Set
	orders machine.Machine
}

var _ trade.Service = (*Service)(nil)

// New is the inventory on its own database, whose migrations (Migrations and trade.Migrations) have been applied.
func New(deps trade.Deps) (*Service, error) {
	set, err := sqltext.Load(files, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	return &Service{Deps: deps, sql: set, orders: machine.Machine{
		Name: "stock", Table: "stock_order", ID: "order_no", State: "state", Version: "version",
		Initial: []machine.State{Held, Rejected, Released},
		Moves: []machine.Move{
			{Name: "release", From: []machine.State{Held}, To: Released},
			{Name: "deduct", From: []machine.State{Held}, To: Deducted},
		},
	}}, nil
}

// Name is "inventory".
func (s *Service) Name() string { return Name }

// Migrations of its tables.
func (s *Service) Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes are /stock and /inventory.
func (s *Service) Prefixes() []string { return []string{"/stock", "/" + Name} }

// Calls is empty: the inventory calls nobody.
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
