package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/convergo/convergo/trade/simulate"
)

// buyer plays one order.
type buyer struct {
	shop   *Shop
	order  Order
	bearer string
	no     string
	opened int // intents
	tries  int // of opening one, that came too early
}

func (b *buyer) call(ctx context.Context, method, path, key string, body, into any) error {
	return b.shop.Client.do(ctx, request{method, path, b.bearer, key, body, into})
}

func (b *buyer) place(ctx context.Context) (PlacedOrder, error) {
	var placed PlacedOrder
	var token struct {
		Token string `json:"token"`
	}
	if err := b.call(ctx, http.MethodPost, "/tokens", "token:"+b.order.Ref, map[string]string{"scene": "order"}, &token); err != nil {
		return placed, fmt.Errorf("token: %w", err)
	}
	lines := make([]map[string]any, len(b.order.Lines))
	for i, l := range b.order.Lines {
		lines[i] = map[string]any{"sku": l.SKU, "quantity": l.Quantity}
		if l.Offer != "" {
			lines[i]["offer"] = l.Offer
		}
	}
	body := map[string]any{"client_token": token.Token, "currency": b.shop.Day.Currency, "lines": lines, "reference": b.order.Ref}
	if b.order.Coupon != "" {
		body["coupon_code"] = b.order.Coupon
	}
	if b.order.Points > 0 {
		body["points_to_spend"] = b.order.Points
	}
	if err := b.call(ctx, http.MethodPost, "/orders", "order:"+b.order.Ref, body, &placed); err != nil {
		return placed, fmt.Errorf("place: %w", err)
	}
	if want := b.order.Amount(); placed.GoodsTotal != want {
		return placed, fmt.Errorf("order %s costs %d, not %d", placed.OrderNo, placed.GoodsTotal, want)
	}
	return placed, nil
}

// wait polls the order until it got to where, or cannot get there any more.
func (b *buyer) wait(ctx context.Context, where string, there func(PlacedOrder) bool) (PlacedOrder, error) {
	for {
		var o PlacedOrder
		if err := b.call(ctx, http.MethodGet, "/orders/"+b.no+"?wait="+where+"&timeout=5s", "", nil, &o); err != nil {
			return o, err
		}
		if there(o) || o.closed() {
			return o, nil
		}
		if err := ctx.Err(); err != nil {
			return o, fmt.Errorf("order %s is still %s: %w", b.no, o.Status, err)
		}
	}
}

func (b *buyer) payable(ctx context.Context) (PlacedOrder, error) {
	return b.wait(ctx, "payable", func(o PlacedOrder) bool { return o.IsPayable })
}

func (b *buyer) paid(ctx context.Context) (PlacedOrder, error) {
	return b.wait(ctx, "paid", func(o PlacedOrder) bool { return o.Status != "CREATED" && o.Status != "CLOSING" })
}

func (b *buyer) completed(ctx context.Context) (PlacedOrder, error) {
	return b.wait(ctx, "completed", func(o PlacedOrder) bool { return o.Status == "COMPLETED" || o.Status == "REFUNDED" })
}

// link opens an intent. An order that closed meanwhile gives no link.
func (b *buyer) link(ctx context.Context) (string, error) {
	b.opened++
	var i intent
	body := map[string]string{"order_no": b.no, "channel": channelOfDrill}
	err := b.call(ctx, http.MethodPost, "/payments/intents", fmt.Sprintf("intent:%s:%d", b.order.Ref, b.opened), body, &i)
	var refused *Refused
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		// The payment service has not heard of the order yet: OrderPayable is on its way, the longer the more there is to do.
		b.tries++
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(min(10*time.Millisecond<<min(b.tries-1, 4), 100*time.Millisecond)):
			return b.link(ctx)
		}
	}
	if errors.As(err, &refused) && (refused.Status == http.StatusConflict || refused.Status == http.StatusGone) {
		return "", nil
	}
	if err == nil {
		b.shop.leaveLink(i.Link)
	}
	return i.Link, err
}

// pay pays a new intent. A trade that is closed by now takes no money, which is as it should be. fault is what is wrong with
// the payment; it counts only when it was made.
func (b *buyer) pay(ctx context.Context, o simulate.PayOptions, fault string) error {
	link, err := b.link(ctx)
	if err != nil || link == "" {
		return err
	}
	return b.payLink(ctx, link, o, fault)
}

func (b *buyer) payLink(ctx context.Context, link string, o simulate.PayOptions, fault string) error {
	_, err := b.shop.Cashier.Pay(ctx, link, o)
	if errors.Is(err, simulate.ErrNotPayable) {
		return nil
	}
	if err == nil && fault != "" {
		b.shop.fault(fault)
	}
	return err
}

// behave plays the rest; see Behaviour.
func (b *buyer) behave(ctx context.Context) (func(context.Context) error, error) {
	if b.order.Behaviour == Abandons {
		return nil, nil
	}
	o, err := b.payable(ctx)
	if err != nil || o.closed() {
		return nil, err
	}
	if o.Payable > 0 {
		if then, err := b.settle(ctx); err != nil || then != nil {
			return then, err
		}
	}
	if len(b.order.Return) > 0 || b.order.Behaviour == Returns {
		return nil, b.giveBack(ctx)
	}
	return nil, nil
}

// settle pays, or does what the buyer does instead.
func (b *buyer) settle(ctx context.Context) (func(context.Context) error, error) {
	switch b.order.Behaviour {
	case Cancels:
		return nil, b.cancel(ctx)
	case PaysLate:
		return b.payLate(ctx)
	case RacesTimeout:
		return b.raceTimeout(ctx)
	case PaysTwice:
		return nil, b.payTwice(ctx)
	case PaysWrong:
		return nil, errors.Join(b.pay(ctx, simulate.PayOptions{Amount: 1}, FaultWrongAmount), b.payRight(ctx))
	case PaysElsewhere:
		return nil, errors.Join(b.pay(ctx, simulate.PayOptions{Merchant: "somebody-else"}, FaultWrongMerchant), b.payRight(ctx))
	case Declined:
		decline := simulate.PayOptions{Decline: true}
		return nil, errors.Join(b.pay(ctx, decline, FaultDeclined), b.payRight(ctx), b.pay(ctx, decline, FaultDeclined))
	default:
		return nil, b.payRight(ctx)
	}
}

// payTwice: two cashier pages are open, both are paid, and the channel takes the money of both.
func (b *buyer) payTwice(ctx context.Context) error {
	first, err := b.link(ctx)
	if err != nil || first == "" {
		return err
	}
	second, err := b.link(ctx)
	if err != nil || second == "" {
		return errors.Join(err, b.payLink(ctx, first, simulate.PayOptions{}, ""))
	}
	return errors.Join(b.payLink(ctx, first, simulate.PayOptions{}, ""), b.payLink(ctx, second, simulate.PayOptions{Force: true}, FaultSecondPayment))
}

func (b *buyer) payRight(ctx context.Context) error { return b.pay(ctx, simulate.PayOptions{}, "") }

func (b *buyer) cancel(ctx context.Context) error {
	err := b.call(ctx, http.MethodPost, "/orders/"+b.no+"/cancel", "cancel:"+b.order.Ref, struct{}{}, nil)
	var refused *Refused
	if errors.As(err, &refused) && refused.Status == http.StatusConflict {
		return nil // it was paid or closed meanwhile
	}
	return err
}

// payLate: the cashier page is open, the order is cancelled, and the channel takes the money all the same.
func (b *buyer) payLate(ctx context.Context) (func(context.Context) error, error) {
	link, err := b.link(ctx)
	if err != nil || link == "" {
		return nil, err
	}
	if err := b.cancel(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if _, err := b.wait(ctx, "closed", func(o PlacedOrder) bool { return o.Status != "CREATED" && o.Status != "CLOSING" }); err != nil {
			return err
		}
		return b.payLink(ctx, link, simulate.PayOptions{Force: true}, FaultLatePayment)
	}, nil
}

// raceTimeout pays in the moment in which the order is closed.
func (b *buyer) raceTimeout(ctx context.Context) (func(context.Context) error, error) {
	link, err := b.link(ctx)
	if err != nil || link == "" {
		return nil, err
	}
	return func(ctx context.Context) error {
		for {
			var o PlacedOrder
			if err := b.call(ctx, http.MethodGet, "/orders/"+b.no, "", nil, &o); err != nil {
				return err
			}
			if o.Status != "CREATED" {
				return b.payLink(ctx, link, simulate.PayOptions{Force: true}, FaultRace)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}, nil
}

// giveBack waits for the payment and returns what the order says.
func (b *buyer) giveBack(ctx context.Context) error {
	o, err := b.paid(ctx)
	if err != nil || o.closed() {
		return err
	}
	body := map[string]any{"reason": "changed my mind"}
	if len(b.order.Return) > 0 {
		var lines []map[string]any
		for _, r := range b.order.Return {
			lines = append(lines, map[string]any{"line_no": r.Line + 1, "quantity": r.Quantity})
		}
		body["lines"] = lines
	}
	return b.call(ctx, http.MethodPost, "/orders/"+b.no+"/refunds", "refund:"+b.order.Ref, body, nil)
}
