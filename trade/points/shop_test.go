package points_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/points"
	"github.com/convergo/convergo/trade/tradetest"
)

// shop is the points service on a bench. Every delivery has an event key of its own, as if the producer told the fact anew:
// what the inbox would hold back reaches the handlers, and the business keys have to stand alone.
type shop struct {
	*tradetest.Bench
	service *points.Service
	told    atomic.Int64
}

func open(t testing.TB, db tradetest.Database) *shop {
	t.Helper()
	s := &shop{}
	s.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		var err error
		s.service, err = points.New(d)
		return s.service, err
	})
	return s
}

func (s *shop) deliver(eventType, orderNo string, payload any) error {
	e, err := trade.NewEvent(eventType, convergo.Key(fmt.Sprintf("%s:%s:told-%d", eventType, orderNo, s.told.Add(1))), orderNo, 0, payload)
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

func (s *shop) grant(user string, n int64, key string) error {
	return s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return s.service.Grant(ctx, tx, points.Grant{User: user, Points: n, Key: key}, "test")
	})
}

// held is a customer's balance, locked points and debt. They must agree with his entries and his orders.
func (s *shop) held(t interface{ Fatalf(string, ...any) }, user string) (balance, locked, debt int64) {
	if s.Int("SELECT COUNT(*) FROM points_account WHERE user_id = ?", user) > 0 {
		balance = s.Int("SELECT balance FROM points_account WHERE user_id = ?", user)
		locked = s.Int("SELECT locked FROM points_account WHERE user_id = ?", user)
		debt = s.Int("SELECT debt FROM points_account WHERE user_id = ?", user)
	}
	if balance < locked || locked < 0 || debt < 0 || (debt > 0 && balance > locked) {
		t.Fatalf("%s has %d, %d locked, %d debt", user, balance, locked, debt)
	}
	if sum := s.Int("SELECT COALESCE(SUM(points), 0) FROM points_entry WHERE user_id = ?", user); sum != balance-debt {
		t.Fatalf("%s: entries sum to %d, balance - debt is %d - %d", user, sum, balance, debt)
	}
	if sum := s.Int("SELECT COALESCE(SUM(locked), 0) FROM points_entry WHERE user_id = ?", user); sum != locked {
		t.Fatalf("%s: entries lock %d, the account %d", user, sum, locked)
	}
	if sum := s.Int("SELECT COALESCE(SUM(locked), 0) FROM points_order WHERE user_id = ? AND state = 'LOCKED'", user); sum != locked {
		t.Fatalf("%s: orders lock %d, the account %d", user, sum, locked)
	}
	return balance, locked, debt
}

// wants fails when the customer has something else.
func (s *shop) wants(t testing.TB, user string, balance, locked, debt int64) {
	t.Helper()
	if b, l, d := s.held(t, user); b != balance || l != locked || d != debt {
		t.Errorf("%s has %d, %d locked, %d debt; want %d, %d, %d", user, b, l, d, balance, locked, debt)
	}
}

// answers are the events that were told about an order, oldest first.
func (s *shop) answers(t testing.TB, orderNo string) (types []string, last trade.Answer) {
	t.Helper()
	for _, e := range s.Events("") {
		if e.Aggregate.ID != orderNo {
			continue
		}
		types = append(types, e.Type)
		var err error
		last, err = trade.Decode[trade.Answer](e)
		s.must(t, err)
	}
	return types, last
}

func placed(orderNo string, spend int64) trade.OrderPlaced {
	return trade.OrderPlaced{OrderNo: orderNo, UserID: "ada", Currency: "CNY", GoodsTotal: 17600, PointsToSpend: spend}
}

func canceled(orderNo string, spend int64) trade.Canceled {
	return trade.Canceled{OrderNo: orderNo, UserID: "ada", Reason: "user", PointsToSpend: spend}
}

func paid(orderNo string, cash, spent int64) trade.Paid {
	return trade.Paid{OrderNo: orderNo, UserID: "ada", Currency: "CNY", PointsSpent: spent, Payable: cash, Transaction: "T-" + orderNo}
}

// refund of so much cash, of which soFar are refunded with it and all is what was paid.
func refund(orderNo, refundNo string, soFar, all, back int64) trade.Refund {
	return trade.Refund{
		RefundNo: refundNo, OrderNo: orderNo, UserID: "ada", Currency: "CNY",
		CashSoFar: soFar, CashPaid: all, PointsBack: back, Full: soFar == all,
	}
}
