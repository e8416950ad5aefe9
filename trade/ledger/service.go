// Package ledger keeps the books: an immutable double-entry ledger of what the other services say happened to money, coupons
// and points.
//
// A journal is a set of postings that balance per currency; its key is the business identity of what it tells, so that it is
// written once however often the event comes. Nothing is changed or deleted afterwards; a correction is a new journal that turns one
// around. There is no balance row: a balance is the sum of an account's postings, so that the many orders of a shop do not queue for
// the row of one account.
//
// Every journal carries the hash of the one before (chain.go). A chain has one end, and appending to it is a queue: on PostgreSQL and MySQL
// concurrent transactions wait for ledger_head once per commit; the inbox puts many journals into one commit, and on SQLite
// there is one writer anyway. In exchange anybody can see that no posting was changed, removed or slipped in between.
package ledger

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
)

//go:embed migrations/*.sql queries.sql
var files embed.FS

// Name of the service, its database, its topic and its consumer.
const Name = "ledger"

// Accounts, per currency. A channel's account is "channel:" and its name: what the channel owes the shop.
const (
	Suspense        = "suspense"         // money that is in and not yet an order's, or an order's and not yet in; 0 when all has converged
	Revenue         = "revenue"          // goods at list price
	CouponExpense   = "coupon_expense"   // what coupons cost
	PointsLiability = "points_liability" // what the shop owes for points that are not spent
	PointsExpense   = "points_expense"   // what granted points cost
)

// Service is the ledger. It is safe for concurrent use.
type Service struct {
	trade.Deps
	sql sqltext.Set
}

var _ trade.Service = (*Service)(nil)

// New is the ledger on its own database, whose migrations (Migrations and trade.Migrations) have been applied.
func New(deps trade.Deps) (*Service, error) {
	set, err := sqltext.Load(files, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return &Service{Deps: deps, sql: set}, nil
}

// Name is "ledger".
func (s *Service) Name() string { return Name }

// Migrations of its tables.
func (s *Service) Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes is /ledger.
func (s *Service) Prefixes() []string { return []string{"/" + Name} }

// Calls is empty: the ledger calls nobody.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] { return nil }

// Handlers of what is booked. No event waits for another: each is a journal of its own, and the ledger does not mind
// in which order they come.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.ReceiptRecorded: s.receiptRecorded,
		trade.ReceiptRefunded: s.receiptRefunded,
		trade.OrderPaid:       s.orderPaid,
		trade.OrderRefunded:   s.orderRefunded,
		trade.PaymentRefunded: s.paymentRefunded,
		trade.PointsGranted:   s.pointsGranted,
		trade.PointsReversed:  s.pointsReversed,
	}
}
