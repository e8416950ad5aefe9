package order_test

import (
	"context"
	"errors"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// The news that an order is paid is a row of the transaction that pays it: while that can still be undone nobody hears of it,
// and when it is undone it was never said.
func TestReport26NothingIsSaidOfWhatIsUndone(t *testing.T) {
	r := newRig(t)
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
}
