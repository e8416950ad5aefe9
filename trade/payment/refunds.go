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

// refundCall is the payload of channel.refund: of an approved refund, or of a receipt that pays nothing.
type refundCall struct {
	Receipt     bool   `json:"receipt"`
	Number      string `json:"number"` // refund number, or "RR:{channel}:{transaction}"
	Channel     string `json:"channel"`
	Transaction string `json:"transaction"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
	Attempt     int64  `json:"attempt"`
}

func (r refundCall) request() channel.RefundRequest {
	return channel.RefundRequest{
		RefundNo: r.attemptKey(), Transaction: r.Transaction, Amount: r.Amount, Currency: r.Currency,
	}
}

// receiptDigest is the key of the receipt that goes back.
func (r refundCall) receiptDigest() string {
	return receiptDigest(r.Channel, r.Transaction, channel.NoticePaid)
}

// onRefundApproved reserves the amount and schedules the refund. The reservation is one conditional update before the
// channel is called, so refunds that run together cannot exceed what was paid.
func (s *Service) onRefundApproved(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Refund](e)
	if err != nil {
		return err
	}
	if r.Cash == 0 {
		return nil // nothing was paid in money; the order service finishes it alone
	}
	if err := trade.CheckMinor(r.Cash); err != nil || !plain(r.RefundNo, 100) || trade.CheckOrderNo(r.OrderNo) != nil {
		return convergo.Permanent(fmt.Errorf("%s %s: refund %q of order %q over %d: %w",
			e.Type, e.Key, r.RefundNo, r.OrderNo, r.Cash, errors.Join(err, convergo.ErrInvalid)))
	}
	order, err := find[orderRow](ctx, tx, s, "FindOrder", r.OrderNo)
	if err != nil {
		return err
	}
	if order == nil {
		return fmt.Errorf("refund %s: order %s is not known here yet", r.RefundNo, r.OrderNo)
	}
	at := convergo.Micros(s.now())
	fresh, err := s.exec(ctx, tx, "InsertRefund", r.RefundNo, r.OrderNo, order.PaidChannel, order.PaidTransaction, r.Cash, r.Currency, at, at)
	if err != nil || fresh == 0 {
		return err // a repeat: the first one is on its way, or has been answered
	}
	begin := machine.Request{ID: r.RefundNo, Cause: string(e.Key), Key: e.Key, Actor: Name, At: s.now()}
	if err := Refunds().Begin(ctx, tx, begin, Reserved); err != nil {
		return err
	}
	row := refundRow{
		RefundNo: r.RefundNo, OrderNo: r.OrderNo, Channel: order.PaidChannel, Transaction: order.PaidTransaction,
		Amount: r.Cash, Currency: r.Currency, Attempt: 1,
	}
	reserved, err := s.exec(ctx, tx, "ReserveRefund", r.Cash, at, r.OrderNo, r.Currency, r.Cash)
	if err != nil {
		return err
	}
	if reserved == 0 {
		return s.refuseRefund(ctx, tx, row, e.Key)
	}
	return s.scheduleRefund(ctx, tx, refundCall{
		Number: row.RefundNo, Channel: row.Channel, Transaction: row.Transaction, Amount: row.Amount, Currency: row.Currency, Attempt: 1,
	})
}

// refuseRefund ends a refund for which nothing could be reserved; the channel is not asked.
func (s *Service) refuseRefund(ctx context.Context, tx convergo.Tx, row refundRow, key convergo.Key) error {
	order, err := find[orderRow](ctx, tx, s, "FindOrder", row.OrderNo)
	if err != nil {
		return err
	}
	switch {
	case order.State != Paid:
		row.Reason = "the order is not paid, it is " + string(order.State)
	case order.Currency != row.Currency:
		row.Reason = "the order was paid in " + order.Currency
	default:
		row.Reason = fmt.Sprintf("%d wanted, %d left", row.Amount, order.PaidAmount-order.RefundReserved-order.Refunded)
	}
	return s.failRefund(ctx, tx, row, order.Version, key)
}

// failRefund stores the failure, whose reservation is gone or never was, and tells it.
func (s *Service) failRefund(ctx context.Context, tx convergo.Tx, row refundRow, version int64, key convergo.Key) error {
	if _, err := s.exec(ctx, tx, "NoteRefund", row.Attempt, "", clip(row.Reason), convergo.Micros(s.now()), row.RefundNo); err != nil {
		return err
	}
	// The reason stays in the row: the history is part of the story that the buyer may read.
	moved, err := Refunds().Apply(ctx, tx, machine.Request{
		ID: row.RefundNo, Move: "fail", Cause: "refused", Key: key, Actor: Name, At: s.now(),
	})
	if err != nil {
		return err
	}
	if moved.Answer != machine.Applied {
		return fmt.Errorf("refund %s cannot fail: it is %s", row.RefundNo, moved.State)
	}
	return s.emit(ctx, tx, trade.PaymentRefundFailed, "PaymentRefundFailed:"+row.RefundNo, row.OrderNo, version, row.payload())
}

func (s *Service) scheduleRefund(ctx context.Context, tx convergo.Tx, r refundCall) error {
	call := outside.Call{Kind: callRefund, Key: convergo.Key(r.attemptKey())}
	if r.Attempt > 1 {
		call.NotBefore = s.now().Add(s.cfg.RefundBackoff.Delay(int(r.Attempt) - 1))
	}
	return s.schedule(ctx, tx, call, r)
}

// errRefundProcessing: the channel has accepted the refund and not finished it; ask again later.
var errRefundProcessing = errors.New("the channel is still working on the refund")

// sendRefund makes the refund with the call's key.
func (s *Service) sendRefund(ctx context.Context, c outside.Claimed) ([]byte, error) {
	r, api, err := refundPayload(s, c)
	if err != nil {
		return nil, err
	}
	if result, err := s.askEarlier(ctx, api, r); result != nil || err != nil {
		return result, err
	}
	done, err := api.Refund(ctx, r.request())
	if convergo.VerdictOf(err) == convergo.Outage && !errors.Is(err, channel.ErrAmbiguous) {
		return nil, outside.NotSent(err)
	}
	if err != nil {
		return nil, err
	}
	return refundResult(r.request(), done)
}

// askEarlier asks the channel about the keys of the attempts before, of which it said that it did not and would not make
// them. A request of such an attempt may have been so slow that it arrived after all: its refund is the one that counts, and
// a new key would be a second one. The result is nil when there is none.
func (s *Service) askEarlier(ctx context.Context, api API, r refundCall) (result []byte, err error) {
	for earlier := r; earlier.Attempt > 1; {
		earlier.Attempt--
		done, err := api.RefundStatus(ctx, earlier.attemptKey())
		switch {
		case errors.Is(err, channel.ErrNotFound) || (err == nil && done.State == channel.RefundFailed):
			continue
		case err != nil: // without its verdict: that a question is refused says nothing about the refund
			return nil, outside.NotSent(fmt.Errorf("ask about refund %s: %s", earlier.attemptKey(), err.Error()))
		}
		if result, err = refundResult(earlier.request(), done); err != nil {
			return nil, outside.NotSent(err)
		}
		return result, nil
	}
	return nil, nil
}

// askRefund asks what became of the call's key.
func (s *Service) askRefund(ctx context.Context, c outside.Claimed) (result []byte, known bool, err error) {
	r, api, err := refundPayload(s, c)
	if err != nil {
		return nil, false, err
	}
	done, err := api.RefundStatus(ctx, r.request().RefundNo)
	if errors.Is(err, channel.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	result, err = refundResult(r.request(), done)
	return result, err == nil, err
}

// refundResult is the channel's answer about one of r's attempts, which must be about what was asked: a number that the channel
// knows with another amount is not our refund.
func refundResult(asked channel.RefundRequest, r channel.Refund) ([]byte, error) {
	if r.RefundNo != asked.RefundNo || r.Amount != asked.Amount || r.Currency != asked.Currency {
		return nil, fmt.Errorf("refund %s over %d %s: the channel answers about %q over %d %q; ask the channel", asked.RefundNo, asked.Amount,
			asked.Currency, r.RefundNo, r.Amount, r.Currency)
	}
	if r.State != channel.RefundSucceeded && r.State != channel.RefundFailed {
		return nil, fmt.Errorf("refund %s is %q: %w", r.RefundNo, r.State, errRefundProcessing)
	}
	return json.Marshal(r)
}

func refundPayload(s *Service, c outside.Claimed) (refundCall, API, error) {
	var r refundCall
	if err := json.Unmarshal(c.Payload, &r); err != nil {
		return r, nil, fmt.Errorf("call %s: %w", c.Key, err)
	}
	ch, ok := s.cfg.Channels[r.Channel]
	if !ok {
		return r, nil, fmt.Errorf("call %s: channel %q is not configured any more; configure it again", c.Key, r.Channel)
	}
	return r, ch.API, nil
}

// refundAnswered records what the channel did, in the transaction that ends the call.
func (s *Service) refundAnswered(ctx context.Context, tx convergo.Tx, c outside.Claimed, result []byte) error {
	r, _, err := refundPayload(s, c)
	if err != nil {
		return err
	}
	var done channel.Refund
	if err := json.Unmarshal(result, &done); err != nil {
		return fmt.Errorf("call %s: result: %w", c.Key, err)
	}
	if done.State == channel.RefundFailed {
		return s.refundRefused(ctx, tx, c, errors.New("the channel accepted the refund and then failed it"))
	}
	if r.Receipt {
		return s.endReceiptRefund(ctx, tx, r, receiptRefunded, done.RefundID, "")
	}
	row, err := s.openRefund(ctx, tx, r.Number)
	if err != nil || row == nil {
		return err
	}
	row.ChannelRefundID = done.RefundID
	at := convergo.Micros(s.now())
	if _, err := s.exec(ctx, tx, "NoteRefund", r.Attempt, done.RefundID, "", at, row.RefundNo); err != nil {
		return err
	}
	moved, err := Refunds().Apply(ctx, tx, machine.Request{
		ID: row.RefundNo, Move: "refund", Cause: done.RefundID, Key: c.Key, Actor: "channel", At: s.now(),
	})
	if err != nil || moved.Answer != machine.Applied {
		return err
	}
	if _, err := s.exec(ctx, tx, "FinishRefund", row.Amount, row.Amount, at, row.OrderNo); err != nil {
		return err
	}
	version, err := s.versionOf(ctx, tx, row.OrderNo)
	if err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.PaymentRefunded, "PaymentRefunded:"+row.RefundNo, row.OrderNo, version, row.payload())
}

// refundRefused: the channel definitely did not do it and will not with this key. A new key is a new question, so up to a
// bound there is another attempt; after that it is a person's case.
func (s *Service) refundRefused(ctx context.Context, tx convergo.Tx, c outside.Claimed, cause error) error {
	r, _, err := refundPayload(s, c)
	if err != nil {
		return err
	}
	reason, at := clip(cause.Error()), convergo.Micros(s.now())
	again := int(r.Attempt) < s.cfg.RefundAttempts && !errors.Is(cause, outside.ErrGaveUp)
	if r.Receipt {
		if !again {
			s.deps.Log.Error("unapplied money could not be sent back", "channel", r.Channel, "transaction", r.Transaction, "attempts", r.Attempt)
			return s.endReceiptRefund(ctx, tx, r, receiptRefundFailed, "", reason)
		}
		n, err := s.exec(ctx, tx, "NextReceiptRefund", r.Attempt+1, reason, at, r.receiptDigest())
		if err != nil || n == 0 {
			return err
		}
		r.Attempt++
		return s.scheduleRefund(ctx, tx, r)
	}
	row, err := s.openRefund(ctx, tx, r.Number)
	if err != nil || row == nil {
		return err
	}
	if again {
		if _, err := s.exec(ctx, tx, "NoteRefund", r.Attempt+1, "", reason, at, row.RefundNo); err != nil {
			return err
		}
		r.Attempt++
		return s.scheduleRefund(ctx, tx, r)
	}
	s.deps.Log.Error("a refund failed for good", "refund_no", row.RefundNo, "order_no", row.OrderNo, "attempts", r.Attempt)
	if _, err := s.exec(ctx, tx, "ReleaseRefund", row.Amount, at, row.OrderNo); err != nil {
		return err
	}
	version, err := s.versionOf(ctx, tx, row.OrderNo)
	if err != nil {
		return err
	}
	row.Reason = reason
	return s.failRefund(ctx, tx, *row, version, c.Key)
}

// openRefund is the refund, or nil when it has ended already.
func (s *Service) openRefund(ctx context.Context, tx convergo.Tx, refundNo string) (*refundRow, error) {
	row, err := find[refundRow](ctx, tx, s, "FindRefund", refundNo)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, fmt.Errorf("refund %s has no row", refundNo)
	}
	if row.State != Reserved {
		return nil, nil
	}
	return row, nil
}

func (s *Service) versionOf(ctx context.Context, tx convergo.Tx, orderNo string) (int64, error) {
	order, err := find[orderRow](ctx, tx, s, "FindOrder", orderNo)
	if err != nil {
		return 0, err
	}
	if order == nil {
		return 0, fmt.Errorf("order %s has no payment row", orderNo)
	}
	return order.Version, nil
}

// endReceiptRefund stores the end of an unapplied receipt's refund and, when the money is back, tells it.
func (s *Service) endReceiptRefund(ctx context.Context, tx convergo.Tx, r refundCall, state, refundID, reason string) error {
	n, err := s.exec(ctx, tx, "EndReceiptRefund", state, refundID, reason, convergo.Micros(s.now()), r.receiptDigest())
	if err != nil || n == 0 || state != receiptRefunded {
		return err
	}
	row, err := find[receiptRow](ctx, tx, s, "FindReceipt", r.receiptDigest())
	if err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.ReceiptRefunded, "ReceiptRefunded:"+row.cause(), row.aggregate(), 0, row.payload())
}
