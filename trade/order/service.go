// Package order is the service that owns orders: it prices and places them, collects the answers of the services that hold
// something for them, moves them through their states and refunds them. It talks to its neighbours through events only.
package order

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Name of the service, its database, its topic and its consumer.
const Name = "order"

// Config of the order service. The zero value of each field but TokenSecret is its default.
type Config struct {
	// PaymentWindow is how long an order may stay unpaid before it is closed; default 30 min.
	PaymentWindow time.Duration
	// TokenTTL is how long a client token may be used; default 30 min.
	TokenTTL time.Duration
	// SessionTTL is how long a user's session is valid when the operator does not say; default 12 h.
	SessionTTL time.Duration
	// TokenSecret signs client tokens and sessions; at least trade.MinSecret bytes. Required. All instances share it, and
	// trade.AuthConfig has the same.
	TokenSecret []byte
	// Peers are the base URLs of the other services by name, for the story of an order; default none.
	Peers map[string]string
	// PeerKey is the operator key with which the peers are asked.
	PeerKey string
	// Client asks the peers; default one that gives up after 2 s.
	Client *http.Client
	// MaxWait bounds GET /orders/{no}?wait=…; default 30 s.
	MaxWait time.Duration
	// MaxRefunds is how many refunds one order may have, failed ones included; default 500. Beyond it only all that is left
	// can be asked back. It bounds what listing and summing the refunds of an order costs.
	MaxRefunds int
	// SweepBatch is how many overdue orders one Sweep closes at most; default 500.
	SweepBatch int
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.PaymentWindow, 30 * time.Minute}, {&c.TokenTTL, 30 * time.Minute}, {&c.SessionTTL, 12 * time.Hour}, {&c.MaxWait, 30 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.SweepBatch <= 0 {
		c.SweepBatch = 500
	}
	if c.MaxRefunds <= 0 {
		c.MaxRefunds = 500
	}
	if c.Client == nil {
		c.Client = &http.Client{Timeout: 2 * time.Second}
	}
	return c
}

// Service is the order service; it is a trade.Service.
type Service struct {
	deps    trade.Deps
	cfg     Config
	sql     sqltext.Set
	changes *changes
}

var _ trade.Service = (*Service)(nil)

// New makes the service. It fails when the secret is missing.
func New(deps trade.Deps, cfg Config) (*Service, error) {
	if len(cfg.TokenSecret) < trade.MinSecret {
		return nil, fmt.Errorf("order: session_secret (Config.TokenSecret) has %d bytes; give it at least %d", len(cfg.TokenSecret), trade.MinSecret)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	set, err := sqltext.Load(queryFile, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("order: %w", err)
	}
	return &Service{deps: deps, cfg: cfg.withDefaults(), sql: set, changes: newChanges()}, nil
}

// Name is "order".
func (s *Service) Name() string { return Name }

// Migrations are the service's own tables.
func (s *Service) Migrations() fs.FS { return Migrations() }

// Migrations are the service's own tables; the same without a Service.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes that the service answers.
func (s *Service) Prefixes() []string {
	return []string{"/orders", "/products", "/tokens", "/users", "/" + Name}
}

// Calls is empty: the order service makes none outside.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] { return nil }

// Routes registers the operations.
func (s *Service) Routes(api huma.API) {
	s.productRoutes(api)
	s.tokenRoutes(api)
	s.placeRoutes(api)
	s.viewRoutes(api)
	s.refundRoutes(api)
	s.storyRoutes(api)
	trade.RegisterStory(api, s.deps, Name)
}

// Handlers by event type.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.OrderTimeout:        s.onTimeout,
		trade.StockHeld:           s.onStockHeld,
		trade.StockRejected:       s.onRejected("out_of_stock"),
		trade.CouponLocked:        s.onCouponLocked,
		trade.CouponRejected:      s.onRejected("coupon"),
		trade.PointsLocked:        s.onPointsLocked,
		trade.PointsRejected:      s.onRejected("points"),
		trade.RiskApproved:        s.onRiskApproved,
		trade.RiskRejected:        s.onRejected("risk"),
		trade.PaymentSucceeded:    s.onPaymentSucceeded,
		trade.PaymentClosed:       s.onPaymentClosed,
		trade.PaymentRefunded:     s.onPaymentRefunded,
		trade.PaymentRefundFailed: s.onPaymentRefundFailed,
		trade.ShipmentDispatched:  s.onDispatched,
		trade.ShipmentDelivered:   s.onDelivered,
	}
}

// Sweep closes up to SweepBatch orders that are overdue and tells how many. It is the truth about timeouts: the delayed
// OrderTimeout event is only faster. Run it every few seconds; any number of instances may. Each order is closed in its
// own transaction, so one that fails holds up none of the others.
func (s *Service) Sweep(ctx context.Context) (closed int, err error) {
	var due []string
	now := s.deps.Now()
	err = s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		due, err = selectRows[string](ctx, tx, s.sql.Get("DueOrders"), convergo.Micros(now), s.cfg.SweepBatch)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sweep: read overdue orders: %w", err)
	}
	var failed []error
	for _, no := range due {
		var applied bool
		err := s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
			applied, err = s.close(ctx, tx, no, closeRequest{reason: "timeout", key: convergo.Key("sweep:" + no), actor: "sweep"})
			return err
		})
		switch {
		case err != nil:
			failed = append(failed, fmt.Errorf("sweep: close %s: %w", no, err))
		case applied:
			closed++
		}
	}
	return closed, errors.Join(failed...)
}
