// Package payment is the service that owns the money side of an order: what is payable, the attempts to pay it, every
// verified notice of the channel as a receipt, what each receipt means, and the refunds. A receipt is recorded before it
// is understood, and money that fits nothing goes back by itself, once.
package payment

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Name of the service, its database, its topic and its consumer.
const Name = "payment"

// API is what the service asks of a payment channel. Its errors carry verdicts as channel.Client's do: convergo.Permanent
// is a definite refusal, anything else may have happened.
type API interface {
	Trade(ctx context.Context, tradeNo string) (channel.Trade, error)
	Close(ctx context.Context, tradeNo string) (channel.Closed, error)
	Refund(ctx context.Context, r channel.RefundRequest) (channel.Refund, error)
	RefundStatus(ctx context.Context, refundNo string) (channel.Refund, error)
}

// Channel is a payment channel that buyers may choose.
type Channel struct {
	Merchant   string           // our account; notices about another one are not our money
	Secrets    []channel.Secret // any of them verifies a notice; the first signs cashier links
	CashierURL string           // base of the cashier links, for example "https://channel.example"
	API        API
}

// Config of the payment service. Channels is required; the zero value of each other field is its default.
type Config struct {
	Channels map[string]Channel // by name: 1 to 32 characters of a-z 0-9 _ -
	// UnknownGrace is how long a payment for an unknown trade waits before it is judged again and, if need be, sent back;
	// default 30 s.
	UnknownGrace time.Duration
	// RefundAttempts is how many keys a refund is tried with when the channel refuses definitely; default 5.
	RefundAttempts int
	// RefundBackoff is the wait before the next key; default 1 s doubling up to 1 h.
	RefundBackoff convergo.Backoff
	// MaxIntents is how many attempts to pay one order may have; default 50.
	MaxIntents int
}

// MaxNotice is the longest notice that is read, in bytes.
const MaxNotice = 32 << 10

// Service is the payment service; it is a trade.Service.
type Service struct {
	deps                       trade.Deps
	cfg                        Config
	sql                        sqltext.Set
	verified, forged, unusable atomic.Int64
}

var _ trade.Service = (*Service)(nil)

// New makes the service. It fails when no channel is configured, or one of them incompletely.
func New(deps trade.Deps, cfg Config) (*Service, error) {
	if len(cfg.Channels) == 0 {
		return nil, errors.New("payment: Config.Channels is empty; configure at least one channel")
	}
	for name, c := range cfg.Channels {
		if !channelName(name) || c.Merchant == "" || len(c.Secrets) == 0 || c.Secrets[0].IsZero() || c.API == nil {
			return nil, fmt.Errorf("payment: channel %q needs a name of a-z 0-9 _ -, a merchant, a secret and an API", name)
		}
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.UnknownGrace <= 0 {
		cfg.UnknownGrace = 30 * time.Second
	}
	if cfg.RefundAttempts <= 0 {
		cfg.RefundAttempts = 5
	}
	if cfg.MaxIntents <= 0 {
		cfg.MaxIntents = 50
	}
	set, err := sqltext.Load(queryFile, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("payment: %w", err)
	}
	return &Service{deps: deps, cfg: cfg, sql: set}, nil
}

func channelName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

// Name is "payment".
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
func (s *Service) Prefixes() []string { return []string{"/payments", "/" + Name} }

// Open lists the path prefixes whose requests carry their own authentication and identity: they pass neither the session
// check nor the Idempotency-Key. A notice is signed, and its transaction makes it idempotent.
func (s *Service) Open() []string { return []string{"/payments/notify/"} }

// Routes registers the operations.
func (s *Service) Routes(api huma.API) {
	s.intentRoutes(api)
	s.notifyRoute(api)
	s.viewRoutes(api)
	s.personRoutes(api)
	trade.RegisterStory(api, s.deps, Name)
}

// Handlers by event type.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.OrderPayable:   s.onPayable,
		trade.OrderClosing:   s.onClosing,
		trade.RefundApproved: s.onRefundApproved,
	}
}

// Kinds of the outgoing calls.
const (
	callClose    = "channel.close"
	callRefund   = "channel.refund"
	callClassify = "payment.classify"
)

// Calls by kind.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] {
	return map[string]outside.Handler[convergo.Tx]{
		callClose:    {Do: s.closeTrade, Done: s.tradeClosed},
		callRefund:   {Do: s.sendRefund, Query: s.askRefund, Done: s.refundAnswered, Refused: s.refundRefused},
		callClassify: {Do: func(context.Context, outside.Claimed) ([]byte, error) { return nil, nil }, Done: s.graceOver},
	}
}

// Stats are counts since the start.
type Stats struct {
	Verified int64 // notices that were recorded, repeats included
	Forged   int64 // notices whose signature did not fit: answered 401, nothing written
	Unusable int64 // notices that were signed and could not be read: answered 400, nothing written
}

// Stats returns the counts.
func (s *Service) Stats() Stats {
	return Stats{Verified: s.verified.Load(), Forged: s.forged.Load(), Unusable: s.unusable.Load()}
}

// exec runs a named statement and returns how many rows it changed.
func (s *Service) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("payment: %s: %w", statement, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("payment: %s: %w", statement, err)
	}
	return n, nil
}

// find reads one row; it is nil when there is none.
func find[T any](ctx context.Context, tx convergo.Tx, s *Service, statement string, args ...any) (*T, error) {
	var row T
	err := sqlscan.Get(ctx, tx, &row, s.sql.Get(statement), args...)
	if sqlscan.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("payment: %s: %w", statement, err)
	}
	return &row, nil
}

// list reads all rows.
func list[T any](ctx context.Context, tx convergo.Tx, s *Service, statement string, args ...any) ([]T, error) {
	rows := []T{}
	if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get(statement), args...); err != nil {
		return nil, fmt.Errorf("payment: %s: %w", statement, err)
	}
	return rows, nil
}

// emit writes an event into tx. Its key is the fact's own, so a second telling is an error that rolls the second back.
func (s *Service) emit(
	ctx context.Context, tx convergo.Tx, eventType, key, aggregate string, version int64, payload any,
) error {
	event, err := trade.NewEvent(eventType, convergo.Key(key), aggregate, version, payload)
	if err != nil {
		return err
	}
	return s.deps.Outbox.Add(ctx, tx, event)
}

func (s *Service) now() time.Time { return s.deps.Now() }

// clip cuts a reason to the column.
func clip(text string) string {
	const most = 500
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not inside of a character
		cut--
	}
	return text[:cut]
}
