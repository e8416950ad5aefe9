package payment_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

func TestCaseB28TheCallbackThreeTimesAndTheBrowsersReturnPayOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-100", 8800)
		body := asJSON(t, notice(r.intent("O-100").TradeNo, "T-1", 8800))
		var all sync.WaitGroup
		statuses := make([]int, 4)
		for i := range 3 {
			all.Go(func() { statuses[i] = r.notify("msg_1", body).Status })
		}
		all.Go(func() { statuses[3] = r.Get(tradetest.User(buyer), "/payments/O-100").Status })
		all.Wait()
		for i, status := range statuses[:3] {
			if status != http.StatusNoContent {
				t.Errorf("callback %d: %d", i, status)
			}
		}
		if statuses[3] != http.StatusOK {
			t.Errorf("the browser's return: %d", statuses[3])
		}
		r.wantClass("T-1", trade.Apply, "APPLIED")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1, trade.ReceiptRefunded: 0})
		if n := r.Int("SELECT COUNT(*) FROM machine_transition WHERE machine = 'payment' AND to_state = 'PAID'"); n != 1 {
			t.Errorf("%d transitions to PAID", n)
		}
		if n := r.Int("SELECT deliveries FROM payment_receipt"); n != 3 {
			t.Errorf("deliveries %d", n)
		}
		paid := tradetest.Payloads[trade.Receipt](r.Bench, trade.PaymentSucceeded)[0]
		want := trade.Receipt{
			Channel: standard, Transaction: "T-1", TradeNo: "O-100-1", OrderNo: "O-100", UserID: buyer, Amount: 8800, Currency: "CNY",
			Class: trade.Apply,
		}
		if paid != want {
			t.Errorf("PaymentSucceeded %+v", paid)
		}
	})
}

func TestCaseB29ALateFailureUndoesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 10000)
		intent := r.intent("O-1")
		if _, err := r.world.Pay(context.Background(), intent.CashierURL, simulate.PayOptions{Decline: true}); err != nil {
			t.Fatal(err)
		}
		paid := r.buy(intent, simulate.PayOptions{})
		r.deliver()
		failure := notice(intent.TradeNo, "pi-A", 10000)
		failure.Type = channel.NoticeFailed
		if got := r.notify("msg_ev-31", asJSON(t, failure)); got.Status != http.StatusNoContent {
			t.Errorf("the late failure: %d %s", got.Status, got.Body)
		}
		failure.Transaction = paid.Transaction // even one about the very payment that succeeded
		if got := r.notify("msg_ev-32", asJSON(t, failure)); got.Status != http.StatusNoContent {
			t.Errorf("a failure of the good payment: %d %s", got.Status, got.Body)
		}
		r.wantState("O-1", "PAID")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1, trade.PaymentClosed: 0})
		if n := r.Int("SELECT COUNT(*) FROM payment_receipt WHERE class = 'IGNORED' AND state = 'IGNORED'"); n != 3 {
			t.Errorf("%d ignored notices are on record, want 3", n)
		}

		r.refund("O-1", "O-1-R1", 10000)
		r.settle()
		r.notify("msg_late", asJSON(t, notice(intent.TradeNo, paid.Transaction, 10000))) // "approved", after the full refund
		if v := r.view("O-1"); v.State != "PAID" || v.Refunded != 10000 {
			t.Errorf("after the late approval: %+v", v)
		}
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.PaymentRefunded: 1})
		if len(r.wire.refunds) != 1 {
			t.Errorf("refunds sent: %v", r.wire.refunds)
		}
	})
}

func TestAFailureThatComesFirstDoesNotHideTheSuccessOfTheSameTransaction(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		n := notice(r.intent("O-1").TradeNo, "T-1", 100)
		n.Type = channel.NoticeFailed
		r.notify("msg_1", asJSON(t, n))
		n.Type = channel.NoticePaid
		r.notify("msg_2", asJSON(t, n))
		r.wantState("O-1", "PAID")
	})
}

// TestCaseB30 goes through forms a to f; the class of each is what the design says, which in f is a wrong amount: this
// platform sends a partial payment back instead of keeping it.
func TestCaseB30TheCallbackIsNotTrusted(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		other := func(change func(*channel.Notice)) func(trade string) channel.Notice {
			return func(trade string) channel.Notice { n := notice(trade, "T-1", 10000); change(&n); return n }
		}
		for name, c := range map[string]struct {
			notice       func(trade string) channel.Notice
			class, state string
		}{
			"a amount 1":       {other(func(n *channel.Notice) { n.Amount = 1 }), trade.WrongAmount, "REFUNDING"},
			"b other currency": {other(func(n *channel.Notice) { n.Currency = "USD" }), trade.WrongAmount, "REFUNDING"},
			"c other merchant": {other(func(n *channel.Notice) { n.Merchant = "m-2" }), trade.WrongMerchant, "HELD"},
			"f part paid":      {other(func(n *channel.Notice) { n.Amount = 4000 }), trade.WrongAmount, "REFUNDING"},
			"too much":         {other(func(n *channel.Notice) { n.Amount = 10001 }), trade.WrongAmount, "REFUNDING"},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, db)
				r.payable("O-101", 10000)
				if got := r.notify("msg_1", asJSON(t, c.notice(r.intent("O-101").TradeNo))); got.Status != http.StatusNoContent {
					t.Errorf("%d %s", got.Status, got.Body)
				}
				r.wantClass("T-1", c.class, c.state)
				r.wantState("O-101", "OPEN")
				r.wantEvents(map[string]int{trade.PaymentSucceeded: 0})
				answer := r.Get(tradetest.Operator(), "/payments/cases")
				cases := tradetest.Into[payment.CaseList](t, answer)
				if len(cases.Cases) != 1 || cases.Cases[0].Kind != c.class || cases.Cases[0].Transaction != "T-1" {
					t.Errorf("cases %s", answer.Body)
				}
			})
		}
	})
}

func TestCaseB30DoubledFieldsAreRefusedBeforeUse(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-101", 10000)
		good := string(asJSON(t, notice(r.intent("O-101").TradeNo, "T-1", 10000)))
		for _, doubled := range []string{`"amount":10000,"amount":1`, `"amount":10000,"AMOUNT":1`} {
			body := strings.Replace(good, `"amount":10000`, doubled, 1)
			if got := r.notify("msg_1", []byte(body)); got.Status != http.StatusBadRequest || got.Problem().Field != "body" {
				t.Errorf("%s: %d %s", doubled, got.Status, got.Body)
			}
		}
		r.wantState("O-101", "OPEN")
		if n := r.Int("SELECT COUNT(*) FROM payment_receipt"); n != 0 {
			t.Errorf("%d receipts", n)
		}
	})
}

func TestCaseB30WithoutASignatureNothingIsWritten(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-101", 10000)
		body := asJSON(t, notice(r.intent("O-101").TradeNo, "T-1", 10000))
		signed := func(secret channel.Secret, at time.Time) http.Header {
			h := http.Header{}
			if err := channel.SetSignature(h, "msg_1", at, body, secret); err != nil {
				t.Fatal(err)
			}
			return h
		}
		for name, h := range map[string]http.Header{
			"none": {}, "forged": signed(channel.NewSecret(), r.Clock.Now()), "old": signed(r.secret, r.Clock.Now().Add(-6*time.Minute)),
			"from the future":   signed(r.secret, r.Clock.Now().Add(6*time.Minute)),
			"signed test probe": {"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {"1"}, "Webhook-Signature": {"WECHATPAY/SIGNTEST/x"}},
		} {
			if got := r.send(h, body); got.Status != http.StatusUnauthorized || strings.Contains(string(got.Body), "v1,") {
				t.Errorf("%s: %d %s", name, got.Status, got.Body)
			}
		}
		r.wantState("O-101", "OPEN")
		if n := r.Int("SELECT COUNT(*) FROM payment_receipt"); n != 0 {
			t.Errorf("%d receipts", n)
		}
		if got := r.send(signed(r.secret, r.Clock.Now()), body); got.Status != http.StatusNoContent {
			t.Errorf("the good one: %d %s", got.Status, got.Body)
		}
	})
}

func TestANoticeThatIsTooLongIsRefused(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		body := []byte(`{"x":"` + strings.Repeat("x", payment.MaxNotice) + `"}`)
		if got := r.notify("msg_1", body); got.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	})
}

func TestCaseB39TheBodyIsKeptByteForByte(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		sign := func(body []byte) string {
			h := hmac.New(sha256.New, []byte("demo-secret-1"))
			h.Write(body)
			return hex.EncodeToString(h.Sum(nil))
		}
		const want = "832409db374dea62305e2f4aa9321bd6f31591de8991680d590b7ee62f4172e7"
		if got := sign([]byte(`{"order":"O-77","note":"Tom & Jerry <gift>","z":1,"a":2}`)); got != want {
			t.Fatalf("the case's own figure: %s", got)
		}
		body := []byte(`{"note":"Tom & Jerry <gift>","z":1, "a":2,` + "\n" + `"ü":"\u0026 😀",` +
			strings.TrimPrefix(string(asJSON(t, notice("nobody's", "T-77", 100))), "{"))
		if got := r.notify("msg_1", body); got.Status != http.StatusNoContent {
			t.Fatalf("%d %s", got.Status, got.Body)
		}
		r.Clock.Advance(7 * 24 * time.Hour)
		var stored []byte
		err := r.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT body FROM payment_receipt WHERE transaction_id = 'T-77'").Scan(&stored)
		})
		if err != nil || string(stored) != string(body) || sign(stored) != sign(body) {
			t.Errorf("stored %q, %v", stored, err)
		}
		if got := r.notify("msg_1", stored); got.Status != http.StatusNoContent {
			t.Errorf("replayed a week later: %d %s", got.Status, got.Body)
		}
	})
}

func TestReport07TwoPaymentsOfOneOrderAreBothRecordedAndTheSecondGoesBack(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 8800)
		first, second := r.intent("O-1"), r.intent("O-1")
		one, two := r.buy(first, simulate.PayOptions{}), r.buy(second, simulate.PayOptions{})
		r.deliver()
		r.settle()
		winner, loser := one.Transaction, two.Transaction
		if r.view("O-1").Transaction == loser {
			winner, loser = loser, winner
		}
		r.wantClass(winner, trade.Apply, "APPLIED")
		r.wantClass(loser, trade.Second, "REFUNDED")
		if paid, back, n := r.billed(loser); paid != 8800 || back != 8800 || n != 1 {
			t.Errorf("the second: paid %d, back %d in %d refunds", paid, back, n)
		}
		if _, back, _ := r.billed(winner); back != 0 {
			t.Errorf("the first was refunded too: %d", back)
		}
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 2, trade.ReceiptRefunded: 1})
	})
}

func TestReport07WhenOneAttemptHasPaidTheOthersAreClosedAtTheChannel(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 8800)
		first, second := r.intent("O-1"), r.intent("O-1")
		r.buy(first, simulate.PayOptions{})
		r.deliver()
		r.settle()
		if _, err := r.world.Pay(context.Background(), second.CashierURL, simulate.PayOptions{}); !errors.Is(err, simulate.ErrNotPayable) {
			t.Errorf("the other attempt can still be paid: %v", err)
		}
		r.wantState("O-1", "PAID")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.PaymentClosed: 0})
	})
}

func TestReport07ASecondPaymentIsFoundEvenWhenItsNoticeNeverComes(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 8800)
		first, second := r.intent("O-1"), r.intent("O-1")
		p := r.buy(second, simulate.PayOptions{}) // its notice is not delivered
		r.notify("msg_1", asJSON(t, notice(first.TradeNo, "T-1", 8800)))
		r.settle()
		r.wantClass(p.Transaction, trade.Second, "REFUNDED")
		r.wantClass("T-1", trade.Apply, "APPLIED")
	})
}

func TestTransactionsThatDifferInCaseAreTwo(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.notify("msg_1", asJSON(t, notice(intent.TradeNo, "Pay-7f", 100)))
		r.notify("msg_2", asJSON(t, notice(intent.TradeNo, "pay-7F", 100)))
		r.wantClass("Pay-7f", trade.Apply, "APPLIED")
		r.wantClass("pay-7F", trade.Second, "REFUNDING")
		r.notify("msg_3", asJSON(t, notice("o-1-1", "T-9", 100)))
		r.wantClass("T-9", trade.UnknownOrder, "GRACE")
	})
}

func TestEightDeliveriesOfASecondPaymentGoBackOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{Copies: 8}, payment.Config{})
		r.payable("O-1", 8800)
		intent := r.intent("O-1")
		r.buy(intent, simulate.PayOptions{})
		r.buy(intent, simulate.PayOptions{Force: true})
		r.deliver()
		r.settle()
		r.deliver()
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 2, trade.ReceiptRefunded: 1})
		if n := r.Int("SELECT SUM(deliveries) FROM payment_receipt"); n != 16 {
			t.Errorf("deliveries %d", n)
		}
		if len(r.wire.refunds) != 1 || !strings.HasPrefix(r.wire.refunds[0].RefundNo, "RR:standard:TX") {
			t.Errorf("refunds %v", r.wire.refunds)
		}
	})
}

func TestARepeatThatSaysSomethingElseIsACaseAndChangesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.notify("msg_1", asJSON(t, notice(intent.TradeNo, "T-1", 100)))
		if got := r.notify("msg_2", asJSON(t, notice(intent.TradeNo, "T-1", 1))); got.Status != http.StatusNoContent {
			t.Errorf("%d", got.Status)
		}
		v := r.view("O-1")
		if v.PaidAmount != 100 || v.Receipts[0].Conflicts != 1 || v.Receipts[0].Deliveries != 2 {
			t.Errorf("%+v", v)
		}
		cases := tradetest.Into[payment.CaseList](t, r.Get(tradetest.Operator(), "/payments/cases?kind="+payment.CaseConflict))
		if len(cases.Cases) != 1 {
			t.Errorf("cases %+v", cases)
		}
	})
}

func TestReport10ADifficultyOfOursIsNeverAcknowledged(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		// Something else has taken the event's key, so the transaction cannot commit.
		r.Update(func(ctx context.Context, tx convergo.Tx) error {
			e := r.Event(trade.PaymentSucceeded, "O-1", 9, trade.Receipt{})
			e.Key = "PaymentSucceeded:O-1"
			return r.Deps.Outbox.Add(ctx, tx, e)
		})
		if got := r.notify("msg_1", asJSON(t, notice(intent.TradeNo, "T-1", 100))); got.Status != http.StatusInternalServerError {
			t.Errorf("%d %s", got.Status, got.Body)
		}
		if n := r.Int("SELECT COUNT(*) FROM payment_receipt"); n != 0 {
			t.Errorf("%d receipts", n)
		}
		r.wantState("O-1", "OPEN")
		r.wantEvents(map[string]int{trade.ReceiptRecorded: 0})
	})
}

func TestReport24ANoticeThatOvertakesItsOrderIsAppliedLater(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		if got := r.notify("msg_1", asJSON(t, notice("O-1-1", "T-1", 100))); got.Status != http.StatusNoContent {
			t.Fatalf("%d", got.Status)
		}
		r.wantClass("T-1", trade.UnknownOrder, "GRACE")
		r.wantEvents(map[string]int{trade.ReceiptRecorded: 0})
		r.payable("O-1", 100)
		r.intent("O-1") // O-1-1
		r.Clock.Advance(29 * time.Second)
		r.RunCalls()
		r.wantClass("T-1", trade.UnknownOrder, "GRACE")
		r.Clock.Advance(time.Second)
		r.RunCalls()
		r.wantClass("T-1", trade.Apply, "APPLIED")
		r.wantState("O-1", "PAID")
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1})
		r.notify("msg_1", asJSON(t, notice("O-1-1", "T-1", 100))) // a redelivery after it
		r.wantEvents(map[string]int{trade.PaymentSucceeded: 1, trade.ReceiptRecorded: 1})
	})
}

func TestAPaymentForNobodysTradeGoesBackAfterTheGracePeriod(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		p := r.buy(r.intent("O-1"), simulate.PayOptions{TradeNo: "nobody's"})
		r.deliver()
		r.RunCalls()
		r.wantClass(p.Transaction, trade.UnknownOrder, "GRACE")
		r.Clock.Advance(30 * time.Second)
		r.settle()
		r.wantClass(p.Transaction, trade.UnknownOrder, "REFUNDED")
		r.wantState("O-1", "OPEN")
		recorded := tradetest.Payloads[trade.Receipt](r.Bench, trade.ReceiptRecorded)
		if len(recorded) != 1 || recorded[0].OrderNo != "" || recorded[0].TradeNo != "nobody's" || recorded[0].Class != trade.UnknownOrder {
			t.Errorf("%+v", recorded)
		}
		if _, back, n := r.billed(p.Transaction); back != 100 || n != 1 {
			t.Errorf("back %d in %d", back, n)
		}
	})
}

func TestReport32NobodyMarksAnOrderPaidFromABrowser(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		body := asJSON(t, notice(r.intent("O-1").TradeNo, "T-1", 100))
		if got := r.Post(tradetest.User(buyer), "/payments/notify/"+standard, body); got.Status != http.StatusUnauthorized {
			t.Errorf("a buyer's own notice: %d", got.Status)
		}
		if got := r.Post(tradetest.Operator(), "/payments/notify/"+standard, body); got.Status != http.StatusUnauthorized {
			t.Errorf("an operator's: %d", got.Status)
		}
		for _, path := range []string{"/payments/O-1", "/payments/intents/O-1-1"} {
			if got := r.Get(tradetest.User("u-2"), path); got.Status != http.StatusNotFound {
				t.Errorf("another user reads %s: %d %s", path, got.Status, got.Body)
			}
			if got := r.Get(trade.Principal{}, path); got.Status != http.StatusUnauthorized {
				t.Errorf("nobody reads %s: %d", path, got.Status)
			}
		}
		if got := r.attempt(tradetest.User("u-2"), "O-1"); got.Status != http.StatusNotFound {
			t.Errorf("another user pays: %d %s", got.Status, got.Body)
		}
		if got := r.Get(tradetest.User(buyer), "/payments/cases"); got.Status != http.StatusForbidden {
			t.Errorf("a user reads the cases: %d", got.Status)
		}
		r.wantState("O-1", "OPEN")
	})
}
