package shipping_test

import (
	"errors"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// The refund has looked at a shipment that is being booked; the carrier's refusal is committed before it is moved. On MySQL the insert
// that comes before the look has taken the row, and the refusal waits for the refund.
func TestARefundThatMeetsARefusedBookingCancelsIt(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		r := newRig(t, db)
		r.wire.onBook = func(int) (error, error) { return convergo.Permanent(errors.New("no parcels to the moon")), nil }
		r.pay("O-1")
		refund := r.Event(trade.OrderRefunded, "O-1", 9, trade.Refund{RefundNo: "O-1-R1", OrderNo: "O-1", UserID: "alice", Full: true})
		wait := func() {}
		if err := r.Meanwhile(refund, "FROM shipment", func() { wait = tradetest.Beside(r.RunCalls) }); err != nil {
			t.Fatal(err)
		}
		wait()
		r.RunCalls()
		r.want("O-1", "CANCELED", map[string]int{trade.ShipmentCanceled: 1})
	})
}
