package order_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB35ConcurrentRefundsNeverExceedWhatWasPaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("alice", r.goods(1000, 10), 0, 0) // 10000
		ask := func(key string, quantity int64) tradetest.Response {
			return r.PostKey(tradetest.User("alice"), "/orders/"+no+"/refunds", key, map[string]any{"lines": []any{pieces(1, quantity)}})
		}
		var all sync.WaitGroup
		var a, b tradetest.Response
		all.Go(func() { a = ask("RF-1", 6) })
		all.Go(func() { b = ask("RF-2", 6) })
		all.Wait()
		if a.Status != http.StatusAccepted {
			a, b = b, a
		}
		if a.Status != http.StatusAccepted || b.Status != http.StatusConflict || !strings.Contains(b.Problem().Detail, "cash 4000 left") {
			t.Errorf("two refunds of 6000: %d %s; %d %s", a.Status, a.Body, b.Status, b.Body)
		}
		if n := len(r.Events(trade.RefundApproved)); n != 1 {
			t.Errorf("the gateway is asked %d times", n)
		}
		before := r.rows()
		for _, quantity := range []int64{-100, 0} {
			if res := ask(fmt.Sprint("k", quantity), quantity); res.Status != http.StatusUnprocessableEntity || !strings.Contains(res.Problem().Remedy, "4 are left") {
				t.Errorf("%d pieces: %d %s", quantity, res.Status, res.Body)
			}
		}
		for name, lines := range map[string][]any{
			"a line that is not there": {pieces(2, 1)}, "line 0": {pieces(0, 1)}, "one line twice": {pieces(1, 1), pieces(1, 1)},
			"an overflowing quantity": {pieces(1, 1<<62)}, "no line at all": {},
		} {
			if res := r.Post(tradetest.User("alice"), "/orders/"+no+"/refunds", map[string]any{"lines": lines}); res.Status != 422 && res.Status != 409 {
				t.Errorf("%s: %d %s", name, res.Status, res.Body)
			}
		}
		if after := r.rows(); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		for _, key := range []string{"RF-1", "RF-2"} {
			if res := ask(key, 6); res.Header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%s again: %d %s", key, res.Status, res.Body)
			}
		}
		if sum := r.Int("SELECT SUM(cash) FROM refund WHERE order_no = ?", no); sum != 6000 {
			t.Errorf("refunds sum to %d", sum)
		}
	})
}

func TestReport04TwoWholeRefundsAtOnceAreOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("alice", r.goods(1000, 10), 0, 0)
		var all sync.WaitGroup
		answers := make([]tradetest.Response, 10)
		for i := range answers {
			all.Go(func() { answers[i] = r.refund(no) })
		}
		all.Wait()
		count := map[int]int{}
		for _, a := range answers {
			count[a.Status]++
		}
		if count[202] != 1 || count[409] != 9 {
			t.Errorf("ten whole refunds at once: %v", count)
		}
		r.is(no, order.Refunding)
		if p := tradetest.Payloads[trade.Refund](r.Bench, trade.RefundApproved); len(p) != 1 || p[0].Cash != 10000 || !p[0].Full {
			t.Errorf("RefundApproved: %+v", p)
		}
	})
}

func TestCaseB45RefundsArePaidPricesAndSumToTheWhole(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(3333, 1, 3333, 1, 3334, 1)
		w.CouponCode = "TEN"
		no := r.paid("u-1", w, 1000, 0)
		o := r.order(no)
		for i, want := range []int64{333, 333, 334} {
			if l := o.Lines[i]; l.CouponShare != want || l.Payable != 3000 {
				t.Errorf("line %d: coupon %d, payable %d; want %d, 3000", i+1, l.CouponShare, l.Payable, want)
			}
		}
		for i := range int64(3) {
			v := r.asked(r.refund(no, pieces(i+1, 1)))
			if v.Cash != 3000 { // the price paid, not the list price
				t.Errorf("line %d gives %d back", i+1, v.Cash)
			}
			r.must(r.refunded(v))
		}
		r.is(no, order.Refunded)
		back := tradetest.Payloads[trade.Refund](r.Bench, trade.OrderRefunded)
		for i, p := range back {
			if p.CashSoFar != int64(i+1)*3000 || p.CashPaid != 9000 || p.Full != (i == 2) {
				t.Errorf("OrderRefunded %d says %+v", i+1, p)
			}
		}

		three := r.goods(1000, 3)
		three.CouponCode = "BIG"
		no = r.paid("u-2", three, 2000, 0) // three pieces, 1000 paid in all
		for i, want := range []int64{333, 333, 334} {
			v := r.asked(r.refund(no, pieces(1, 1)))
			if v.Cash != want {
				t.Errorf("piece %d gives %d back, want %d", i+1, v.Cash, want)
			}
			r.must(r.refunded(v))
		}
		r.is(no, order.Refunded)
	})
}

func TestReport29WhateverIsRefundedFirstEverythingIsRefundedInTheEnd(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		db.Check(t, func(rt *rapid.T) {
			var goods []int64
			for range rapid.IntRange(1, 4).Draw(rt, "lines") {
				goods = append(goods, rapid.Int64Range(0, 5000).Draw(rt, "price"), rapid.Int64Range(1, 7).Draw(rt, "quantity"))
			}
			w := r.goods(goods...)
			coupon, points := rapid.Int64Range(0, 20000).Draw(rt, "coupon"), rapid.Int64Range(0, 20000).Draw(rt, "points")
			if coupon > 0 {
				w.CouponCode = "C"
			}
			w.PointsToSpend = points
			no := r.paid("u-1", w, coupon, points)
			o := r.order(no)
			if o.GoodsTotal != o.CouponTotal+o.PointsSpent+o.Payable {
				rt.Fatalf("%+v does not add up", o)
			}
			for _, l := range o.Lines {
				if l.Amount != l.CouponShare+l.PointsShare+l.Payable || l.Payable < 0 || l.CouponShare < 0 || l.PointsShare < 0 {
					rt.Fatalf("line %+v does not add up", l)
				}
			}
			waiting := []order.RefundView{}
			for len(waiting) < 100 {
				left := []int{}
				for i, l := range r.order(no).Lines {
					if l.RefundedQuantity < l.Quantity {
						left = append(left, i)
					}
				}
				if len(left) == 0 {
					break
				}
				i := rapid.SampledFrom(left).Draw(rt, "line")
				l := r.order(no).Lines[i]
				v := r.asked(r.refund(no, pieces(int64(i+1), rapid.Int64Range(1, l.Quantity-l.RefundedQuantity).Draw(rt, "pieces"))))
				if v.Cash > 0 && rapid.IntRange(0, 4).Draw(rt, "fails") == 0 {
					r.must(r.tell(trade.PaymentRefundFailed, no, trade.RefundPaid{RefundNo: v.RefundNo, OrderNo: no, Reason: "account closed"}))
					continue
				}
				waiting = append(waiting, v)
			}
			for _, v := range rapid.Permutation(waiting).Draw(rt, "order of the answers") {
				r.must(r.refunded(v))
			}
			r.is(no, order.Refunded)
			var cash, couponBack, pointsBack int64
			all := tradetest.PayloadsOf[trade.Refund](r.Bench, no, trade.OrderRefunded)
			for i, p := range all {
				cash, couponBack, pointsBack = cash+p.Cash, couponBack+p.CouponTotal, pointsBack+p.PointsBack
				if p.CashSoFar != cash || p.Full != (i == len(all)-1) || p.Amount != p.Cash+p.CouponTotal+p.PointsBack {
					rt.Fatalf("refund %d of %d: %+v after cash %d", i+1, len(all), p, cash)
				}
			}
			if cash != o.Payable || couponBack != o.CouponTotal || pointsBack != o.PointsSpent {
				rt.Fatalf("back: cash %d, coupon %d, points %d of %+v", cash, couponBack, pointsBack, o)
			}
		})
	})
}

func TestReport34ARefundToldTwiceIsOneRefund(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(8800, 1), 0, 0)
		v := r.asked(r.refund(no))
		if n := r.Int("SELECT COUNT(*) FROM refund WHERE refund_no = ? AND status = 'REQUESTED'", v.RefundNo); n != 1 {
			t.Error("the refund is not on record before the channel is called")
		}
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs { // the webhook and the API's answer, each twice
			e := r.Event(trade.PaymentRefunded, no, int64(i+1), trade.RefundPaid{RefundNo: v.RefundNo, OrderNo: no, Channel: "sim", Amount: v.Cash, Currency: "CNY"})
			all.Go(func() { _, errs[i] = r.Deliver(e) })
		}
		all.Wait()
		for _, err := range errs {
			r.must(err)
		}
		r.is(no, order.Refunded)
		if n := len(r.Events(trade.OrderRefunded)); n != 1 {
			t.Errorf("%d OrderRefunded events", n)
		}
	})
}

func TestARefundOfAnotherAmountIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(8800, 1), 0, 0)
		v := r.asked(r.refund(no))
		v.Cash--
		if err := r.refunded(v); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("another amount: %v", err)
		}
		r.is(no, order.Refunding)
	})
}

func TestOnlyAPaidOrderIsRefunded(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		before := r.rows()
		if res := r.refund(no); res.Status != http.StatusConflict {
			t.Errorf("unpaid: %d %s", res.Status, res.Body)
		}
		if after := r.rows(); after != before {
			t.Errorf("before %s\nafter  %s", before, after)
		}
		if res := r.refund("20261129-NONE"); res.Status != http.StatusNotFound {
			t.Errorf("unknown: %d %s", res.Status, res.Body)
		}
	})
}

func TestAPartialRefundLeavesTheOrderAndAFailedOneFreesItsPieces(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(1000, 3), 0, 0)
		v := r.asked(r.refund(no, pieces(1, 1)))
		r.must(r.refunded(v))
		r.is(no, order.Paid)
		r.must(r.tell(trade.ShipmentDispatched, no, trade.Answer{OrderNo: no}))
		rest := r.asked(r.refund(no))
		r.is(no, order.Refunding)
		r.must(r.tell(trade.PaymentRefundFailed, no, trade.RefundPaid{RefundNo: rest.RefundNo, OrderNo: no, Reason: "account closed"}))
		r.is(no, order.Refunding)
		again := r.asked(r.refund(no))
		if again.RefundNo == rest.RefundNo || again.Cash != 2000 {
			t.Errorf("the second attempt is %+v", again)
		}
		r.must(r.refunded(again))
		r.is(no, order.Refunded)
		res := r.Get(tradetest.User("u-1"), "/orders/"+no+"/refunds")
		if strings.Contains(string(res.Body), "account closed") || !strings.Contains(string(res.Body), order.RefusedByChannel) {
			t.Errorf("the buyer is told what the channel told the shop: %s", res.Body)
		}
		res = r.Get(tradetest.Operator(), "/orders/"+no+"/refunds")
		list := tradetest.Into[struct{ Refunds []order.RefundView }](t, res)
		states := ""
		for _, v := range list.Refunds {
			states += string(v.Status) + " "
		}
		if states != "REFUNDED FAILED REFUNDED " || list.Refunds[1].Failure != "account closed" || len(list.Refunds[0].Lines) != 1 {
			t.Errorf("the refunds are %s: %s", states, res.Body)
		}
		p := tradetest.Payloads[trade.Refund](r.Bench, trade.OrderRefunded)
		if len(p) != 2 || p[0].Full || !p[1].Full || p[1].CashSoFar != 3000 {
			t.Errorf("OrderRefunded: %+v", p)
		}
	})
}

func TestAFailedRefundLeavesNoUnitOverAndNoneTwice(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(1000, 3)
		w.CouponCode = "BIG"
		no := r.paid("u-1", w, 2000, 0) // three pieces, 1000 paid: 333, 333, 334
		first := r.asked(r.refund(no, pieces(1, 2)))
		second := r.asked(r.refund(no, pieces(1, 1)))
		r.must(r.tell(trade.PaymentRefundFailed, no, trade.RefundPaid{RefundNo: first.RefundNo, OrderNo: no}))
		third := r.asked(r.refund(no, pieces(1, 2)))
		if first.Cash != 666 || second.Cash != 334 || third.Cash != 666 {
			t.Errorf("refunds of %d (failed), %d and %d; want 666, 334 and 666", first.Cash, second.Cash, third.Cash)
		}
	})
}

func TestAnOrderHasABoundedNumberOfRefunds(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, order.Config{MaxRefunds: 3})
		no := r.paid("u-1", r.goods(1000, 10), 0, 0)
		for range 2 {
			r.must(r.refunded(r.asked(r.refund(no, pieces(1, 1)))))
		}
		if res := r.refund(no, pieces(1, 1)); res.Status != http.StatusConflict || !strings.Contains(res.Problem().Remedy, "all that is left") {
			t.Errorf("the last but one that may be is not for a part: %d %s", res.Status, res.Body)
		}
		r.must(r.refunded(r.asked(r.refund(no)))) // all that is left always goes
		r.is(no, order.Refunded)
	})
}
