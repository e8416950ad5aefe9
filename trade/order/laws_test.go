package order_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

// rank of a state on the way; an order's rank never falls.
func rank(s machine.State) int {
	return slices.Index([]machine.State{order.Created, order.Closing, order.Canceled, order.Paid, order.Shipped, order.Completed,
		order.Refunding, order.Refunded}, s)
}

// TestE2NothingMovesAnOrderBackwards plays arbitrary events and requests, in arbitrary order and again and again, at one
// order. Handlers may refuse, but the order goes forward or stays, it is told of each step once, and PAID and CANCELED
// exclude one another.
func TestE2NothingMovesAnOrderBackwards(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db) // one database for all plays, each with an order of its own
		w := r.goods(1000, 3)
		db.Check(t, func(rt *rapid.T) {
			w.CouponCode, w.PointsToSpend = "C", 100
			no := r.place("u-1", w)
			answer := trade.Answer{OrderNo: no, Amount: 500, Points: 100}
			moves := []func(){}
			for eventType := range r.service.Handlers() {
				switch eventType {
				case trade.PaymentSucceeded:
					for _, transaction := range []string{"T-1", "T-2"} {
						moves = append(moves, func() { _ = r.tell(eventType, no, r.receipt(no, transaction)) })
					}
				case trade.PaymentRefunded, trade.PaymentRefundFailed:
					moves = append(moves, func() {
						for _, p := range tradetest.PayloadsOf[trade.Refund](r.Bench, no, trade.RefundApproved) {
							_ = r.tell(eventType, no, trade.RefundPaid{RefundNo: p.RefundNo, OrderNo: no, Amount: p.Cash, Channel: "sim"})
						}
					})
				default:
					moves = append(moves, func() { _ = r.tell(eventType, no, answer) })
				}
			}
			moves = append(moves,
				func() { r.Post(tradetest.User("u-1"), "/orders/"+no+"/cancel", nil) },
				func() { r.refund(no) },
				func() { r.refund(no, pieces(1, 1)) },
				func() { r.Clock.Advance(paymentWindow); _, _ = r.service.Sweep(t.Context()) },
			)
			if rapid.Bool().Draw(rt, "held first") { // or most plays would end in a rejection
				r.hold(no, 500, 100)
			}
			before := r.order(no)
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(moves)-1), 1, 25).Draw(rt, "moves") {
				moves[i]()
				o := r.order(no)
				if rank(o.Status) < rank(before.Status) || (before.Status == order.Canceled && o.Status != order.Canceled) {
					rt.Fatalf("%s became %s", before.Status, o.Status)
				}
				if before.Transaction != "" && o.Transaction != before.Transaction {
					rt.Fatalf("paid by %s became paid by %s", before.Transaction, o.Transaction)
				}
				before = o
			}
			lawsOf(rt, r, no)
		})
	})
}

func lawsOf(rt *rapid.T, r *rig, no string) {
	count := map[string]int{}
	for _, e := range r.EventsOf(no, "") {
		count[e.Type]++
	}
	for _, once := range []string{trade.OrderCreated, trade.OrderPayable, trade.OrderClosing, trade.OrderCanceled, trade.OrderPaid, trade.OrderShipped, trade.OrderCompleted} {
		if count[once] > 1 {
			rt.Fatalf("%s was told %d times", once, count[once])
		}
	}
	if count[trade.OrderPaid] > 0 && count[trade.OrderCanceled] > 0 {
		rt.Fatal("paid and canceled")
	}
	o := r.order(no)
	for state, told := range map[machine.State]string{order.Canceled: trade.OrderCanceled, order.Paid: trade.OrderPaid, order.Shipped: trade.OrderShipped, order.Completed: trade.OrderCompleted} {
		if o.Status == state && count[told] != 1 {
			rt.Fatalf("%s, but %s was told %d times", state, told, count[told])
		}
	}
	var cash int64
	for _, p := range tradetest.PayloadsOf[trade.Refund](r.Bench, no, trade.OrderRefunded) {
		cash += p.Cash
	}
	if cash > o.Payable || (o.Status == order.Refunded) != (cash == o.Payable && count[trade.OrderPaid] == 1 && o.RefundedAmount == o.GoodsTotal && cash > 0) {
		rt.Fatalf("%s with %d of %d back", o.Status, cash, o.Payable)
	}
	// The history is one unbroken walk.
	r.Update(func(ctx context.Context, tx convergo.Tx) error {
		history, err := order.Orders().History(ctx, tx, no)
		at := machine.State("")
		for _, h := range history {
			if h.From != at {
				return fmt.Errorf("history goes from %s to %s", at, h.From)
			}
			at = h.To
		}
		if at != o.Status {
			return fmt.Errorf("history ends in %s, the order is %s", at, o.Status)
		}
		return err
	})
}
