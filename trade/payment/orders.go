package payment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

// onPayable opens the order for payment. When its closing came first there is a tombstone, and nothing is opened.
func (s *Service) onPayable(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.Payable](e)
	if err != nil {
		return err
	}
	err = errors.Join(trade.CheckOrderNo(p.OrderNo), trade.CheckCurrency(p.Currency), trade.CheckMinor(p.Amount))
	if err != nil || p.Amount == 0 {
		return convergo.Permanent(fmt.Errorf("%s %s: amount %d: %w", e.Type, e.Key, p.Amount, errors.Join(err, convergo.ErrInvalid)))
	}
	_, err = s.insertOrder(ctx, tx, e, p, Open)
	return err
}

// insertOrder writes the row and the beginning of its history; fresh is false, and nothing is written, when the row is there.
func (s *Service) insertOrder(
	ctx context.Context, tx convergo.Tx, e convergo.Event, p trade.Payable, state machine.State,
) (fresh bool, err error) {
	at := s.now()
	n, err := s.exec(ctx, tx, "InsertOrder", p.OrderNo, p.UserID, p.Currency, p.Amount, string(state),
		convergo.Micros(p.ExpiresAt), convergo.Micros(at), convergo.Micros(at))
	if err != nil || n == 0 {
		return false, err
	}
	return true, Orders().Begin(ctx, tx, machine.Request{ID: p.OrderNo, Cause: string(e.Key), Key: e.Key, Actor: Name, At: at}, state)
}

// onClosing makes sure that no money can come any more: every open intent is closed at the channel, and only then the
// order is closed. A payment that the channel already has takes the order to PAID instead.
func (s *Service) onClosing(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	c, err := trade.Decode[trade.Closing](e)
	if err != nil {
		return err
	}
	if err := trade.CheckOrderNo(c.OrderNo); err != nil {
		return convergo.Permanent(err)
	}
	order, err := find[orderRow](ctx, tx, s, "FindOrder", c.OrderNo)
	if err != nil {
		return err
	}
	if order == nil {
		// It was never payable, or its OrderPayable is still on its way and will find this tombstone; or another process wrote the
		// row after our look and has committed by now: that row is closed like any other.
		tombstone, err := s.insertOrder(ctx, tx, e, trade.Payable{OrderNo: c.OrderNo}, Closed)
		if err != nil {
			return err
		}
		if tombstone {
			return s.emit(ctx, tx, trade.PaymentClosed, "PaymentClosed:"+c.OrderNo, c.OrderNo, 1,
				trade.Answer{OrderNo: c.OrderNo, Reason: c.Reason})
		}
	}
	moved, err := Orders().Apply(ctx, tx, machine.Request{
		ID: c.OrderNo, Move: "closing", Cause: c.Reason, Key: e.Key, Actor: Name, At: s.now(),
	})
	if err != nil || moved.Answer != machine.Applied {
		return err // paid or closed meanwhile: that event has told it
	}
	if err := s.closeIntents(ctx, tx, c.OrderNo); err != nil {
		return err
	}
	return s.closeIfDone(ctx, tx, c.OrderNo, e.Key)
}

// closeIntents has every open attempt to pay closed at the channel; once each, by the call's key.
func (s *Service) closeIntents(ctx context.Context, tx convergo.Tx, orderNo string) error {
	intents, err := list[intentRow](ctx, tx, s, "IntentsOfOrder", orderNo)
	if err != nil {
		return err
	}
	for _, i := range intents {
		if i.State != Open {
			continue
		}
		call := outside.Call{Kind: callClose, Key: convergo.Key("CLOSE:" + i.TradeNo)}
		if err := s.schedule(ctx, tx, call, closeCall{i.Channel, i.TradeNo, orderNo}); err != nil {
			return err
		}
	}
	return nil
}

// closeIfDone closes a CLOSING order that has no open intent left.
func (s *Service) closeIfDone(ctx context.Context, tx convergo.Tx, orderNo string, key convergo.Key) error {
	at := s.now()
	if _, err := s.exec(ctx, tx, "LockOrder", convergo.Micros(at), orderNo); err != nil {
		return err
	}
	order, err := find[orderRow](ctx, tx, s, "FindOrder", orderNo)
	if err != nil || order == nil || order.State != Closing {
		return err
	}
	var open int64
	if err := tx.QueryRowContext(ctx, s.sql.Get("CountOpenIntents"), orderNo).Scan(&open); err != nil {
		return fmt.Errorf("payment: CountOpenIntents: %w", err)
	}
	if open > 0 {
		return nil
	}
	moved, err := Orders().Apply(ctx, tx, machine.Request{ID: orderNo, Move: "closed", Cause: string(key), Key: key, Actor: Name, At: at})
	if err != nil || moved.Answer != machine.Applied {
		return err
	}
	return s.emit(ctx, tx, trade.PaymentClosed, "PaymentClosed:"+orderNo, orderNo, moved.Version,
		trade.Answer{OrderNo: orderNo, UserID: order.UserID})
}

// closeCall is the payload of channel.close.
type closeCall struct {
	Channel string `json:"channel"`
	TradeNo string `json:"trade_no"`
	OrderNo string `json:"order_no"`
}

// closeTrade asks the channel for the trade and closes it. "Not found" is no proof that no money will come, because the
// buyer may have the cashier page open; a successful close is. Whatever fails is tried again for as long as it takes: a
// definite refusal to close leaves open whether money can come, so it must not end the call, and its verdict is dropped.
func (s *Service) closeTrade(ctx context.Context, c outside.Claimed) ([]byte, error) {
	p, api, err := closePayload(s, c)
	if err != nil {
		return nil, err
	}
	t, err := api.Trade(ctx, p.TradeNo)
	if err == nil && t.TradeNo != p.TradeNo {
		return nil, fmt.Errorf("ask for trade %s: the channel answers about %q", p.TradeNo, t.TradeNo)
	}
	if err == nil && t.State == channel.TradePaid {
		return json.Marshal(channel.Closed{Paid: true, Trade: t})
	}
	if err != nil && !errors.Is(err, channel.ErrNotFound) {
		return nil, fmt.Errorf("ask for trade %s: %s", p.TradeNo, err.Error())
	}
	closed, err := api.Close(ctx, p.TradeNo)
	if err != nil {
		return nil, fmt.Errorf("close trade %s: %s", p.TradeNo, err.Error())
	}
	if closed.Trade.TradeNo != p.TradeNo {
		return nil, fmt.Errorf("close trade %s: the channel answers about %q", p.TradeNo, closed.Trade.TradeNo)
	}
	return json.Marshal(closed)
}

func closePayload(s *Service, c outside.Claimed) (closeCall, API, error) {
	var p closeCall
	if err := json.Unmarshal(c.Payload, &p); err != nil {
		return p, nil, fmt.Errorf("call %s: %w", c.Key, err)
	}
	ch, ok := s.cfg.Channels[p.Channel]
	if !ok {
		return p, nil, fmt.Errorf("call %s: channel %q is not configured any more; configure it again", c.Key, p.Channel)
	}
	return p, ch.API, nil
}

// tradeClosed: closed, the intent is; paid, the trade becomes a receipt like any other, and what it means is decided there.
func (s *Service) tradeClosed(ctx context.Context, tx convergo.Tx, c outside.Claimed, result []byte) error {
	p, _, err := closePayload(s, c)
	if err != nil {
		return err
	}
	var closed channel.Closed
	if err := json.Unmarshal(result, &closed); err != nil {
		return fmt.Errorf("call %s: result: %w", c.Key, err)
	}
	key := c.Key
	if closed.Paid {
		t := closed.Trade
		if !plain(t.Transaction, 100) || t.Amount <= 0 || len(t.Currency) != 3 || !plain(t.Merchant, 100) {
			return fmt.Errorf("call %s: the channel says that the trade is paid, but not by what", c.Key)
		}
		err := s.receive(ctx, tx, p.Channel, sourceQuery, "", channel.Notice{
			Type: channel.NoticePaid, Merchant: t.Merchant, TradeNo: p.TradeNo, Transaction: t.Transaction, Amount: t.Amount, Currency: t.Currency,
		}, result)
		if err != nil {
			return err
		}
		if t.Merchant == s.cfg.Channels[p.Channel].Merchant {
			return s.closeIfDone(ctx, tx, p.OrderNo, key) // the receipt may have been one that pays nothing
		}
		// The money went to somebody else's account: that receipt is a case and leaves the attempt alone. But the channel has
		// answered for this trade, and will take no other money for it, so the attempt is over.
	}
	if _, err := Intents().Apply(ctx, tx, machine.Request{ID: p.TradeNo, Move: "close", Key: key, Actor: "channel", At: s.now()}); err != nil {
		return err
	}
	return s.closeIfDone(ctx, tx, p.OrderNo, key)
}

// schedule writes an outgoing call with its payload as JSON. A key that is there already means that it was decided before.
func (s *Service) schedule(ctx context.Context, tx convergo.Tx, call outside.Call, payload any) (err error) {
	if call.Payload, err = json.Marshal(payload); err != nil {
		return fmt.Errorf("call %s: %w", call.Key, err)
	}
	_, err = s.deps.Calls.Schedule(ctx, tx, call)
	return err
}
