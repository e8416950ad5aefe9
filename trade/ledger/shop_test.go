package ledger_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/ledger"
	"github.com/convergo/convergo/trade/tradetest"
)

// shop is the ledger on a bench. Every delivery has an event key of its own, as if the producer told the fact anew: what the
// inbox would hold back reaches the handlers, and the journals' keys have to stand alone.
type shop struct {
	*tradetest.Bench
	service *ledger.Service
	told    atomic.Int64
}

func open(t testing.TB, db tradetest.Database) *shop {
	t.Helper()
	s := &shop{}
	s.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		var err error
		s.service, err = ledger.New(d)
		return s.service, err
	})
	return s
}

func (s *shop) deliver(h happening) error {
	key := convergo.Key(fmt.Sprintf("%s:%s:told-%d", h.eventType, h.orderNo, s.told.Add(1)))
	e, err := trade.NewEvent(h.eventType, key, h.orderNo, 0, h.payload)
	if err != nil {
		return err
	}
	_, err = s.Deliver(e)
	return err
}

func (s *shop) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type happening struct {
	eventType, orderNo string
	payload            any
}

// balance of an account in CNY: debits less credits.
func (s *shop) balance(account string) int64 {
	return s.Int("SELECT COALESCE(SUM(debit - credit), 0) FROM posting WHERE account = ? AND currency = 'CNY'", account)
}

func (s *shop) verify(t interface{ Fatalf(string, ...any) }) (c ledger.Chain) {
	err := s.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) (err error) {
		c, err = s.service.Verify(ctx, tx)
		return err
	})
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return c
}

func (s *shop) trial(t interface{ Fatalf(string, ...any) }) (b ledger.Trial) {
	err := s.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) (err error) {
		b, err = s.service.TrialBalance(ctx, tx)
		return err
	})
	if err != nil {
		t.Fatalf("trial balance: %v", err)
	}
	return b
}

// sale is the story of a paid order: goods of 100.00, a coupon of 10.00, 500 points, the rest in cash.
func sale(no string) []happening {
	money := trade.Receipt{Channel: "acme", Transaction: "T-" + no, OrderNo: no, Amount: 8500, Currency: "CNY", Class: trade.Apply}
	return []happening{
		{trade.ReceiptRecorded, no, money},
		{trade.OrderPaid, no, trade.Paid{
			OrderNo: no, UserID: "ada", Currency: "CNY", GoodsTotal: 10000, CouponTotal: 1000, PointsSpent: 500, Payable: 8500,
			Channel: "acme", Transaction: "T-" + no,
		}},
		{trade.PointsGranted, no, trade.Answer{OrderNo: no, Currency: "CNY", Points: 85}},
	}
}

// back is the story of a full refund of sale.
func back(no string) []happening {
	return []happening{
		{trade.PaymentRefunded, no, trade.RefundPaid{RefundNo: "R-" + no, OrderNo: no, Channel: "acme", Amount: 8500, Currency: "CNY"}},
		{trade.OrderRefunded, no, trade.Refund{
			RefundNo: "R-" + no, OrderNo: no, Currency: "CNY", Amount: 10000, CouponTotal: 1000, PointsBack: 500, Cash: 8500, Full: true,
		}},
		{trade.PointsReversed, no, trade.Answer{OrderNo: no, Currency: "CNY", Points: 85, Amount: 500, RefundNo: "R-" + no}},
	}
}

// stray is the story of money that fits no payable order and goes back.
func stray(no, class string) []happening {
	money := trade.Receipt{Channel: "acme", Transaction: "S-" + no, OrderNo: no, Amount: 8500, Currency: "CNY", Class: class}
	return []happening{{trade.ReceiptRecorded, no, money}, {trade.ReceiptRefunded, no, money}}
}

func (s *shop) tell(t testing.TB, stories ...[]happening) {
	t.Helper()
	for _, story := range stories {
		for _, h := range story {
			s.must(t, s.deliver(h))
		}
	}
}

// damage changes rows behind the ledger's back.
func (s *shop) damage(statements ...string) {
	s.Update(func(ctx context.Context, tx convergo.Tx) error {
		for _, statement := range statements {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}
