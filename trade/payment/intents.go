package payment

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

// Intent is one attempt to pay an order. The cashier link is where the buyer pays; nothing that his browser brings back
// changes an order, only the channel's signed notice does.
type Intent struct {
	TradeNo    string    `json:"trade_no"` // our number at the channel
	OrderNo    string    `json:"order_no"`
	Channel    string    `json:"channel"`
	State      string    `json:"state"`
	Amount     int64     `json:"amount"` // minor units
	Currency   string    `json:"currency"`
	CashierURL string    `json:"cashier_url,omitempty"` // while OPEN
	ExpiresAt  time.Time `json:"expires_at"`
	CreatedAt  time.Time `json:"created_at"`
}

func (s *Service) intentRoutes(api huma.API) {
	tags := []string{Name}
	huma.Register(api, huma.Operation{
		OperationID: "create-payment-intent", Method: http.MethodPost, Path: "/payments/intents", Tags: tags,
		Summary: "Start paying an order: a signed cashier link", DefaultStatus: http.StatusCreated,
	}, s.createIntent)
	huma.Register(api, huma.Operation{
		OperationID: "get-payment-intent", Method: http.MethodGet, Path: "/payments/intents/{trade_no}", Tags: tags,
		Summary: "An attempt to pay",
	}, s.getIntent)
}

type intentInput struct {
	Key  string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	Body struct {
		OrderNo string `json:"order_no" minLength:"1" maxLength:"64"`
		Channel string `json:"channel" minLength:"1" maxLength:"32" doc:"name of a configured payment channel"`
	}
}

type intentOutput struct{ Body Intent }

func (s *Service) createIntent(ctx context.Context, in *intentInput) (*intentOutput, error) {
	user, err := trade.RequireUser(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := s.cfg.Channels[in.Body.Channel]; !ok {
		return nil, trade.Invalid("body.channel", fmt.Sprintf("channel %.32q is not configured", in.Body.Channel),
			"use the name of a configured channel")
	}
	tx := trade.TxOf(ctx)
	order, err := find[orderRow](ctx, tx, s, "FindOrder", in.Body.OrderNo)
	if err != nil {
		return nil, err
	}
	if order == nil || order.UserID != user.ID { // of another user's order one does not even learn that it exists
		return nil, trade.NewProblem(http.StatusNotFound, "body.order_no", "no payable order of yours has this number",
			"check the number; if the order has just been placed, ask again when it is payable")
	}
	intent, err := s.openIntent(ctx, tx, order, in, user)
	if err != nil {
		return nil, err
	}
	return &intentOutput{s.intentView(*intent, *order)}, nil
}

// openIntent counts the intent in the statement that checks that the order is open. An order that is being closed either
// finds the intent in its list or has changed the state before, and then no row is counted here.
func (s *Service) openIntent(
	ctx context.Context, tx convergo.Tx, order *orderRow, in *intentInput, user trade.Principal,
) (*intentRow, error) {
	at := s.now()
	now := convergo.Micros(at)
	counted, err := s.exec(ctx, tx, "CountIntent", now, order.OrderNo, now, s.cfg.MaxIntents)
	if err != nil {
		return nil, err
	}
	current, err := find[orderRow](ctx, tx, s, "FindOrder", order.OrderNo)
	if err != nil {
		return nil, err
	}
	if counted == 0 {
		return nil, s.notOpen(*current, now)
	}
	intent := intentRow{
		TradeNo: fmt.Sprintf("%s-%d", order.OrderNo, current.Intents), OrderNo: order.OrderNo, Seq: current.Intents, Channel: in.Body.Channel,
		State: Open, CreatedAt: now,
	}
	if _, err := s.exec(ctx, tx, "InsertIntent", intent.TradeNo, intent.OrderNo, intent.Seq, intent.Channel, now, now); err != nil {
		return nil, err
	}
	key := convergo.Key("request:" + strings.Trim(in.Key, `"`))
	if key.Validate() != nil {
		key = convergo.Key("request:" + intent.TradeNo)
	}
	return &intent, Intents().Begin(ctx, tx, machine.Request{ID: intent.TradeNo, Key: key, Actor: user.String(), At: at}, Open)
}

func (s *Service) notOpen(order orderRow, now int64) error {
	switch {
	case order.State != Open:
		return trade.Conflict("body.order_no", "the order cannot be paid: its payment is "+string(order.State), "place a new order")
	case order.ExpiresAt <= now:
		since := convergo.FromMicros(order.ExpiresAt).Format(time.RFC3339)
		return trade.Conflict("body.order_no", "the time to pay the order is over since "+since, "place a new order")
	}
	return trade.Conflict("body.order_no", fmt.Sprintf("the order has %d attempts to pay already", order.Intents),
		"pay one of them, or place a new order")
}

func (s *Service) getIntent(ctx context.Context, in *struct {
	TradeNo string `path:"trade_no" maxLength:"100"`
}) (*intentOutput, error) {
	var out *intentOutput
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		intent, err := find[intentRow](ctx, tx, s, "FindIntent", in.TradeNo)
		if err != nil {
			return err
		}
		if intent == nil {
			return trade.NotFound("path.trade_no", "no such attempt to pay")
		}
		order, err := find[orderRow](ctx, tx, s, "FindOrder", intent.OrderNo)
		if err != nil {
			return err
		}
		if order == nil || !trade.Owns(ctx, order.UserID) {
			return trade.NotFound("path.trade_no", "no such attempt to pay")
		}
		out = &intentOutput{s.intentView(*intent, *order)}
		return nil
	})
	return out, err
}

func (s *Service) intentView(i intentRow, order orderRow) Intent {
	view := Intent{
		TradeNo: i.TradeNo, OrderNo: i.OrderNo, Channel: i.Channel, State: string(i.State), Amount: order.Payable, Currency: order.Currency,
		ExpiresAt: convergo.FromMicros(order.ExpiresAt), CreatedAt: convergo.FromMicros(i.CreatedAt),
	}
	if ch, ok := s.cfg.Channels[i.Channel]; ok && i.State == Open {
		view.CashierURL = channel.Link{
			Merchant: ch.Merchant, TradeNo: i.TradeNo, Amount: order.Payable, Currency: order.Currency, Expires: view.ExpiresAt,
		}.URL(ch.CashierURL, ch.Secrets[0])
	}
	return view
}
