package payment_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

var errLimit = convergo.Permanent(&channel.RefusedError{Status: 422, Code: channel.CodeLimit, Detail: "no balance left"})

// stuck is unapplied money that the channel would not take back.
func (r *rig) stuck(orderNo string) (transaction string) {
	r.T.Helper()
	r.payable(orderNo, 100)
	p := r.buy(r.intent(orderNo), simulate.PayOptions{Amount: 1})
	r.deliver()
	r.settle()
	r.wantClass(p.Transaction, trade.WrongAmount, "REFUND_FAILED")
	return p.Transaction
}

func TestUnappliedMoneyThatCouldNotGoBackGoesBackWhenTheOperatorAsksAgain(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{}, payment.Config{RefundAttempts: 2})
		refuse := true
		r.wire.onRefund = func(int, channel.RefundRequest) (error, error) {
			if refuse {
				return errLimit, nil
			}
			return nil, nil
		}
		transaction := r.stuck("O-1")
		again := func(who trade.Principal, transaction string) tradetest.Response {
			return r.Post(who, "/payments/receipt-refunds", map[string]string{"channel": standard, "transaction": transaction})
		}
		if got := again(tradetest.User(buyer), transaction); got.Status != http.StatusForbidden {
			t.Errorf("the buyer asks: %d", got.Status)
		}
		if got := again(tradetest.Operator(), "T-none"); got.Status != http.StatusNotFound {
			t.Errorf("an unknown payment: %d %s", got.Status, got.Body)
		}
		if got := again(tradetest.Operator(), transaction); got.Status != http.StatusAccepted {
			t.Fatalf("asked again: %d %s", got.Status, got.Body)
		}
		if got := again(tradetest.Operator(), transaction); got.Status != http.StatusConflict {
			t.Errorf("asked again while it is on its way: %d %s", got.Status, got.Body)
		}
		r.settle() // the channel still refuses
		r.wantClass(transaction, trade.WrongAmount, "REFUND_FAILED")
		refuse = false
		if got := again(tradetest.Operator(), transaction); got.Status != http.StatusAccepted {
			t.Fatalf("asked once more: %d %s", got.Status, got.Body)
		}
		r.settle()
		r.wantClass(transaction, trade.WrongAmount, "REFUNDED")
		var keys []string
		for _, sent := range r.wire.refunds {
			keys = append(keys, strings.TrimSuffix(sent.RefundNo, ":standard:"+transaction))
		}
		if !slices.Equal(keys, []string{"RR", "RR2", "RR3", "RR4"}) {
			t.Errorf("keys %v", keys)
		}
		if _, back, n := r.billed(transaction); back != 1 || n != 1 {
			t.Errorf("back %d in %d", back, n)
		}
		r.wantEvents(map[string]int{trade.ReceiptRefunded: 1})
		if got := again(tradetest.Operator(), transaction); got.Status != http.StatusConflict {
			t.Errorf("asked again when it is back: %d %s", got.Status, got.Body)
		}
	})
}

// The first request is slow: it times out, the channel has no trace of it when it is asked, refuses the repeat, and carries
// the first one out all the same. A new key then must not be a second refund.
func TestReport02BeforeANewKeyTheChannelIsAskedAboutTheOldOnes(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		transaction := r.paid("O-1", 100)
		r.wire.onRefund = func(n int, q channel.RefundRequest) (error, error) {
			switch n {
			case 1:
				return errTimeout, nil
			case 2:
				if _, err := r.wire.API.Refund(t.Context(), q); err != nil { // the slow one arrives
					t.Error(err)
				}
				return errLimit, nil
			}
			return nil, nil
		}
		r.refund("O-1", "RF-1", 40)
		r.settle()
		if _, back, n := r.billed(transaction); back != 40 || n != 1 {
			t.Errorf("back %d in %d refunds, want 40 in one", back, n)
		}
		if v := r.view("O-1"); v.Refunded != 40 || v.RefundReserved != 0 || v.Refunds[0].State != "REFUNDED" {
			t.Errorf("%+v", v)
		}
		r.wantEvents(map[string]int{trade.PaymentRefunded: 1, trade.PaymentRefundFailed: 0})
	})
}

func TestNoCaseIsLostBetweenTwoPages(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		wrong := func(i int) {
			n := notice("x", fmt.Sprintf("T-%d", i), 100)
			n.Merchant = "m-2"
			r.notify("msg_1", asJSON(t, n))
		}
		wrong(0)
		r.Clock.Advance(time.Second)
		for i := range 2 { // of one moment
			wrong(1 + i)
		}
		r.Clock.Advance(time.Second)
		wrong(3)
		r.notify("msg_2", asJSON(t, notice("nobody-1", "T-9", 100))) // of another kind
		for _, c := range []struct {
			query string
			want  int
		}{{"kind=WRONG_MERCHANT&limit=2", 4}, {"limit=3", 5}} {
			seen := map[string]bool{}
			next := ""
			for range 10 {
				page := tradetest.Into[payment.CaseList](t, r.Get(tradetest.Operator(), "/payments/cases?"+c.query+"&before="+next))
				if len(page.Cases) == 0 {
					t.Errorf("%s: an empty page before %q", c.query, next)
				}
				for _, one := range page.Cases {
					seen[one.Transaction] = true
				}
				if next = page.Next; next == "" {
					break
				}
			}
			if len(seen) != c.want || next != "" {
				t.Errorf("%s: seen %v, then %q", c.query, seen, next)
			}
		}
	})
}

func TestABuyerIsNotToldWhyTheChannelRefusedTheShop(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRigWith(t, db, simulate.Faults{}, payment.Config{RefundAttempts: 1})
		r.paid("O-1", 100)
		r.wire.onRefund = func(int, channel.RefundRequest) (error, error) { return errLimit, nil }
		r.refund("O-1", "RF-1", 40)
		r.settle()
		if got := r.Get(tradetest.User(buyer), "/payments/O-1"); got.Status != http.StatusOK || strings.Contains(string(got.Body), "balance") {
			t.Errorf("the buyer sees %d %s", got.Status, got.Body)
		}
		if story := r.Get(tradetest.Operator(), "/payment/story/O-1"); strings.Contains(string(story.Body), "balance") {
			t.Errorf("the story, which the buyer may read: %s", story.Body)
		}
		if v := r.view("O-1"); !strings.Contains(v.Refunds[0].Reason, "no balance left") {
			t.Errorf("the operator sees %+v", v.Refunds)
		}
	})
}

// lying is a channel whose answers are about something else than what it was asked.
type lying struct {
	payment.API
	refund func(channel.Refund) channel.Refund
	trade  func(channel.Trade) channel.Trade
}

func (l lying) Refund(ctx context.Context, r channel.RefundRequest) (channel.Refund, error) {
	done, err := l.API.Refund(ctx, r)
	if l.refund != nil {
		done = l.refund(done)
	}
	return done, err
}

func (l lying) RefundStatus(ctx context.Context, no string) (channel.Refund, error) {
	done, err := l.API.RefundStatus(ctx, no)
	if l.refund != nil && err == nil {
		done = l.refund(done)
	}
	return done, err
}

func (l lying) Trade(ctx context.Context, no string) (channel.Trade, error) {
	t, err := l.API.Trade(ctx, no)
	if l.trade != nil && err == nil {
		t = l.trade(t)
	}
	return t, err
}

func TestARefundOfAnotherAmountOrNumberIsNotTakenForOurs(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		for name, lie := range map[string]func(channel.Refund) channel.Refund{
			"less": func(r channel.Refund) channel.Refund { r.Amount--; return r }, "another currency": func(r channel.Refund) channel.Refund { r.Currency = "USD"; return r },
			"another number": func(r channel.Refund) channel.Refund { r.RefundNo = "RF-0"; return r },
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, db)
				r.paid("O-1", 100)
				honest := r.wire.API
				r.wire.API = lying{API: honest, refund: lie}
				r.refund("O-1", "RF-1", 40)
				r.RunCalls()
				r.wantEvents(map[string]int{trade.PaymentRefunded: 0, trade.PaymentRefundFailed: 0})
				if v := r.view("O-1"); v.RefundReserved != 40 || v.Refunded != 0 {
					t.Errorf("%+v", v)
				}
				r.wire.API = honest
				r.settle()
				r.wantEvents(map[string]int{trade.PaymentRefunded: 1})
			})
		}
	})
}

func TestATradeOfAnotherNumberPaysNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.payable("O-1", 100)
		r.buy(r.intent("O-1"), simulate.PayOptions{})
		honest := r.wire.API
		r.wire.API = lying{API: honest, trade: func(n channel.Trade) channel.Trade { n.TradeNo = "O-2-1"; return n }}
		r.closing("O-1")
		r.RunCalls()
		r.wantState("O-1", "CLOSING")
		r.wire.API = honest
		r.settle()
		r.wantState("O-1", "PAID")
	})
}

func TestTheListsOfCasesReadOnlyCases(t *testing.T) {
	r := newRig(t, databases.SQLite())
	set, err := sqltext.Load(os.DirFS("."), "queries.sql", sqltext.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	for name, index := range map[string]string{
		"CasesOfClass": "payment_receipt_class", "ConflictCases": "payment_receipt_conflicts", "RefundCases": "payment_refund_state",
	} {
		statement := set.Get(name)
		var id, parent, unused int
		var step string
		err := r.Store.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			args := make([]any, strings.Count(statement, "?"))
			for i := range args {
				args[i] = 1
			}
			return tx.QueryRowContext(ctx, "EXPLAIN QUERY PLAN "+statement, args...).Scan(&id, &parent, &unused, &step)
		})
		if err != nil || !strings.Contains(step, "SEARCH") || !strings.Contains(step, index) {
			t.Errorf("%s: %s, %v; want a search by %s", name, step, err, index)
		}
	}
}
