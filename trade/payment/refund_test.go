package payment_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

var errTimeout = fmt.Errorf("%w: time-out", channel.ErrAmbiguous)

func TestARefundGoesToTheChannelAndIsTold(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		transaction := r.paid("O-1", 10000)
		r.refund("O-1", "O-1-R1", 4000)
		if v := r.view("O-1"); v.RefundReserved != 4000 || v.Refunded != 0 || v.Refunds[0].State != "RESERVED" {
			t.Errorf("reserved: %+v", v)
		}
		r.settle()
		if v := r.view("O-1"); v.RefundReserved != 0 || v.Refunded != 4000 || v.Refunds[0].State != "REFUNDED" || v.State != "PAID" {
			t.Errorf("done: %+v", v)
		}
		told := tradetest.Payloads[trade.RefundPaid](r.Bench, trade.PaymentRefunded)
		if len(told) != 1 || told[0].RefundNo != "O-1-R1" || told[0].Amount != 4000 || told[0].Channel != standard || told[0].ChannelID == "" {
			t.Errorf("%+v", told)
		}
		if _, back, n := r.billed(transaction); back != 4000 || n != 1 {
			t.Errorf("back %d in %d", back, n)
		}
	})
}

func TestCaseB35RefundsThatTogetherExceedThePayment(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 10000)
		var both sync.WaitGroup
		for _, no := range []string{"RF-1", "RF-2"} {
			both.Go(func() { r.refund("O-1", no, 6000) })
		}
		both.Wait()
		r.settle()
		if len(r.wire.refunds) != 1 {
			t.Errorf("the channel was called %d times", len(r.wire.refunds))
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1, trade.PaymentRefundFailed: 1})
		failed := tradetest.Payloads[trade.RefundPaid](r.Bench, trade.PaymentRefundFailed)
		if len(failed) != 1 || !strings.Contains(failed[0].Reason, "4000 left") {
			t.Errorf("%+v", failed)
		}
		for _, cash := range []int64{-100} {
			if err := r.tryRefund("O-1", "RF-3", cash); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%d: %v", cash, err)
			}
		}
		r.refund("O-1", "RF-4", 0) // nothing in money: nothing to do
		r.refund("O-1", "RF-1", 6000)
		r.refund("O-1", "RF-2", 6000)
		r.settle()
		if v := r.view("O-1"); v.Refunded != 6000 || v.RefundReserved != 0 || len(v.Refunds) != 2 || len(r.wire.refunds) != 1 {
			t.Errorf("%+v, refunds sent %v", v, r.wire.refunds)
		}
	})
}

func TestReport04TwoRefundsOfSixtyOfAHundred(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		transaction := r.paid("O-1", 100)
		for range 4 { // each in its own race
			var both sync.WaitGroup
			for _, no := range []string{"RF-1", "RF-2"} {
				both.Go(func() { r.refund("O-1", no, 60) })
			}
			both.Wait()
		}
		r.settle()
		if _, back, n := r.billed(transaction); back != 60 || n != 1 {
			t.Errorf("back %d in %d", back, n)
		}
	})
}

func TestReport02AfterATimeOutTheChannelIsAskedAndTheKeyStays(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for name, hook := range map[string]func(n int, _ channel.RefundRequest) (error, error){
			"the answer was lost":  func(n int, _ channel.RefundRequest) (error, error) { return nil, first(n, errTimeout) },
			"the request was lost": func(n int, _ channel.RefundRequest) (error, error) { return first(n, errTimeout), nil },
			"the channel was not there": func(n int, _ channel.RefundRequest) (error, error) {
				return first(n, convergo.Unreachable(errors.New("dial"))), nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, db)
				transaction := r.paid("O-1", 100)
				r.wire.onRefund = hook
				r.refund("O-1", "RF-1", 100)
				r.settle()
				for _, sent := range r.wire.refunds {
					if sent.RefundNo != "RF-1" {
						t.Errorf("another key: %+v", sent)
					}
				}
				if _, back, n := r.billed(transaction); back != 100 || n != 1 {
					t.Errorf("back %d in %d", back, n)
				}
				r.wantEvents(map[string]int{trade.PaymentRefunded: 1, trade.PaymentRefundFailed: 0})
				if strings.Contains(name, "lost") && r.wire.asked == 0 {
					t.Error("nobody asked the channel")
				}
			})
		}
	})
}

func TestWhileTheQuestionIsNotAnsweredNothingIsSentAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 100)
		r.wire.onRefund = func(n int, _ channel.RefundRequest) (error, error) { return first(n, errTimeout), nil }
		r.wire.onStatus = func() error { return errTimeout }
		r.refund("O-1", "RF-1", 100)
		for range 10 {
			r.RunCalls()
			r.Clock.Advance(time.Hour)
		}
		if len(r.wire.refunds) != 1 || r.wire.asked < 5 {
			t.Errorf("sent %v, asked %d times", r.wire.refunds, r.wire.asked)
		}
		r.wire.onStatus = nil
		r.settle()
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1})
	})
}

func first(n int, err error) error {
	if n == 1 {
		return err
	}
	return nil
}

func TestReport03ADefiniteRefusalIsTriedWithANewKeyUpToABound(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{}, payment.Config{RefundAttempts: 3})
		r.paid("O-1", 100)
		refusal := convergo.Permanent(&channel.RefusedError{Status: 422, Code: channel.CodeLimit, Detail: "not today"})
		r.wire.onRefund = func(n int, _ channel.RefundRequest) (error, error) {
			if n <= 2 {
				return refusal, nil
			}
			return nil, nil
		}
		r.refund("O-1", "RF-1", 60)
		r.settle()
		var keys []string
		for _, sent := range r.wire.refunds {
			keys = append(keys, sent.RefundNo)
		}
		if strings.Join(keys, " ") != "RF-1 RF-1-2 RF-1-3" {
			t.Errorf("keys %v", keys)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1, trade.PaymentRefundFailed: 0})

		r.wire.onRefund = func(int, channel.RefundRequest) (error, error) { return refusal, nil }
		r.refund("O-1", "RF-9", 40)
		r.settle()
		if len(r.wire.refunds) != 6 {
			t.Errorf("sent %d times in all", len(r.wire.refunds))
		}
		if v := r.view("O-1"); v.RefundReserved != 0 || v.Refunded != 60 || v.Refunds[1].State != "FAILED" {
			t.Errorf("%+v", v)
		}
		failed := tradetest.Payloads[trade.RefundPaid](r.Bench, trade.PaymentRefundFailed)
		if len(failed) != 1 || failed[0].RefundNo != "RF-9" || !strings.Contains(failed[0].Reason, "not today") {
			t.Errorf("%+v", failed)
		}
		cases := tradetest.Into[payment.CaseList](t, r.Get(tradetest.Operator(), "/payments/cases"))
		if len(cases.Cases) != 1 || cases.Cases[0].Kind != payment.CaseRefundFailed || cases.Cases[0].RefundNo != "RF-9" {
			t.Errorf("cases %+v", cases)
		}
	})
}

func TestUnappliedMoneyThatTheChannelRefusesToTakeBackIsAPersonsCase(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{}, payment.Config{RefundAttempts: 2})
		r.payable("O-1", 100)
		intent := r.intent("O-1")
		r.wire.onRefund = func(int, channel.RefundRequest) (error, error) {
			return convergo.Permanent(&channel.RefusedError{Status: 422, Code: channel.CodeLimit}), nil
		}
		p := r.buy(intent, simulate.PayOptions{Amount: 1})
		r.deliver()
		r.settle()
		r.wantClass(p.Transaction, trade.WrongAmount, "REFUND_FAILED")
		if len(r.wire.refunds) != 2 || r.wire.refunds[1].RefundNo != "RR2:standard:"+p.Transaction {
			t.Errorf("%v", r.wire.refunds)
		}
		r.wantEvents(map[string]int{trade.ReceiptRefunded: 0})
	})
}

func TestReport05AgeDecidesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		transaction := r.paid("O-1", 100)
		r.wire.onRefund = func(n int, _ channel.RefundRequest) (error, error) { return errTimeout, nil }
		r.refund("O-1", "RF-1", 100)
		for range 30 {
			r.RunCalls()
			r.Clock.Advance(24 * time.Hour)
		}
		if v := r.view("O-1"); v.RefundReserved != 100 || v.Refunds[0].State != "RESERVED" {
			t.Errorf("after a month: %+v", v)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 0, trade.PaymentRefundFailed: 0})
		r.wire.onRefund = nil
		r.Clock.Advance(24 * time.Hour)
		r.settle()
		if _, back, n := r.billed(transaction); back != 100 || n != 1 {
			t.Errorf("back %d in %d", back, n)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1})
	})
}

func TestReport23ADecidedRefundIsNotAMadeOne(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 100)
		r.refund("O-1", "RF-1", 100)
		// The decision is on record before anybody has called the channel, and says nothing of the outcome.
		if n := r.Int("SELECT COUNT(*) FROM outside_call WHERE call_key = 'RF-1' AND state = 0"); n != 1 || len(r.wire.refunds) != 0 {
			t.Errorf("%d calls wait, %d were made", n, len(r.wire.refunds))
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 0})
	})
}

func TestReport27AnUnknownAttemptHasOneOwner(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		transaction := r.paid("O-1", 100)
		r.wire.onRefund = func(n int, _ channel.RefundRequest) (error, error) { return nil, first(n, errTimeout) }
		r.refund("O-1", "RF-1", 100)
		r.RunCalls() // its outcome is unknown now
		for i := range 5 {
			e := r.Event(trade.RefundApproved, "O-1", 0, trade.Refund{RefundNo: "RF-1", OrderNo: "O-1", UserID: buyer, Currency: "CNY", Cash: 100})
			e.Key = convergo.Key(fmt.Sprintf("RefundApproved:again-%d", i)) // not even the inbox recognises it
			if _, err := r.Deliver(e); err != nil {
				t.Fatal(err)
			}
		}
		r.settle()
		if _, back, n := r.billed(transaction); back != 100 || n != 1 || len(r.wire.refunds) != 1 {
			t.Errorf("back %d in %d, sent %v", back, n, r.wire.refunds)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1})
	})
}

func TestReport34TheSecondWhoBringsAResultFindsItDone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 100)
		r.refund("O-1", "RF-1", 60)
		var claimed outside.Claimed
		r.Update(func(ctx context.Context, tx convergo.Tx) error {
			claimed.Kind = "channel.refund"
			return tx.QueryRowContext(ctx, "SELECT call_key, payload FROM outside_call WHERE call_key = 'RF-1'").Scan(&claimed.Key, &claimed.Payload)
		})
		r.settle()
		result := asJSON(t, channel.Refund{RefundNo: "RF-1", RefundID: "other", Amount: 60, State: channel.RefundSucceeded})
		handler := r.Service.Calls()["channel.refund"]
		r.Update(func(ctx context.Context, tx convergo.Tx) error { return handler.Done(ctx, tx, claimed, result) })
		r.Update(func(ctx context.Context, tx convergo.Tx) error {
			return handler.Refused(ctx, tx, claimed, errors.New("late"))
		})
		r.settle()
		if v := r.view("O-1"); v.Refunded != 60 || v.RefundReserved != 0 || v.Refunds[0].State != "REFUNDED" || len(r.wire.refunds) != 1 {
			t.Errorf("%+v, sent %v", v, r.wire.refunds)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1, trade.PaymentRefundFailed: 0})
	})
}

func TestARefundOfAnOrderThatIsNotPaidFails(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		if err := r.tryRefund("O-9", "RF-0", 1); err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("an unknown order: %v", err)
		}
		r.payable("O-1", 100)
		r.refund("O-1", "RF-1", 1)
		failed := tradetest.Payloads[trade.RefundPaid](r.Bench, trade.PaymentRefundFailed)
		if len(failed) != 1 || !strings.Contains(failed[0].Reason, "OPEN") || len(r.wire.refunds) != 0 {
			t.Errorf("%+v", failed)
		}
	})
}

func TestCaseB36TheIntentsIdempotencyKey(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		body := map[string]string{"order_no": "O-1", "channel": standard}
		one := r.PostKey(tradetest.User(buyer), "/payments/intents", "k-1", body)
		again := r.PostKey(tradetest.User(buyer), "/payments/intents", "k-1", body)
		if one.Status != http.StatusCreated || again.Status != http.StatusCreated || string(one.Body) != string(again.Body) ||
			again.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%d %s, then %d %s", one.Status, one.Body, again.Status, again.Body)
		}
		other := map[string]string{"order_no": "O-2", "channel": standard}
		if got := r.PostKey(tradetest.User(buyer), "/payments/intents", "k-1", other); got.Status != http.StatusUnprocessableEntity {
			t.Errorf("the key with another body: %d %s", got.Status, got.Body)
		}
		if got := r.PostKey(tradetest.User("u-2"), "/payments/intents", "k-1", body); got.Status != http.StatusNotFound {
			t.Errorf("the key of another user is another key: %d %s", got.Status, got.Body)
		}
		if n := r.Int("SELECT COUNT(*) FROM payment_intent"); n != 1 {
			t.Errorf("%d intents", n)
		}
		if got := r.Do(tradetest.User(buyer), http.MethodPost, "/payments/intents", nil, body); got.Status != http.StatusBadRequest {
			t.Errorf("no key: %d", got.Status)
		}
	})
}

func TestAnAttemptNeedsAnOpenOrderInTimeAndAKnownChannel(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{}, payment.Config{MaxIntents: 2})
		r.payable("O-1", 100)
		post := func(orderNo, channelName string) tradetest.Response {
			return r.Post(tradetest.User(buyer), "/payments/intents", map[string]string{"order_no": orderNo, "channel": channelName})
		}
		if got := post("O-1", "other"); got.Status != http.StatusUnprocessableEntity || got.Problem().Field != "body.channel" {
			t.Errorf("unknown channel: %d %s", got.Status, got.Body)
		}
		if got := post("O-9", standard); got.Status != http.StatusNotFound {
			t.Errorf("unknown order: %d", got.Status)
		}
		r.intent("O-1")
		r.intent("O-1")
		if got := post("O-1", standard); got.Status != http.StatusConflict {
			t.Errorf("a third attempt of two: %d", got.Status)
		}
		r.payable("O-2", 100)
		r.Clock.Advance(30 * time.Minute)
		if got := post("O-2", standard); got.Status != http.StatusConflict || !strings.Contains(got.Problem().Detail, "over") {
			t.Errorf("too late: %d %s", got.Status, got.Body)
		}
		if got := r.attempt(tradetest.Operator(), "O-1"); got.Status != http.StatusForbidden {
			t.Errorf("an operator pays: %d", got.Status)
		}
	})
}

func TestTheCasesCanBePaged(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		for i := range 5 {
			r.Clock.Advance(time.Second)
			n := notice("x", fmt.Sprintf("T-%d", i), 100)
			n.Merchant = "m-2"
			r.notify("msg_1", asJSON(t, n))
		}
		var seen []string
		next := ""
		for {
			page := tradetest.Into[payment.CaseList](t, r.Get(tradetest.Operator(), "/payments/cases?limit=2&before="+next))
			for _, c := range page.Cases {
				seen = append(seen, c.Transaction)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		if strings.Join(seen, " ") != "T-4 T-3 T-2 T-1 T-0" {
			t.Errorf("seen %v", seen)
		}
		if got := r.Get(tradetest.Operator(), "/payments/cases?before=x"); got.Status != http.StatusUnprocessableEntity {
			t.Errorf("a bad cursor: %d", got.Status)
		}
	})
}

func TestTheStoryTellsTheMoneySide(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.paid("O-1", 100)
		r.refund("O-1", "O-1-R1", 100)
		r.settle()
		answer := r.Get(tradetest.Operator(), "/payment/story/O-1")
		story := tradetest.Into[trade.StoryAnswer](t, answer)
		var whats []string
		for _, e := range story.Entries {
			whats = append(whats, e.What)
		}
		text := strings.Join(whats, "\n")
		for _, want := range []string{
			"payment · → OPEN", "intent O-1-1 · → OPEN", "payment OPEN → PAID", "event PaymentSucceeded",
			"payment_refund O-1-R1 RESERVED → REFUNDED", "event PaymentRefunded",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
	})
}
