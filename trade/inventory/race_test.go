package inventory_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// A hot SKU: 64 orders of two processes at once for 40 pieces, some of them with a second SKU, half of the holders canceled at once.
func TestAHotSKUIsNeverHeldMoreThanThereIs(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		twin := &shop{Bench: s.Twin()}
		twin.told.Store(1_000_000)
		s.receive(t, "HOT", 40)
		s.receive(t, "COLD", 1000)
		var all sync.WaitGroup
		for i := range 64 {
			from := s
			if i%2 == 1 {
				from = twin
			}
			all.Go(func() {
				no := fmt.Sprintf("O-%d", i)
				lines := []trade.Line{line("HOT", 1)}
				if i%4 == 0 {
					lines = append(lines, line("COLD", 1))
				}
				if err := from.deliver(trade.OrderCreated, no, placed(no, lines...)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if held, refused := len(s.Events(trade.StockHeld)), len(s.Events(trade.StockRejected)); held != 40 || refused != 24 {
			t.Errorf("%d held, %d refused", held, refused)
		}
		if got := s.numbers(t, "HOT"); got != [3]int64{40, 40, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
		for i := range 64 {
			no := fmt.Sprintf("O-%d", i)
			all.Go(func() {
				var err error
				if i%2 == 0 {
					err = s.deliver(trade.OrderCanceled, no, canceled(no))
				} else if err = twin.deliver(trade.OrderPaid, no, paid(no)); convergo.VerdictOf(err) == convergo.Park {
					err = nil // it was refused its piece
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := s.numbers(t, "HOT"); got[1] != 0 || got[0]+got[2] != 40 {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}

// The creation has looked and not found the order; the other process commits the cancellation's tombstone. Nothing may be held
// then, for nobody would release it: this attempt is undone as a whole, and the next one sees the tombstone.
func TestACreationThatMeetsItsCancellationHoldsNothing(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		created := s.Event(trade.OrderCreated, "O-1", 1, placed("O-1", line("S1", 1)))
		err := s.Meanwhile(created, "FROM stock_order", func() { s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1"))) })
		if err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("the creation: %v; want another try", err)
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 1))))
		if got := s.numbers(t, "S1"); got != [3]int64{1, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}

// Two refunds of one order at once, each of which has looked before the other has committed.
func TestTwoRefundsThatMeetTakeBackWhatEachIsFor(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 3)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 3))))
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1")))
		back := func(no string, n int64) trade.Refund {
			return refund("O-1", no, trade.RefundLine{SKU: "S1", Quantity: n})
		}
		first := s.Event(trade.OrderRefunded, "O-1", 9, back("R-1", 2))
		err := s.Meanwhile(first, "FROM stock_order", func() { s.must(t, s.deliver(trade.OrderRefunded, "O-1", back("R-2", 1))) })
		if err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("the first: %v; want another try", err)
		}
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", back("R-1", 2)))
		if got := s.numbers(t, "S1"); got != [3]int64{3, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		if err := s.deliver(trade.OrderRefunded, "O-1", back("R-3", 1)); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("a fourth piece: %v", err)
		}
		s.conserved(t)
	})
}
