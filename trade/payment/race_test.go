package payment_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

// Two instances have the events of one order for a moment while one takes over from the other. The one that closes has looked,
// found nothing payable, and meets the row that the other one has committed since.
func TestAClosingThatMeetsAPayableOrderClosesIt(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		closing := r.Event(trade.OrderClosing, "O-1", 3, trade.Closing{OrderNo: "O-1", Reason: "timeout"})
		if err := r.Meanwhile(closing, "FROM payment_order", func() { r.payable("O-1", 100) }); err != nil {
			t.Fatal(err)
		}
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
		if got := r.attempt(tradetest.User(buyer), "O-1"); got.Status != http.StatusConflict {
			t.Errorf("an attempt to pay what was told to be closed: %d %s", got.Status, got.Body)
		}
	})
}

func TestAClosingThatMeetsAnAttemptToPayHasItClosedFirst(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		closing := r.Event(trade.OrderClosing, "O-1", 3, trade.Closing{OrderNo: "O-1", Reason: "timeout"})
		err := r.Meanwhile(closing, "FROM payment_order", func() {
			r.payable("O-1", 100)
			r.intent("O-1")
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantState("O-1", "CLOSING")
		r.wantEvents(map[string]int{trade.PaymentClosed: 0})
		r.settle()
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
	})
}

// A payment that was applied by the other instance between the look and the move stays; the closing has nothing to close.
func TestAClosingThatMeetsAPaymentLeavesIt(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		closing := r.Event(trade.OrderClosing, "O-1", 3, trade.Closing{OrderNo: "O-1", Reason: "timeout"})
		err := r.Meanwhile(closing, "FROM payment_order", func() {
			r.buy(r.intent("O-1"), simulate.PayOptions{})
			r.deliver()
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantState("O-1", "PAID")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.PaymentClosed: 0})
	})
}

// Refunds of many orders and many of one, at once: what is reserved and refunded never exceeds what was paid.
func TestRefundsAtOnceNeverExceedWhatWasPaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 1000)
		twin := r.Twin()
		var all sync.WaitGroup
		for i := range 32 {
			no := "RF-" + string(rune('A'+i))
			all.Go(func() {
				bench := r.Bench
				if i%2 == 1 {
					bench = twin
				}
				e := r.Event(trade.RefundApproved, "O-1", 0, trade.Refund{
					RefundNo: no, OrderNo: "O-1", UserID: buyer, Currency: "CNY", Channel: standard, Amount: 300, Cash: 300,
				})
				e.Key = convergo.Key("RefundApproved:" + no)
				if err := tradetest.Again(func() error { _, err := bench.Deliver(e); return err }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := r.Int("SELECT refund_reserved FROM payment_order WHERE order_no = 'O-1'"); n != 900 {
			t.Errorf("%d reserved of 1000", n)
		}
		r.wantEvents(map[string]int{trade.PaymentRefundFailed: 29})
		r.settle()
		if v := r.view("O-1"); v.Refunded != 900 {
			t.Errorf("%d refunded", v.Refunded)
		}
		r.Clock.Advance(time.Hour)
		r.RunCalls()
		r.wantEvents(map[string]int{trade.PaymentRefunded: 3, trade.PaymentRefundFailed: 29})
	})
}
