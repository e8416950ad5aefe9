package order_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestTheMachinesAreSound(t *testing.T) {
	if err := order.Orders().Validate(); err != nil {
		t.Error(err)
	}
	if err := order.Refunds().Validate(); err != nil {
		t.Error(err)
	}
}

func TestAnOrderGoesItsWholeWay(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(3333, 1, 3333, 1, 3334, 1)
		w.CouponCode = "TEN"
		no := r.place("u-1", w)
		r.is(no, order.Created)
		r.must(r.tell(trade.CouponLocked, no, trade.Answer{OrderNo: no, Amount: 1000}))
		r.must(r.tell(trade.RiskApproved, no, trade.Answer{OrderNo: no}))
		if r.order(no).IsPayable {
			t.Fatal("payable before its stock is held")
		}
		r.must(r.tell(trade.StockHeld, no, trade.Answer{OrderNo: no}))
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")))
		r.is(no, order.Paid)
		r.must(r.tell(trade.ShipmentDispatched, no, trade.Answer{OrderNo: no}))
		r.is(no, order.Shipped)
		r.must(r.tell(trade.ShipmentDelivered, no, trade.Answer{OrderNo: no}))
		r.is(no, order.Completed)
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderPaid, trade.OrderShipped, trade.OrderCompleted)
		paid := tradetest.Payloads[trade.Paid](r.Bench, trade.OrderPaid)[0]
		if paid.Payable != 9000 || paid.CouponTotal != 1000 || paid.Transaction != "T-1" || paid.Channel != "sim" || len(paid.Lines) != 3 {
			t.Errorf("OrderPaid says %+v", paid)
		}
		var versions []int64
		for _, e := range r.Events("") {
			if e.Type != trade.OrderTimeout {
				versions = append(versions, e.Version)
			}
		}
		for i := range versions[1:] {
			if versions[i+1] <= versions[i] {
				t.Errorf("the events' versions do not grow: %v", versions)
			}
		}
	})
}

func TestCaseB28OnePaymentToldFourTimesPaysOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		r.hold(no, 0, 0)
		receipt := r.receipt(no, "T-1")
		var all sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			e := r.Event(trade.PaymentSucceeded, no, int64(i+1), receipt) // four different messages of one payment
			all.Go(func() { _, errs[i] = r.Deliver(e) })
		}
		all.Wait()
		for _, err := range errs {
			r.must(err)
		}
		if n := len(r.Events(trade.OrderPaid)); n != 1 {
			t.Errorf("%d OrderPaid events, want 1", n)
		}
		if n := r.Int(`SELECT COUNT(*) FROM machine_transition WHERE entity_id = ? AND to_state = 'PAID'`, no); n != 1 {
			t.Errorf("%d transitions to PAID, want 1", n)
		}
	})
}

func TestCaseB29NothingLateMovesAnOrderBackwards(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(8800, 1), 0, 0)
		late := map[string]any{
			trade.OrderTimeout: trade.Moved{OrderNo: no}, trade.StockRejected: trade.Answer{OrderNo: no, Reason: "none left"},
			trade.RiskRejected: trade.Answer{OrderNo: no}, trade.StockHeld: trade.Answer{OrderNo: no},
		}
		for eventType, payload := range late {
			r.must(r.tell(eventType, no, payload))
			r.is(no, order.Paid)
		}
		r.must(r.refunded(r.asked(r.refund(no))))
		r.is(no, order.Refunded)
		before := len(r.Events(""))
		for eventType, payload := range late {
			r.must(r.tell(eventType, no, payload))
		}
		r.must(r.tell(trade.ShipmentDispatched, no, trade.Answer{OrderNo: no}))
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-"+no))) // the approval again
		r.is(no, order.Refunded)
		if n := len(r.Events("")); n != before {
			t.Errorf("late events made %d new ones", n-before)
		}
	})
}

func TestReport25ALateFailureDoesNotUndoWhatSucceeded(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(8800, 1), 0, 0)
		v := r.asked(r.refund(no))
		r.must(r.refunded(v))
		err := r.tell(trade.PaymentRefundFailed, no, trade.RefundPaid{RefundNo: v.RefundNo, OrderNo: no, Reason: "late"})
		if convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("a failure after success is answered with %v, want it shown to a person", err)
		}
		if err := r.tell(trade.PaymentClosed, no, trade.Answer{OrderNo: no}); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("payment closed after it was paid: %v, want it shown to a person", err)
		}
		r.is(no, order.Refunded)
	})
}

func TestCaseB30APaymentThatDoesNotFitIsNotTaken(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(10000, 1))
		early := trade.Receipt{Channel: "sim", Transaction: "T-0", OrderNo: no, Amount: 10000, Currency: "CNY", Class: trade.Apply}
		if err := r.tell(trade.PaymentSucceeded, no, early); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("a payment before the order is payable: %v", err)
		}
		r.hold(no, 0, 0)
		for name, change := range map[string]func(*trade.Receipt){
			"amount 1": func(p *trade.Receipt) { p.Amount = 1 }, "amount 4000": func(p *trade.Receipt) { p.Amount = 4000 },
			"other currency": func(p *trade.Receipt) { p.Currency = "USD" }, "other class": func(p *trade.Receipt) { p.Class = trade.WrongAmount },
			"unknown order": func(p *trade.Receipt) { p.OrderNo = "20261129-NONE" },
		} {
			p := r.receipt(no, "T-1")
			change(&p)
			if err := r.tell(trade.PaymentSucceeded, no, p); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s: %v, want it shown to a person", name, err)
			}
			r.is(no, order.Created)
		}
	})
}

func TestCaseB33MoneyAfterTheCloseNeverRevivesAnOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		r.hold(no, 0, 0)
		r.Clock.Advance(paymentWindow)
		r.sweep(1)
		r.must(r.tell(trade.PaymentClosed, no, trade.Answer{OrderNo: no}))
		r.is(no, order.Canceled)
		// The payment service classifies such money as LATE; should it ever ask us to apply it, a person is told.
		if err := r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("late money: %v", err)
		}
		r.is(no, order.Canceled)
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderClosing, trade.OrderCanceled)
	})
}

func TestCaseB33CloseAndPaymentInOneMomentEndInExactlyOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		for round := range 100 {
			no := r.place("u-1", r.goods(8800, 1))
			r.hold(no, 0, 0)
			receipt, timeout := r.receipt(no, "T-"+no), r.Event(trade.OrderTimeout, no, 0, trade.Moved{OrderNo: no})
			paid := r.Event(trade.PaymentSucceeded, no, 1, receipt)
			var all sync.WaitGroup
			var payErr, closeErr error
			all.Go(func() { _, payErr = r.Deliver(paid) })
			all.Go(func() { _, closeErr = r.Deliver(timeout) })
			all.Wait()
			r.must(payErr)
			r.must(closeErr)
			r.is(no, order.Paid) // closing only asks; the money was there
			if n := r.Int(`SELECT COUNT(*) FROM outbox_event WHERE aggregate_id = ? AND type IN ('OrderPaid', 'OrderCanceled')`, no); n != 1 {
				t.Fatalf("round %d: %d outcomes", round, n)
			}
		}
	})
}

func TestCaseB43ACouponBiggerThanTheCartMakesAFreeOrder(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		w := r.goods(8800, 1, 8800, 1)
		w.CouponCode, w.PointsToSpend = "HUGE", 5000
		no := r.place("u-1", w)
		r.hold(no, 100000, 5000)
		r.is(no, order.Paid)
		o := r.order(no)
		if o.CouponTotal != 17600 || o.PointsSpent != 0 || o.Payable != 0 || o.Channel != "none" || o.Transaction != "ZERO:"+no {
			t.Errorf("the free order is %+v", o)
		}
		if o.Lines[0].CouponShare+o.Lines[1].CouponShare != 17600 {
			t.Errorf("the lines' shares are %+v", o.Lines)
		}
		r.told(no, trade.OrderCreated, trade.OrderPaid) // no OrderPayable: the channel is not called
		for _, column := range []string{"payable", "coupon_total", "points_spent"} {
			err := r.Store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE orders SET "+column+" = -1 WHERE order_no = ?", no)
				return err
			})
			if err == nil {
				t.Errorf("the database takes a negative %s", column)
			}
		}
	})
}

func TestReport11AnOverdueOrderAsksThePaymentSideBeforeItIsCanceled(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		r.hold(no, 0, 0)
		r.Clock.Advance(paymentWindow)
		r.must(r.tell(trade.OrderTimeout, no, trade.Moved{OrderNo: no}))
		r.is(no, order.Closing)
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderClosing) // nothing is released yet
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")))       // "already paid", says the channel
		r.is(no, order.Paid)
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderClosing, trade.OrderPaid)
	})
}

func TestReport09ACanceledOrderIsNeverPaid(t *testing.T) {
	for _, m := range order.Orders().Moves {
		for _, from := range m.From {
			if from == order.Canceled {
				t.Errorf("move %s leads out of CANCELED", m.Name)
			}
		}
	}
}

func TestReport06ManyCancelsAtOnceAreOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		var all sync.WaitGroup
		status := make([]int, 20)
		for i := range status {
			all.Go(func() { status[i] = r.Post(tradetest.User("u-1"), "/orders/"+no+"/cancel", nil).Status })
		}
		all.Wait()
		count := map[int]int{}
		for _, s := range status {
			count[s]++
		}
		if count[202] != 1 || count[200] != 19 {
			t.Errorf("20 cancels at once were answered %v, want one 202 and nineteen 200", count)
		}
		r.must(r.tell(trade.PaymentClosed, no, trade.Answer{OrderNo: no}))
		r.must(r.tell(trade.PaymentClosed, no, trade.Answer{OrderNo: no}))
		r.told(no, trade.OrderCreated, trade.OrderClosing, trade.OrderCanceled)
	})
}

func TestReport01TheLoserOfARaceUndoesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(8800, 1), 0, 0)
		res := r.Post(tradetest.User("u-1"), "/orders/"+no+"/cancel", nil)
		if res.Status != http.StatusConflict || res.Problem().Remedy == "" {
			t.Errorf("cancel of a paid order: %d %s", res.Status, res.Body)
		}
		second := r.receipt(no, "T-2") // another payment that believes it was first
		if err := r.tell(trade.PaymentSucceeded, no, second); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("second payment: %v", err)
		}
		r.is(no, order.Paid)
		if o := r.order(no); o.Transaction != "T-"+no {
			t.Errorf("paid by %s now", o.Transaction)
		}
		r.told(no, trade.OrderCreated, trade.OrderPayable, trade.OrderPaid)
	})
}

func TestWhatARejectionSaysIsTheReason(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for eventType, want := range map[string]string{
			trade.StockRejected: "out_of_stock: S1", trade.CouponRejected: "coupon: S1", trade.PointsRejected: "points: S1", trade.RiskRejected: "risk: S1",
		} {
			t.Run(eventType, func(t *testing.T) {
				r := newRig(t, db)
				no := r.place("u-1", r.goods(8800, 1))
				r.must(r.tell(eventType, no, trade.Answer{OrderNo: no, Reason: "S1"}))
				if o := r.order(no); o.Status != order.Closing || o.Reason != want {
					t.Errorf("%s: %s because of %q, want CLOSING because of %q", eventType, o.Status, o.Reason, want)
				}
				r.hold(no, 0, 0) // positive answers that come after it change nothing
				r.told(no, trade.OrderCreated, trade.OrderClosing)
				r.must(r.tell(trade.PaymentClosed, no, trade.Answer{OrderNo: no}))
				if c := tradetest.Payloads[trade.Canceled](r.Bench, trade.OrderCanceled); len(c) != 1 || c[0].Reason != want {
					t.Errorf("OrderCanceled: %+v", c)
				}
			})
		}
	})
}

func TestTheSweepClosesWhatTheReminderMissedAndNothingElse(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		overdue, paid := r.place("u-1", r.goods(100, 1)), r.paid("u-2", r.goods(100, 1), 0, 0)
		r.Clock.Advance(paymentWindow - time.Second)
		young := r.place("u-3", r.goods(100, 1))
		r.sweep(0)
		r.Clock.Advance(time.Second)
		r.sweep(1)
		r.sweep(0)
		r.is(overdue, order.Closing)
		r.is(paid, order.Paid)
		r.is(young, order.Created)
		if n := r.Int("SELECT COUNT(*) FROM orders WHERE due_at IS NOT NULL"); n != 1 {
			t.Errorf("%d orders are due some time, want the open one", n)
		}
		reminders := r.Events(trade.OrderTimeout)
		if len(reminders) != 3 || !reminders[0].DeliverAt.Equal(tradetest.Start().Add(paymentWindow)) {
			t.Errorf("the reminders are %+v", reminders)
		}
		r.must(r.tell(trade.OrderTimeout, overdue, trade.Moved{OrderNo: overdue}))
		r.told(overdue, trade.OrderCreated, trade.OrderClosing)
	})
}

func TestTheSweepReadsAnIndex(t *testing.T) {
	r := newRig(t, databases.SQLite())
	r.Update(func(ctx context.Context, tx convergo.Tx) error {
		var id, parent, unused int
		var plan string
		err := tx.QueryRowContext(ctx, "EXPLAIN QUERY PLAN SELECT order_no FROM orders WHERE due_at <= ? ORDER BY due_at LIMIT ?", 1, 1).
			Scan(&id, &parent, &unused, &plan)
		if want := "SEARCH orders USING INDEX orders_due (due_at<?)"; plan != want {
			t.Errorf("plan %q, want %q", plan, want)
		}
		return err
	})
}

func TestADeliveryThatOvertakesItsDispatchComesAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.paid("u-1", r.goods(100, 1), 0, 0)
		e := r.Event(trade.ShipmentDelivered, no, 2, trade.Answer{OrderNo: no})
		if _, err := r.Deliver(e); err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("the early delivery: %v, want it tried again", err)
		}
		r.must(r.tell(trade.ShipmentDispatched, no, trade.Answer{OrderNo: no}))
		if ran, err := r.Deliver(e); err != nil || !ran {
			t.Errorf("the delivery again: %t, %v", ran, err)
		}
		r.is(no, order.Completed)
	})
}

func TestAnEventAboutAnUnknownOrderIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		for eventType := range r.service.Handlers() {
			err := r.tell(eventType, "20261129-NONE", map[string]any{"order_no": "20261129-NONE", "refund_no": "20261129-NONE-R1"})
			if convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s about an unknown order: %v", eventType, err)
			}
			e := r.Event(eventType, fmt.Sprintf("bad-%s", eventType), 1, nil)
			e.Payload = []byte("{")
			if _, err := r.Deliver(e); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s with a payload that is no JSON: %v", eventType, err)
			}
		}
	})
}
