package payment

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

// Where a receipt came from.
const (
	sourceNotice = "notice"
	sourceQuery  = "query"
)

// receive records a verified notice and decides, in the same transaction, what it means. A repeat changes nothing but its
// count. The row is written first, whatever it will mean: a business disagreement is never a reason to lose a receipt or
// to make the channel repeat it.
func (s *Service) receive(ctx context.Context, tx convergo.Tx, channelName, source, noticeID string, n channel.Notice, body []byte) error {
	at := convergo.Micros(s.now())
	deliveries := 0
	if source == sourceNotice {
		deliveries = 1
	}
	digest := receiptDigest(channelName, n.Transaction, n.Type)
	fresh, err := s.exec(ctx, tx, "InsertReceipt", digest, channelName, n.Transaction, n.Type, n.TradeNo, n.Merchant, n.Amount, n.Currency,
		source, noticeID, string(body), deliveries, at, at)
	if err != nil {
		return err
	}
	if fresh == 0 {
		if source != sourceNotice {
			return nil
		}
		_, err := s.exec(ctx, tx, "RepeatReceipt", at, n.TradeNo, n.Merchant, n.Amount, n.Currency, digest)
		return err
	}
	r := receiptRow{
		Channel: channelName, Transaction: n.Transaction, Kind: n.Type, TradeNo: n.TradeNo, Merchant: n.Merchant,
		Amount: n.Amount, Currency: n.Currency, State: receiptRecorded,
	}
	return s.judge(ctx, tx, r, false)
}

// judge decides the receipt's class and does what follows from it. final: the grace period of an unknown trade is over.
func (s *Service) judge(ctx context.Context, tx convergo.Tx, r receiptRow, final bool) error {
	if r.Kind != channel.NoticePaid {
		// Another attempt failed, or a kind of notice that we do not know: nothing that moves an order forward.
		return s.set(ctx, tx, r, trade.Ignored, receiptIgnored, "a notice of type "+r.Kind+" pays nothing")
	}
	if merchant := s.cfg.Channels[r.Channel].Merchant; r.Merchant != merchant {
		return s.set(ctx, tx, r, trade.WrongMerchant, receiptHeld, "the money went to "+r.Merchant)
	}
	intent, err := find[intentRow](ctx, tx, s, "FindIntent", r.TradeNo)
	if err != nil {
		return err
	}
	if intent == nil || intent.TradeNo != r.TradeNo || intent.Channel != r.Channel { // a database may find "o-1-1" for "O-1-1"
		return s.unknown(ctx, tx, r, final)
	}
	order, err := find[orderRow](ctx, tx, s, "FindOrder", intent.OrderNo)
	if err != nil {
		return err
	}
	if order == nil {
		return s.unknown(ctx, tx, r, final)
	}
	r.OrderNo, r.UserID = order.OrderNo, order.UserID
	// Whatever the money is worth to us, the channel has taken it for this trade and will not take it twice.
	if _, err := Intents().Apply(ctx, tx, s.paidBy(r, r.TradeNo)); err != nil {
		return err
	}
	if r.Amount != order.Payable || r.Currency != order.Currency {
		why := fmt.Sprintf("paid %d %s, payable were %d %s", r.Amount, r.Currency, order.Payable, order.Currency)
		return s.giveBack(ctx, tx, r, trade.WrongAmount, why)
	}
	return s.apply(ctx, tx, r)
}

// apply pays the order with the receipt, or finds out why it cannot be paid with it. The machine's one conditional update
// decides between a payment and a close, and between two payments, of the same moment.
func (s *Service) apply(ctx context.Context, tx convergo.Tx, r receiptRow) error {
	moved, err := Orders().Apply(ctx, tx, s.paidBy(r, r.OrderNo))
	if err != nil {
		return err
	}
	switch {
	case moved.Answer == machine.Applied:
	case moved.State == Paid:
		return s.giveBack(ctx, tx, r, trade.Second, "the order is paid by "+moved.Cause)
	default:
		return s.giveBack(ctx, tx, r, trade.Late, "the order was "+string(moved.State))
	}
	if _, err := s.exec(ctx, tx, "SetPaid", r.Amount, r.Channel, r.Transaction, convergo.Micros(s.now()), r.OrderNo); err != nil {
		return err
	}
	r.Class = trade.Apply
	if err := s.set(ctx, tx, r, trade.Apply, receiptApplied, ""); err != nil {
		return err
	}
	// The buyer may have another cashier page open. Closing its trade spares him a second payment; if he has made one, the
	// close finds it.
	if err := s.closeIntents(ctx, tx, r.OrderNo); err != nil {
		return err
	}
	if err := s.tellRecorded(ctx, tx, r); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.PaymentSucceeded, "PaymentSucceeded:"+r.OrderNo, r.OrderNo, moved.Version, r.payload())
}

// paidBy asks for the move "pay" because of this very payment: another transaction is another cause.
func (s *Service) paidBy(r receiptRow, id string) machine.Request {
	return machine.Request{ID: id, Move: "pay", Cause: r.cause(), Key: convergo.Key(r.cause()), Actor: "channel", At: s.now()}
}

// unknown: the trade is none of ours, as far as we can see now. Perhaps we see it a little later (a database that was
// restored, a row that is not committed yet), so it waits once before the money goes back.
func (s *Service) unknown(ctx context.Context, tx convergo.Tx, r receiptRow, final bool) error {
	if final {
		return s.giveBack(ctx, tx, r, trade.UnknownOrder, "no such trade of ours, also after the grace period")
	}
	if err := s.set(ctx, tx, r, trade.UnknownOrder, receiptGrace, "no such trade of ours yet"); err != nil {
		return err
	}
	return s.schedule(ctx, tx, outside.Call{
		Kind: callClassify, Key: convergo.Key("CLASSIFY:" + r.cause()), NotBefore: s.now().Add(s.cfg.UnknownGrace),
	}, receiptRef{r.Channel, r.Transaction})
}

// receiptRef names a receipt in a call's payload.
type receiptRef struct {
	Channel     string `json:"channel"`
	Transaction string `json:"transaction"`
}

// graceOver judges the receipt again.
func (s *Service) graceOver(ctx context.Context, tx convergo.Tx, c outside.Claimed, _ []byte) error {
	var ref receiptRef
	if err := json.Unmarshal(c.Payload, &ref); err != nil {
		return fmt.Errorf("call %s: %w", c.Key, err)
	}
	r, err := find[receiptRow](ctx, tx, s, "FindReceipt", receiptDigest(ref.Channel, ref.Transaction, channel.NoticePaid))
	if err != nil || r == nil || r.State != receiptGrace {
		return err
	}
	return s.judge(ctx, tx, *r, true)
}

// giveBack classifies money that pays nothing and sends it back. The call's key is the payment's, so there is one refund of
// it however often we come here.
func (s *Service) giveBack(ctx context.Context, tx convergo.Tx, r receiptRow, class, why string) error {
	r.Class = class
	if err := s.set(ctx, tx, r, class, receiptRefunding, why); err != nil {
		return err
	}
	if err := s.tellRecorded(ctx, tx, r); err != nil {
		return err
	}
	return s.scheduleRefund(ctx, tx, refundCall{
		Receipt: true, Number: "RR:" + r.cause(), Channel: r.Channel, Transaction: r.Transaction, Amount: r.Amount, Currency: r.Currency,
		Attempt: 1,
	})
}

// tellRecorded tells that money of ours has come, whatever it is for.
func (s *Service) tellRecorded(ctx context.Context, tx convergo.Tx, r receiptRow) error {
	return s.emit(ctx, tx, trade.ReceiptRecorded, "ReceiptRecorded:"+r.cause(), r.aggregate(), 0, r.payload())
}

// set stores the judgement. That the row is not in the state any more in which it was read means that somebody else has
// judged it in the same moment; then this attempt is undone as a whole.
func (s *Service) set(ctx context.Context, tx convergo.Tx, r receiptRow, class, state, reason string) error {
	n, err := s.exec(ctx, tx, "JudgeReceipt", class, state, r.OrderNo, r.UserID, clip(reason), convergo.Micros(s.now()), r.digest(), r.State)
	if err == nil && n != 1 {
		err = fmt.Errorf("payment: receipt %s was judged by somebody else at the same moment; try again", r.cause())
	}
	return err
}
