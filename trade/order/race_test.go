package order_test

import (
	"bytes"
	"net/http"
	"sync"
	"testing"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

// One Idempotency-Key, sent 16 times at once to two processes: one order, and whoever is answered 201 gets the same bytes.
func TestOneIdempotencyKeyAtOnceInTwoProcessesIsOneOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		twin := r.Twin()
		w := r.goods(8800, 1)
		w.ClientToken = r.token("alice")
		var all sync.WaitGroup
		answers := make([]tradetest.Response, 16)
		for i := range answers {
			bench := r.Bench
			if i%2 == 1 {
				bench = twin
			}
			all.Go(func() { answers[i] = bench.PostKey(tradetest.User("alice"), "/orders", "one-key", w) })
		}
		all.Wait()
		first := r.PostKey(tradetest.User("alice"), "/orders", "one-key", w)
		if first.Status != http.StatusCreated || first.Header.Get("Idempotency-Replayed") != "true" {
			t.Fatalf("afterwards: %d %v %s", first.Status, first.Header, first.Body)
		}
		created := 0
		for _, a := range answers {
			switch {
			case a.Status == http.StatusConflict: // it is running in this process
			case a.Status == http.StatusCreated && bytes.Equal(a.Body, first.Body):
				created++
			default:
				t.Errorf("answer %d %s, want that of the first: %s", a.Status, a.Body, first.Body)
			}
		}
		if n := len(r.Events(trade.OrderCreated)); n != 1 || created == 0 {
			t.Errorf("%d OrderCreated events, %d answers 201", n, created)
		}
	})
}

// The answers of all neighbours at once, to two processes: each order becomes payable once, with what all of them said.
func TestTheLastAnswersAtOnceMakeAnOrderPayableOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		twin := r.Twin()
		var all sync.WaitGroup
		var orders []string
		for range 12 {
			w := r.goods(8800, 1)
			w.CouponCode, w.PointsToSpend = "C-1", 300
			orders = append(orders, r.place("alice", w))
		}
		for _, no := range orders {
			for i, e := range []struct {
				eventType string
				answer    trade.Answer
			}{
				{trade.StockHeld, trade.Answer{OrderNo: no}}, {trade.CouponLocked, trade.Answer{OrderNo: no, Amount: 1000}},
				{trade.PointsLocked, trade.Answer{OrderNo: no, Points: 300}}, {trade.RiskApproved, trade.Answer{OrderNo: no}},
			} {
				bench, told := r.Bench, r.Event(e.eventType, no, 1, e.answer)
				if i%2 == 1 {
					bench = twin
				}
				all.Go(func() {
					if err := tradetest.Again(func() error { _, err := bench.Deliver(told); return err }); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		for _, no := range orders {
			r.told(no, trade.OrderCreated, trade.OrderPayable)
			if o := r.order(no); o.Payable != 7500 || o.CouponTotal != 1000 || o.PointsSpent != 300 {
				t.Errorf("%+v", o)
			}
		}
	})
}

// The time-out has looked at an open order; the other process commits its payment before the order is moved.
func TestATimeoutThatMeetsThePaymentClosesNothing(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("alice", r.goods(8800, 1))
		r.hold(no, 0, 0)
		timeout := r.Event(trade.OrderTimeout, no, 0, trade.Moved{OrderNo: no})
		timeout.Key = "OrderTimeout:again"
		err := r.Meanwhile(timeout, "FROM orders", func() { r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1"))) })
		r.must(err)
		r.is(no, order.Paid)
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderPaid)
	})
}

// Two refunds that together are the whole order are paid back at once: they take turns at the order's row, and the second one
// counts the first.
func TestTwoRefundsThatFinishAtOnceRefundTheOrderOnce(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("alice", r.goods(1000, 3), 0, 0)
		first, second := r.asked(r.refund(no, pieces(1, 1))), r.asked(r.refund(no, pieces(1, 2)))
		told := r.Event(trade.PaymentRefunded, no, 77, trade.RefundPaid{RefundNo: first.RefundNo, OrderNo: no, Channel: "sim",
			ChannelID: "C-1", Amount: first.Cash, Currency: first.Currency})
		wait := func() {}
		r.must(r.Meanwhile(told, "FROM refund_line WHERE", func() {
			wait = tradetest.Beside(func() {
				if err := r.refunded(second); err != nil {
					t.Error(err)
				}
			})
		}))
		wait()
		r.is(no, order.Refunded)
		all := tradetest.PayloadsOf[trade.Refund](r.Bench, no, trade.OrderRefunded)
		if len(all) != 2 || all[0].Full || all[0].CashSoFar != 1000 || !all[1].Full || all[1].CashSoFar != 3000 {
			t.Errorf("told %+v", all)
		}
	})
}
