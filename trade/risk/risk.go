// Package risk is the service that assesses orders before they can be paid: denied users, orders that are too large,
// users who order too often. Every decision is kept with its reason.
package risk

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

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
const Name = "risk"

// Names of the rules, as decisions tell them.
const (
	RuleDenied  = "denied_user"
	RuleAmount  = "max_amount"
	RuleTooMany = "orders_per_window"
	RuleNone    = "none" // approved
)

// Config of the rules. The zero value approves everything but denied users.
type Config struct {
	// MaxAmount is the largest order in minor units, by currency; a currency that is not named has no limit.
	MaxAmount map[string]int64
	// MaxOrders that one user may have approved within Window; default 0: no limit.
	MaxOrders int
	// Window of MaxOrders; default 1 h.
	Window time.Duration
}

// Service is the risk service; it is a trade.Service.
type Service struct {
	deps trade.Deps
	cfg  Config
	sql  sqltext.Set
}

var _ trade.Service = (*Service)(nil)

// New makes the service.
func New(deps trade.Deps, cfg Config) (*Service, error) {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if cfg.Window <= 0 {
		cfg.Window = time.Hour
	}
	set, err := sqltext.Load(queryFile, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("risk: %w", err)
	}
	return &Service{deps: deps, cfg: cfg, sql: set}, nil
}

// Name is "risk".
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

// Prefixes that the service answers; "/risk" also holds its part of an order's story.
func (s *Service) Prefixes() []string { return []string{"/" + Name} }

// Calls is empty: the risk service makes none outside.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] { return nil }

// Handlers by event type.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{trade.OrderCreated: s.onOrderCreated}
}

// Decision about an order.
type Decision struct {
	OrderNo   string    `json:"order_no" db:"order_no"`
	UserID    string    `json:"user_id" db:"user_id"`
	Approved  bool      `json:"approved" db:"approved"`
	Rule      string    `json:"rule" db:"rule_name"`
	Reason    string    `json:"reason,omitempty" db:"reason"`
	Amount    int64     `json:"amount" db:"amount"`
	Currency  string    `json:"currency" db:"currency"`
	DecidedUs int64     `json:"-" db:"decided_at"`
	DecidedAt time.Time `json:"decided_at" db:"-"`
}

// onOrderCreated decides once per order; the decision and its event commit together.
func (s *Service) onOrderCreated(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	o, err := trade.Decode[trade.OrderPlaced](e)
	if err != nil {
		return err
	}
	if _, err := s.exec(ctx, tx, "AddUser", o.UserID); err != nil {
		return err
	}
	if _, err := s.exec(ctx, tx, "LockUser", o.UserID); err != nil {
		return err
	}
	now := s.deps.Now()
	rule, reason, err := s.assess(ctx, tx, o, now)
	if err != nil {
		return err
	}
	approved, answer := 0, trade.RiskRejected
	if rule == RuleNone {
		approved, answer = 1, trade.RiskApproved
	}
	n, err := s.exec(ctx, tx, "InsertDecision", o.OrderNo, o.UserID, approved, rule, reason, o.GoodsTotal, o.Currency, convergo.Micros(now))
	if err != nil || n == 0 { // 0: decided before, by an event that told the same under another key
		return err
	}
	// The effect is part of the story that the customer may read, so it does not name the rule; the decision does.
	_, err = trade.RecordEffect(ctx, tx, s.deps.DB.Dialect(), trade.Effect{
		Key: convergo.Key("RISK:" + o.OrderNo), OrderNo: o.OrderNo, Kind: "risk.decide", Cause: e.Key, Detail: answer, At: now,
	})
	if err != nil {
		return err
	}
	told, err := trade.NewEvent(answer, convergo.Key(answer+":"+o.OrderNo), o.OrderNo, 1,
		trade.Answer{OrderNo: o.OrderNo, UserID: o.UserID, Reason: reason})
	if err != nil {
		return err
	}
	return s.deps.Outbox.Add(ctx, tx, told)
}

// assess names the first rule that refuses the order, or RuleNone. The reason is for the customer: it gives no limit away
// that helps to stay just below it.
func (s *Service) assess(ctx context.Context, tx convergo.Tx, o trade.OrderPlaced, now time.Time) (rule, reason string, err error) {
	var why string
	err = tx.QueryRowContext(ctx, s.sql.Get("FindDenied"), o.UserID).Scan(&why)
	switch {
	case err == nil:
		return RuleDenied, "the account may not order", nil
	case !errors.Is(err, sql.ErrNoRows):
		return "", "", fmt.Errorf("denied users: %w", err)
	}
	if most, limited := s.cfg.MaxAmount[o.Currency]; limited && o.GoodsTotal > most {
		return RuleAmount, "the order is too large", nil
	}
	if s.cfg.MaxOrders > 0 {
		var count int
		since := convergo.Micros(now.Add(-s.cfg.Window))
		if err := tx.QueryRowContext(ctx, s.sql.Get("CountApproved"), o.UserID, since).Scan(&count); err != nil {
			return "", "", fmt.Errorf("orders of %s: %w", o.UserID, err)
		}
		if count >= s.cfg.MaxOrders {
			return RuleTooMany, "too many orders in a short time", nil
		}
	}
	return RuleNone, "", nil
}

func (s *Service) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	return n, nil
}

type denyUser struct {
	User string `path:"id" maxLength:"64"`
	Body struct {
		Reason string `json:"reason,omitempty" doc:"for the shop's own records; up to 200 bytes"`
	}
}

type userOnly struct {
	User string `path:"id" maxLength:"64"`
}

type decisionAnswer struct{ Body Decision }

// Routes registers the operations, all of them the operator's.
func (s *Service) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "deny-user", Method: "PUT", Path: "/risk/denied-users/{id}", Tags: []string{Name}, DefaultStatus: 204,
		Summary: "Refuse a user's orders from now on",
	}, s.deny)
	huma.Register(api, huma.Operation{
		OperationID: "allow-user", Method: "DELETE", Path: "/risk/denied-users/{id}", Tags: []string{Name}, DefaultStatus: 204,
		Summary: "Accept a user's orders again",
	}, func(ctx context.Context, in *userOnly) (*struct{}, error) {
		if err := checkOperator(ctx, in.User); err != nil {
			return nil, err
		}
		return nil, s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
			_, err := s.exec(ctx, tx, "AllowUser", in.User)
			return err
		})
	})
	huma.Register(api, huma.Operation{
		OperationID: "get-risk-decision", Method: "GET", Path: "/risk/decisions/{order_no}", Tags: []string{Name},
		Summary: "What was decided about an order, and why",
	}, s.decision)
	trade.RegisterStory(api, s.deps, Name)
}

func checkOperator(ctx context.Context, user string) error {
	if err := trade.RequireOperator(ctx); err != nil {
		return err
	}
	if err := trade.CheckUserID(user); err != nil {
		return trade.Invalid("path.id", err.Error(), "use a user id")
	}
	return nil
}

func (s *Service) deny(ctx context.Context, in *denyUser) (*struct{}, error) {
	if err := checkOperator(ctx, in.User); err != nil {
		return nil, err
	}
	if len(in.Body.Reason) > 200 || strings.ContainsFunc(in.Body.Reason, unicode.IsControl) {
		return nil, trade.Invalid("body.reason", "the reason is longer than 200 bytes or has control characters", "send a shorter, plain text")
	}
	return nil, s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		now := convergo.Micros(s.deps.Now())
		n, err := s.exec(ctx, tx, "DenyUser", in.User, in.Body.Reason, now)
		if err == nil && n == 0 {
			_, err = s.exec(ctx, tx, "UpdateDenied", in.Body.Reason, now, in.User)
		}
		return err
	})
}

func (s *Service) decision(ctx context.Context, in *struct {
	OrderNo string `path:"order_no" maxLength:"64"`
}) (*decisionAnswer, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	var found []Decision
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return sqlscan.Select(ctx, tx, &found, s.sql.Get("FindDecision"), in.OrderNo)
	})
	if err != nil {
		return nil, fmt.Errorf("decision about %s: %w", in.OrderNo, err)
	}
	if len(found) == 0 {
		return nil, trade.NotFound("path.order_no", "nothing was decided about this order")
	}
	d := found[0]
	d.DecidedAt = convergo.FromMicros(d.DecidedUs)
	return &decisionAnswer{d}, nil
}
