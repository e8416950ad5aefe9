package ledger

import (
	"context"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// receiptRecorded books money that a channel took for us, of whatever class: until an order claims it, it is in suspense.
// Notices that moved no money of ours are not booked.
func (s *Service) receiptRecorded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Receipt](e)
	if err != nil || r.Class == trade.Ignored || r.Class == trade.WrongMerchant {
		return err
	}
	return s.book(ctx, tx, e, "RECEIPT", r.Channel+":"+r.Transaction, r.OrderNo, r.Currency,
		debit(channelAccount(r.Channel), r.Amount), credit(Suspense, r.Amount))
}

// receiptRefunded books that unapplied money went back.
func (s *Service) receiptRefunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Receipt](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "UNAPPLIED_REFUND", r.Channel+":"+r.Transaction, r.OrderNo, r.Currency,
		debit(Suspense, r.Amount), credit(channelAccount(r.Channel), r.Amount))
}

// orderPaid books the sale: at list price, with what coupon and points paid of it.
func (s *Service) orderPaid(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.Paid](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "ORDER_PAID", p.OrderNo, p.OrderNo, p.Currency, debit(Suspense, p.Payable),
		debit(CouponExpense, p.CouponTotal), debit(PointsLiability, p.PointsSpent), credit(Revenue, p.GoodsTotal))
}

// orderRefunded books the sale, or a part of it, backwards: each payer gets his share.
func (s *Service) orderRefunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Refund](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "ORDER_REFUND", r.RefundNo, r.OrderNo, r.Currency, debit(Revenue, r.Amount), credit(Suspense, r.Cash),
		credit(CouponExpense, r.CouponTotal), credit(PointsLiability, r.PointsBack))
}

// paymentRefunded books that an order's money went back through the channel.
func (s *Service) paymentRefunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.RefundPaid](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "REFUND", r.RefundNo, r.OrderNo, r.Currency, debit(Suspense, r.Amount), credit(channelAccount(r.Channel),
		r.Amount))
}

// pointsGranted books what the order's points will cost, one minor unit each.
func (s *Service) pointsGranted(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	a, err := trade.Decode[trade.Answer](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "ORDER_POINT", a.OrderNo, a.OrderNo, a.Currency, debit(PointsExpense, a.Points), credit(PointsLiability,
		a.Points))
}

// pointsReversed books granted points that a refund took back. Spent points given back are part of ORDER_REFUND. A refund
// that took none back has a journal without postings, so that every PointsReversed has its journal.
func (s *Service) pointsReversed(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	a, err := trade.Decode[trade.Answer](e)
	if err != nil {
		return err
	}
	return s.book(ctx, tx, e, "POINT_REVERSAL", a.RefundNo, a.OrderNo, a.Currency, debit(PointsLiability, a.Points),
		credit(PointsExpense, a.Points))
}

func channelAccount(channel string) string { return "channel:" + channel }

func debit(account string, amount int64) Posting { return Posting{Account: account, Debit: amount} }

func credit(account string, amount int64) Posting { return Posting{Account: account, Credit: amount} }

// book posts the journal "{kind}:{id}" of an event.
func (s *Service) book(ctx context.Context, tx convergo.Tx, e convergo.Event, kind, id, orderNo, currency string,
	postings ...Posting) error {
	for i := range postings {
		postings[i].Currency = currency
	}
	_, err := s.Post(ctx, tx, Journal{
		Key: kind + ":" + id, Kind: kind, OrderNo: orderNo, Cause: string(e.Key), Actor: Name, Postings: postings,
	})
	return err
}
