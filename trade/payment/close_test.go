package payment_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestReport11BeforeTheOrderIsClosedTheChannelIs(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		first, second := r.intent("O-1"), r.intent("O-1")
		r.closing("O-1")
		r.wantState("O-1", "CLOSING")
		r.wantEvents(map[string]int{trade.PaymentClosed: 0})
		r.settle()
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
		for _, i := range []payment.Intent{first, second} {
			if _, err := r.world.Pay(context.Background(), i.CashierURL, simulate.PayOptions{}); !errors.Is(err, simulate.ErrNotPayable) {
				t.Errorf("%s can still be paid: %v", i.TradeNo, err)
			}
		}
		if got := r.attempt(tradetest.User(buyer), "O-1"); got.Status != http.StatusConflict {
			t.Errorf("a new attempt: %d %s", got.Status, got.Body)
		}
	})
}

func TestReport11AlreadyPaidAtTheChannelTakesThePayPath(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		p := r.buy(intent, simulate.PayOptions{}) // its notice is on the way
		r.closing("O-1")
		r.settle()
		if r.wire.closes != 0 {
			t.Errorf("it was asked to close %d times although it had said that the trade is paid", r.wire.closes)
		}
		r.wantState("O-1", "PAID")
		r.wantClass(p.Transaction, trade.Apply, "APPLIED")
		r.deliver()
		r.settle()
		r.wantClass(p.Transaction, trade.Apply, "APPLIED")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1, trade.PaymentClosed: 0, trade.ReceiptRefunded: 0})
	})
}

func TestReport11PaidBetweenTheQuestionAndTheCloseTakesThePayPathToo(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.wire.onClose = func() error { r.buy(intent, simulate.PayOptions{}); return nil }
		r.closing("O-1")
		r.settle()
		r.wantState("O-1", "PAID")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.PaymentClosed: 0})
	})
}

func TestAnUnknownAnswerLeavesItClosingAndIsAskedAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for name, verdict := range map[string]func(error) error{
			"a time-out": func(err error) error { return err }, "an outage": convergo.Unreachable, "a refusal to close": convergo.Permanent,
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, db)
				r.payable("O-1", 100)
				r.intent("O-1")
				r.wire.onClose = func() error { return verdict(errors.New("no")) }
				r.closing("O-1")
				r.RunCalls()
				r.Clock.Advance(48 * time.Hour)
				r.RunCalls()
				r.wantState("O-1", "CLOSING")
				r.wantEvents(map[string]int{trade.PaymentClosed: 0})
				if r.wire.closes != 2 {
					t.Errorf("asked to close %d times", r.wire.closes)
				}
				r.wire.onClose = nil
				r.Clock.Advance(48 * time.Hour)
				r.RunCalls()
				r.wantState("O-1", "CLOSED")
				r.wantEvents(map[string]int{trade.PaymentClosed: 1})
			})
		}
	})
}

func TestAnOrderThatWasNeverPayableIsClosedAtOnceAndStaysSo(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.closing("O-1")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
		r.payable("O-1", 100) // it was on its way
		r.wantState("O-1", "CLOSED")
		r.closing("O-1")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
	})
}

func TestAnOrderWithoutAnAttemptIsClosedAtOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		r.closing("O-1")
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1})
	})
}

func TestAWrongAmountWhileClosingDoesNotKeepTheOrderOpen(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		p := r.buy(r.intent("O-1"), simulate.PayOptions{Amount: 1})
		r.closing("O-1")
		r.settle()
		r.wantState("O-1", "CLOSED")
		r.wantClass(p.Transaction, trade.WrongAmount, "REFUNDED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1, trade.PaymentSucceeded: 0})
	})
}

func TestATradePaidToAnotherMerchantDoesNotKeepTheOrderOpen(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		p := r.buy(intent, simulate.PayOptions{Merchant: "somebody-else"})
		r.closing("O-1")
		r.settle()
		r.wantClass(p.Transaction, trade.WrongMerchant, "HELD")
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentClosed: 1, trade.PaymentSucceeded: 0, trade.ReceiptRecorded: 0})
	})
}

func TestCaseB33MoneyAfterTheCloseGoesBackOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-103", 8800)
		intent := r.intent("O-103")
		r.closing("O-103")
		r.settle()
		p := r.buy(intent, simulate.PayOptions{Force: true})
		r.deliver()
		r.settle()
		r.wantClass(p.Transaction, trade.Late, "REFUNDED")
		r.wantState("O-103", "CLOSED")
		if paid, back, n := r.billed(p.Transaction); paid != 8800 || back != 8800 || n != 1 {
			t.Errorf("paid %d, back %d in %d refunds", paid, back, n)
		}
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 0, trade.ReceiptRecorded: 1, trade.ReceiptRefunded: 1, trade.PaymentClosed: 1})
		cases := tradetest.Into[payment.CaseList](t, r.Get(tradetest.Operator(), "/payments/cases?kind=LATE"))
		if len(cases.Cases) != 1 || cases.Cases[0].State != "REFUNDED" || cases.Cases[0].OrderNo != "O-103" {
			t.Errorf("cases %+v", cases)
		}
	})
}

func TestReport08ALatePaymentIsKeptAsAReceiptAndNoDuplicate(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.closing("O-1")
		r.settle()
		r.buy(intent, simulate.PayOptions{Force: true})
		r.deliver()
		if v := r.view("O-1"); len(v.Receipts) != 1 || v.Receipts[0].Class != trade.Late || v.Receipts[0].State != "REFUNDING" {
			t.Errorf("%+v", v.Receipts)
		}
	})
}

func TestReport09AClosedOrderNeverBecomesPaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.closing("O-1")
		r.settle()
		for i := range 3 {
			r.notify("msg_1", asJSON(t, notice(intent.TradeNo, fmt.Sprintf("T-%d", i), 100)))
		}
		r.wantState("O-1", "CLOSED")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 0, trade.ReceiptRecorded: 3})
	})
}

// TestCaseB33CloseAgainstPayTheSameMoment: 1,000 orders are closed and paid at once; each ends either paid, with the close
// without effect, or closed, with the money back. The channel takes the money whatever its own books say (Force), so that
// the late half really happens.
func TestCaseB33CloseAgainstPayTheSameMoment(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		rounds := 1000
		if db.Locks {
			rounds = 250 // on each of three
		}
		bodies := make([][]byte, rounds)
		for i := range rounds {
			no := fmt.Sprintf("O-%d", i)
			r.payable(no, 100)
			bodies[i] = asJSON(t, notice(no+"-1", "T-"+no, 100))
			if i%2 == 0 {
				r.intent(no)
			} else { // no attempt is known to be open: the close is immediate
				r.insertClosedIntent(no)
			}
		}
		var all sync.WaitGroup
		turns := make(chan func(), 16)
		for range 8 {
			all.Go(func() {
				for turn := range turns {
					turn()
				}
			})
		}
		for i := range rounds {
			no := fmt.Sprintf("O-%d", i)
			pay := func() {
				if got := r.notify("msg_"+no, bodies[i]); got.Status != http.StatusNoContent {
					t.Errorf("%s: %d %s", no, got.Status, got.Body)
				}
			}
			shut := func() { r.closing(no) }
			if i%4 < 2 {
				pay, shut = shut, pay
			}
			turns <- pay
			turns <- shut
		}
		close(turns)
		all.Wait()
		paid := r.Int("SELECT COUNT(*) FROM payment_order o JOIN payment_receipt r ON r.order_no = o.order_no WHERE o.state = 'PAID' AND r.class = 'APPLY'")
		late := r.Int("SELECT COUNT(*) FROM payment_order o JOIN payment_receipt r ON r.order_no = o.order_no WHERE o.state = 'CLOSED' AND r.class = 'LATE'")
		if paid+late != int64(rounds) || paid == 0 || late == 0 {
			t.Errorf("%d paid, %d closed and late, of %d", paid, late, rounds)
		}
		r.wantEvents(map[string]int{trade.PaymentSucceeded: int(paid), trade.PaymentClosed: int(late), trade.ReceiptRecorded: rounds})
		if n := r.Int("SELECT COUNT(*) FROM outside_call WHERE kind = 'channel.refund'"); n != late {
			t.Errorf("%d refunds are scheduled for %d late payments", n, late)
		}
	})
}

// insertClosedIntent is an attempt whose close the channel has confirmed.
func (r *rig) insertClosedIntent(orderNo string) {
	r.T.Helper()
	r.Update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO payment_intent (trade_no, order_no, seq, channel, state, version, created_at, updated_at)
			VALUES (?, ?, 1, 'standard', 'CLOSED', 2, 1, 1)`, orderNo+"-1", orderNo)
		return err
	})
}

func TestReport01TheLoserOfARaceCompensatesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		p := r.buy(intent, simulate.PayOptions{})
		r.closing("O-1")
		// The notice and the close's own question find the same payment at the same moment.
		var both sync.WaitGroup
		both.Go(r.deliver)
		both.Go(r.RunCalls)
		both.Wait()
		r.settle()
		r.wantClass(p.Transaction, trade.Apply, "APPLIED")
		if _, back, n := r.billed(p.Transaction); back != 0 || n != 0 {
			t.Errorf("the good payment was refunded: %d in %d", back, n)
		}
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1, trade.ReceiptRefunded: 0})
	})
}
