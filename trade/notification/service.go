// Package notification is the service that tells customers what happened to their orders, through a provider outside that
// may accept a message and never say so. Each occasion is told once.
package notification

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

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
const Name = "notification"

// States of a message.
const (
	Pending = "PENDING"
	Sent    = "SENT"
	Failed  = "FAILED" // the provider refused it for good: a person's case
)

// Messenger is what the service asks of a provider. Errors carry verdicts: convergo.Permanent is a definite refusal.
type Messenger interface {
	// Send hands a message over; the same key again is the same message. It returns the provider's id.
	Send(ctx context.Context, m Message) (id string, err error)
	// Sent asks what became of a key; known is false when the provider has no trace of it.
	Sent(ctx context.Context, key string) (id string, known bool, err error)
}

// Message is what a customer is told.
type Message struct {
	Key  string `json:"key"`
	To   string `json:"to"` // the user's id
	Text string `json:"text"`
}

// Config of the notification service. Messenger is required.
type Config struct{ Messenger Messenger }

// Service is the notification service; it is a trade.Service.
type Service struct {
	deps trade.Deps
	cfg  Config
	sql  sqltext.Set
}

var _ trade.Service = (*Service)(nil)

// New makes the service. It fails when there is no messenger.
func New(deps trade.Deps, cfg Config) (*Service, error) {
	if cfg.Messenger == nil {
		return nil, errors.New("notification: Config.Messenger is missing")
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	set, err := sqltext.Load(queryFile, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("notification: %w", err)
	}
	return &Service{deps: deps, cfg: cfg, sql: set}, nil
}

// Name is "notification".
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
func (s *Service) Prefixes() []string { return []string{"/notifications", "/" + Name} }

// Handlers by event type.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.OrderPaid: func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
			p, err := trade.Decode[trade.Paid](e)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("Order %s is paid: %s.", p.OrderNo, trade.Money{Minor: p.Payable, Currency: p.Currency})
			return s.tell(ctx, tx, e, occasion{p.OrderNo, p.OrderNo, p.UserID, text})
		},
		trade.OrderShipped: func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
			m, err := trade.Decode[trade.Moved](e)
			if err != nil {
				return err
			}
			return s.tell(ctx, tx, e, occasion{m.OrderNo, m.OrderNo, m.UserID, fmt.Sprintf("Order %s is on its way.", m.OrderNo)})
		},
		trade.OrderCanceled: func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
			c, err := trade.Decode[trade.Canceled](e)
			if err != nil {
				return err
			}
			return s.tell(ctx, tx, e, occasion{c.OrderNo, c.OrderNo, c.UserID, fmt.Sprintf("Order %s is canceled (%s).", c.OrderNo, c.Reason)})
		},
		trade.OrderRefunded: func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
			r, err := trade.Decode[trade.Refund](e)
			if err != nil {
				return err
			}
			cash := trade.Money{Minor: r.Cash, Currency: r.Currency}
			text := fmt.Sprintf("%s of order %s went back to you (refund %s).", cash, r.OrderNo, r.RefundNo)
			return s.tell(ctx, tx, e, occasion{r.RefundNo, r.OrderNo, r.UserID, text})
		},
	}
}

// occasion is one thing to tell. number is what makes it unique among events of its type.
type occasion struct{ number, orderNo, userID, text string }

const callSend = "messenger.send"

// tell writes the message and the call that sends it.
func (s *Service) tell(ctx context.Context, tx convergo.Tx, e convergo.Event, o occasion) error {
	key := convergo.Key("NOTIFY:" + e.Type + ":" + o.number)
	if err := errors.Join(key.Validate(), trade.CheckOrderNo(o.orderNo), trade.CheckUserID(o.userID)); err != nil {
		return convergo.Permanent(fmt.Errorf("%s %s: %w", e.Type, e.Key, err))
	}
	at, text := s.deps.Now(), clip(o.text)
	n, err := s.exec(ctx, tx, "InsertNotification", string(key), o.orderNo, o.userID, e.Type, text, convergo.Micros(at), convergo.Micros(at))
	if err != nil || n == 0 {
		return err
	}
	_, err = trade.RecordEffect(ctx, tx, s.deps.DB.Dialect(), trade.Effect{
		Key: key, OrderNo: o.orderNo, Kind: "notification.send", Cause: e.Key, At: at,
	})
	if err != nil {
		return err
	}
	payload, err := json.Marshal(Message{Key: string(key), To: o.userID, Text: text})
	if err != nil {
		return fmt.Errorf("notification %s: %w", key, err)
	}
	_, err = s.deps.Calls.Schedule(ctx, tx, outside.Call{Kind: callSend, Key: key, Payload: payload})
	return err
}

// Calls by kind.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] {
	return map[string]outside.Handler[convergo.Tx]{callSend: {
		Do: func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			var m Message
			if err := json.Unmarshal(c.Payload, &m); err != nil {
				return nil, convergo.Permanent(fmt.Errorf("call %s: %w", c.Key, err))
			}
			id, err := s.cfg.Messenger.Send(ctx, m)
			return []byte(id), err
		},
		Query: func(ctx context.Context, c outside.Claimed) ([]byte, bool, error) {
			id, known, err := s.cfg.Messenger.Sent(ctx, string(c.Key))
			return []byte(id), known, err
		},
		Done: func(ctx context.Context, tx convergo.Tx, c outside.Claimed, id []byte) error {
			_, err := s.exec(ctx, tx, "EndNotification", Sent, string(id), "", convergo.Micros(s.deps.Now()), string(c.Key))
			return err
		},
		Refused: func(ctx context.Context, tx convergo.Tx, c outside.Claimed, cause error) error {
			s.deps.Log.Error("the messenger refused a message", "key", c.Key, "error", cause)
			_, err := s.exec(ctx, tx, "EndNotification", Failed, "", clip(cause.Error()), convergo.Micros(s.deps.Now()), string(c.Key))
			return err
		},
	}}
}

// Notification is a message and what became of it.
type Notification struct {
	Key       string    `json:"key"`
	Type      string    `json:"type"`
	Text      string    `json:"text"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty" doc:"why it FAILED, for the operator"`
	CreatedAt time.Time `json:"created_at"`
}

type listOutput struct {
	Body struct {
		Notifications []Notification `json:"notifications"`
	}
}

// Routes registers the operations.
func (s *Service) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "list-notifications", Method: http.MethodGet, Path: "/notifications/{order_no}", Tags: []string{Name},
		Summary: "What the customer was told about an order", Description: "Nothing, for an order that does not exist or is somebody else's.",
	}, s.list)
	trade.RegisterStory(api, s.deps, Name)
}

type row struct {
	Key        string `db:"message_key"`
	OrderNo    string `db:"order_no"`
	UserID     string `db:"user_id"`
	Type       string `db:"type"`
	Body       string `db:"body"`
	State      string `db:"state"`
	ProviderID string `db:"provider_id"`
	Reason     string `db:"reason"`
	CreatedAt  int64  `db:"created_at"`
	UpdatedAt  int64  `db:"updated_at"`
}

func (s *Service) list(ctx context.Context, in *struct {
	OrderNo string `path:"order_no" maxLength:"64"`
}) (*listOutput, error) {
	out := &listOutput{}
	out.Body.Notifications = []Notification{}
	operator := trade.RequireOperator(ctx) == nil
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var rows []row
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("NotificationsOfOrder"), in.OrderNo); err != nil {
			return fmt.Errorf("notifications of %s: %w", in.OrderNo, err)
		}
		for _, r := range rows {
			if !trade.Owns(ctx, r.UserID) {
				continue // like an order that does not exist: that it does is nobody else's business
			}
			if !operator { // what the provider said to the shop
				r.Reason = ""
			}
			out.Body.Notifications = append(out.Body.Notifications,
				Notification{r.Key, r.Type, r.Body, r.State, r.Reason, convergo.FromMicros(r.CreatedAt)})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Service) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("notification: %s: %w", statement, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("notification: %s: %w", statement, err)
	}
	return n, nil
}

// clip cuts a text to its column.
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
