package payment_test

import (
	"net/http"
	"testing"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB32RefundAndFinishNoticesAreNoNewPayments(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) { otherKinds(t, db) })
}

func TestReport36ANoticeIsUnderstoodByItsKind(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) { otherKinds(t, db) })
}

// otherKinds: an order is paid and refunded, and the channel goes on to notify about the same payment, each time under a new
// notice's number: that it was refunded, closed because all of it was, finished months later.
func otherKinds(t *testing.T, db tradetest.Database) {
	t.Helper()
	r := newRig(t, db)
	transaction := r.paid("O-102", 5000)
	tell := func(id, kind string, amount int64) {
		t.Helper()
		n := notice("O-102-1", transaction, amount)
		n.Type = kind
		if got := r.notify(id, asJSON(t, n)); got.Status != http.StatusNoContent {
			t.Errorf("%s: %d %s", kind, got.Status, got.Body)
		}
	}
	r.refund("O-102", "O-102-R1", 2000)
	r.settle()
	tell("msg_r1", "refund.succeeded", 2000)
	r.refund("O-102", "O-102-R2", 3000)
	r.settle()
	tell("msg_r2", "refund.succeeded", 5000)
	tell("msg_c", "payment.closed", 5000)
	tell("msg_f", "payment.finished", 5000)
	tell("msg_s", "payment.succeeded", 5000) // the payment itself once more
	r.settle()
	r.wantState("O-102", "PAID")
	if v := r.view("O-102"); v.Refunded != 5000 || v.RefundReserved != 0 {
		t.Errorf("%+v", v)
	}
	if paid, back, n := r.billed(transaction); paid != 5000 || back != 5000 || n != 2 {
		t.Errorf("paid %d, back %d in %d", paid, back, n)
	}
	r.wantEvents(map[string]int{
		trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1, trade.PaymentRefunded: 2, trade.PaymentClosed: 0, trade.ReceiptRefunded: 0,
	})
}
