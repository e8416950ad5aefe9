package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

func (s *Service) mustFindRefund(ctx context.Context, tx convergo.Tx, refundNo string) (refundRow, error) {
	found, err := selectRows[refundRow](ctx, tx, s.sql.Get("FindRefund"), refundNo)
	if err != nil {
		return refundRow{}, err
	}
	if len(found) == 0 {
		return refundRow{}, convergo.Permanent(fmt.Errorf("there is no refund %q", refundNo))
	}
	return found[0], nil
}

func (s *Service) onPaymentRefunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.RefundPaid](e)
	if err != nil {
		return err
	}
	r, err := s.mustFindRefund(ctx, tx, p.RefundNo)
	if err != nil {
		return err
	}
	if r.OrderNo != p.OrderNo || r.Cash != p.Amount {
		return convergo.Permanent(fmt.Errorf("refund %s of order %s is %d, the payment side gave %d back for order %s",
			r.RefundNo, r.OrderNo, r.Cash, p.Amount, p.OrderNo))
	}
	return s.finishRefund(ctx, tx, r, p.Channel+":"+p.ChannelID, e.Key)
}

// finishRefund: the money is back. Whoever tells it first writes the result; the second finds it written. The cumulative
// figures count what is back for sure, so they are right in whatever order refunds finish.
func (s *Service) finishRefund(ctx context.Context, tx convergo.Tx, r refundRow, channelID string, key convergo.Key) error {
	now := s.deps.Now()
	// Takes the order's row first: two refunds of one order that finish together take turns, and the second sees the first.
	if _, err := s.exec(ctx, tx, "NextVersion", convergo.Micros(now), r.OrderNo); err != nil {
		return err
	}
	done, err := s.moveRefund(ctx, tx, machine.Request{ID: r.RefundNo, Move: "finish", Cause: "done", Key: key, Actor: "payment", At: now})
	if err != nil || !done {
		return err
	}
	if _, err := s.exec(ctx, tx, "SetRefunded", channelID, convergo.Micros(now), r.RefundNo); err != nil {
		return err
	}
	o, err := s.mustFind(ctx, tx, r.OrderNo)
	if err != nil {
		return err
	}
	parts, err := selectRows[refundLine](ctx, tx, s.sql.Get("LinesOfRefund"), r.RefundNo)
	if err != nil {
		return err
	}
	payload := refundPayload(*o, r, payloadLines(parts))
	if payload.CashSoFar, payload.Full, err = s.refundedSoFar(ctx, tx, r.OrderNo); err != nil {
		return err
	}
	version := o.Version
	if payload.Full {
		res, err := s.apply(ctx, tx, machine.Request{ID: o.OrderNo, Move: "refunded", Cause: r.RefundNo, Key: key, Actor: "payment"})
		if err != nil {
			return err
		}
		if res.Answer != machine.Applied {
			return convergo.Permanent(fmt.Errorf("order %s is refunded in full but %s (%s)", o.OrderNo, res.State, res.Answer))
		}
		version = res.Version
	}
	return s.emit(ctx, tx, trade.OrderRefunded, convergo.Key("OrderRefunded:"+r.RefundNo), o.OrderNo, version, payload)
}

// moveRefund tells whether the refund was moved now; false when it was before.
func (s *Service) moveRefund(ctx context.Context, tx convergo.Tx, r machine.Request) (bool, error) {
	res, err := Refunds().Apply(ctx, tx, r)
	switch {
	case errors.Is(err, machine.ErrNotFound):
		return false, convergo.Permanent(err)
	case err != nil:
		return false, err
	case res.Answer == machine.Conflict || res.Answer == machine.Stale:
		return false, convergo.Permanent(fmt.Errorf("refund %s cannot %s: it is %s", r.ID, r.Move, res.State))
	}
	return res.Answer == machine.Applied, nil
}

func (s *Service) refundedSoFar(ctx context.Context, tx convergo.Tx, no string) (cash int64, full bool, err error) {
	var amount, back, ordered int64
	if err = tx.QueryRowContext(ctx, s.sql.Get("SumRefunded"), no).Scan(&cash, &amount); err == nil {
		err = tx.QueryRowContext(ctx, s.sql.Get("PiecesRefunded"), no).Scan(&back)
	}
	if err == nil {
		err = tx.QueryRowContext(ctx, s.sql.Get("PiecesOrdered"), no).Scan(&ordered)
	}
	if err != nil {
		return 0, false, fmt.Errorf("sum refunds of %s: %w", no, err)
	}
	return cash, back == ordered, nil
}

// onPaymentRefundFailed: the channel refused for good, so the pieces are free for another attempt, which has another number
// and so another key at the channel. The order stays where it is: a person decides what next.
func (s *Service) onPaymentRefundFailed(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.RefundPaid](e)
	if err != nil {
		return err
	}
	r, err := s.mustFindRefund(ctx, tx, p.RefundNo)
	if err != nil {
		return err
	}
	now := s.deps.Now()
	if _, err := s.exec(ctx, tx, "NextVersion", convergo.Micros(now), r.OrderNo); err != nil {
		return err
	}
	fail := machine.Request{ID: r.RefundNo, Move: "fail", Cause: "refused", Key: e.Key, Actor: "payment", At: now}
	failed, err := s.moveRefund(ctx, tx, fail)
	if err != nil || !failed {
		return err
	}
	if _, err := s.exec(ctx, tx, "SetRefundFailed", cutText(p.Reason, 500), convergo.Micros(now), r.RefundNo); err != nil {
		return err
	}
	parts, err := selectRows[refundLine](ctx, tx, s.sql.Get("LinesOfRefund"), r.RefundNo)
	if err != nil {
		return err
	}
	for _, l := range parts {
		if _, err := s.exec(ctx, tx, "ReleaseLine", l.Quantity, l.CouponShare, l.PointsShare, l.Cash, r.OrderNo, l.LineNo); err != nil {
			return err
		}
	}
	return nil
}
