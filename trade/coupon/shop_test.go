package coupon_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/coupon"
	"github.com/convergo/convergo/trade/tradetest"
)

// shop is the coupon service on a bench. Every delivery has an event key of its own, as if the producer told the fact anew:
// what the inbox would hold back reaches the handlers, and the business keys have to stand alone.
type shop struct {
	*tradetest.Bench
	service *coupon.Service
	told    atomic.Int64
}

func open(t testing.TB, db tradetest.Database) *shop {
	t.Helper()
	s := &shop{}
	s.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		var err error
		s.service, err = coupon.New(d)
		return s.service, err
	})
	return s
}

// deliver tells the fact; it happened at the bench's time.
func (s *shop) deliver(eventType, orderNo string, payload any) error {
	e, err := trade.NewEvent(eventType, convergo.Key(fmt.Sprintf("%s:%s:told-%d", eventType, orderNo, s.told.Add(1))), orderNo, 0, payload)
	if err != nil {
		return err
	}
	e.CreatedAt = s.Clock.Now()
	_, err = s.Deliver(e)
	return err
}

func (s *shop) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// terms are 10.00 CNY off from 50.00, valid for an hour.
func terms(code string, total, perUser int64) coupon.Terms {
	return coupon.Terms{
		Code: code, FaceValue: 1000, Currency: "CNY", MinimumSpend: 5000, TotalLimit: total, PerUserLimit: perUser,
		ValidFrom: tradetest.Start(), ValidUntil: tradetest.Start().Add(time.Hour),
	}
}

func (s *shop) create(c coupon.Terms) error {
	return s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error { return s.service.Create(ctx, tx, c) })
}

// counted is how many uses of the coupon are locked and redeemed, by its own counters; they must agree with the use rows and
// with the customers' counters.
func (s *shop) counted(t interface{ Fatalf(string, ...any) }, code string) (locked, redeemed int64) {
	locked, redeemed = s.Int("SELECT locked FROM coupon WHERE code = ?", code), s.Int("SELECT redeemed FROM coupon WHERE code = ?", code)
	rowsLocked := s.Int("SELECT COUNT(*) FROM coupon_use WHERE code = ? AND state = 'LOCKED'", code)
	rowsRedeemed := s.Int("SELECT COUNT(*) FROM coupon_use WHERE code = ? AND state = 'REDEEMED'", code)
	users := s.Int("SELECT COALESCE(SUM(uses), 0) FROM coupon_user WHERE code = ?", code)
	if locked != rowsLocked || redeemed != rowsRedeemed || users != locked+redeemed {
		t.Fatalf("%s: counters say %d locked, %d redeemed; rows %d, %d; customers %d", code, locked, redeemed, rowsLocked, rowsRedeemed, users)
	}
	wrong := s.Int(`SELECT COUNT(*) FROM (SELECT u.user_id FROM coupon_user u LEFT JOIN coupon_use r
		ON r.code = u.code AND r.user_id = u.user_id AND r.state IN ('LOCKED', 'REDEEMED')
		WHERE u.code = ? GROUP BY u.user_id, u.uses HAVING u.uses <> COUNT(r.use_key)) AS different`, code)
	if wrong != 0 {
		t.Fatalf("%s: the counters of %d customers differ from their uses", code, wrong)
	}
	return locked, redeemed
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

func placed(orderNo, user, code string) trade.OrderPlaced {
	return trade.OrderPlaced{OrderNo: orderNo, UserID: user, Currency: "CNY", GoodsTotal: 17600, CouponCode: code}
}

func canceled(orderNo, user, code string) trade.Canceled {
	return trade.Canceled{OrderNo: orderNo, UserID: user, Reason: "user", CouponCode: code}
}

func paid(orderNo, user, code string) trade.Paid {
	return trade.Paid{OrderNo: orderNo, UserID: user, Currency: "CNY", CouponCode: code, CouponTotal: 1000, Transaction: "T-" + orderNo}
}

func refund(orderNo, user, code string, full bool) trade.Refund {
	return trade.Refund{RefundNo: "R-" + orderNo, OrderNo: orderNo, UserID: user, Currency: "CNY", Coupon: code, Full: full}
}
