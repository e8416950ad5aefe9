package points_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// One customer's points, wanted, spent, freed, granted and taken back at once by two processes: the same points are never spent
// twice, and entries, orders and balance agree at the end (see held).
func TestPointsAreNeverSpentTwice(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		twin := &shop{Bench: s.Twin()}
		twin.told.Store(1_000_000)
		s.must(t, s.grant("ada", 100, "G-1"))
		each := func(f func(from *shop, i int, no string) error) {
			var all sync.WaitGroup
			for i := range 32 {
				from := s
				if i%2 == 1 {
					from = twin
				}
				all.Go(func() {
					if err := f(from, i, fmt.Sprintf("O-%d", i)); err != nil && convergo.VerdictOf(err) != convergo.Park {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		each(func(from *shop, _ int, no string) error { return from.deliver(trade.OrderCreated, no, placed(no, 30)) })
		s.wants(t, "ada", 100, 90, 0)
		each(func(from *shop, i int, no string) error {
			if i%2 == 0 {
				return from.deliver(trade.OrderCanceled, no, canceled(no, 30))
			}
			return from.deliver(trade.OrderPaid, no, paid(no, 500, 30)) // 5 points for 5.00
		})
		balance, locked, debt := s.held(t, "ada")
		paid := s.Int("SELECT COUNT(*) FROM points_order WHERE state = 'PAID'")
		if locked != 0 || debt != 0 || balance != 100-25*paid {
			t.Errorf("%d points, %d locked, %d debt after %d orders", balance, locked, debt, paid)
		}
		each(func(from *shop, i int, no string) error {
			if i%2 == 0 {
				return nil
			}
			return from.deliver(trade.OrderRefunded, no, refund(no, "R-"+no, 500, 500, 30))
		})
		s.wants(t, "ada", 100, 0, 0)
	})
}

// Two refunds of one order, of which the second commits after the first has looked.
func TestTwoRefundsThatMeetTakeTheirPointsBackOnce(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1", 1000, 0)))
		first := s.Event(trade.OrderRefunded, "O-1", 9, refund("O-1", "R-1", 333, 1000, 0))
		err := s.Meanwhile(first, "FROM points_order", func() {
			s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-2", 666, 1000, 0)))
		})
		if err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("the first: %v; want another try", err)
		}
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-1", 333, 1000, 0)))
		s.wants(t, "ada", 4, 0, 0) // of 10, 6 for two thirds of the money, whichever was first
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-3", 1000, 1000, 0)))
		s.wants(t, "ada", 0, 0, 0)
	})
}
