package order_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

// The news that an order is paid is a row of the transaction that pays it: while that can still be undone nobody hears of it,
// and when it is undone it was never said.
func TestReport26NothingIsSaidOfWhatIsUndone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		r.hold(no, 0, 0)
		before := r.rows()
		undone := errors.New("the transaction ends otherwise")
		e := r.Event(trade.PaymentSucceeded, no, 1, r.receipt(no, "T-1"))
		err := r.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			if err := r.service.Handlers()[e.Type](ctx, tx, e); err != nil {
				t.Error(err)
			}
			return undone
		})
		if !errors.Is(err, undone) || len(r.Events(trade.OrderPaid)) != 0 || r.rows() != before {
			t.Errorf("%v: before %s, after %s", err, before, r.rows())
		}
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")))
		if n := len(r.Events(trade.OrderPaid)); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// A close that a payment overtook is in the history; an order that is paid has no reason why it was closed.
func TestAnOrderThatIsPaidAfterAllWasNotClosed(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		no := r.place("u-1", r.goods(8800, 1))
		r.hold(no, 0, 0)
		if res := r.Post(tradetest.User("u-1"), "/orders/"+no+"/cancel", nil); res.Status != http.StatusAccepted || r.order(no).Reason != "user" {
			t.Fatalf("%d %s", res.Status, res.Body)
		}
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-1")))
		r.is(no, order.Paid)
		if reason := r.order(no).Reason; reason != "" {
			t.Errorf("the paid order was closed by %q", reason)
		}
	})
}
