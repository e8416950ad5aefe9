package coupon_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// Two processes, 40 orders of 10 customers, a limit of 7 in all and 2 of one customer; then everything that holds a use is paid,
// canceled or refunded at once. The counters are those of the rows at every stop.
func TestLimitsHoldWhateverIsLockedAndGivenBackAtOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		twin := &shop{Bench: s.Twin()}
		twin.told.Store(1_000_000)
		s.must(t, s.create(terms("C-7", 7, 2)))
		each := func(f func(from *shop, i int, no, user string) error) {
			var all sync.WaitGroup
			for i := range 40 {
				from := s
				if i%2 == 1 {
					from = twin
				}
				all.Go(func() {
					if err := f(from, i, fmt.Sprintf("O-%d", i), fmt.Sprintf("user-%d", i%10)); err != nil && convergo.VerdictOf(err) != convergo.Park {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		each(func(from *shop, _ int, no, user string) error {
			return from.deliver(trade.OrderCreated, no, placed(no, user, "C-7"))
		})
		if locked, redeemed := s.counted(t, "C-7"); locked != 7 || redeemed != 0 {
			t.Fatalf("%d locked, %d redeemed", locked, redeemed)
		}
		if n := s.Int("SELECT COUNT(*) FROM coupon_user WHERE uses > 2"); n != 0 {
			t.Errorf("%d customers use it more than twice", n)
		}
		each(func(from *shop, i int, no, user string) error {
			if i%3 == 0 {
				return from.deliver(trade.OrderCanceled, no, canceled(no, user, "C-7"))
			}
			return from.deliver(trade.OrderPaid, no, paid(no, user, "C-7"))
		})
		if locked, redeemed := s.counted(t, "C-7"); locked != 0 || redeemed > 7 {
			t.Errorf("%d locked, %d redeemed", locked, redeemed)
		}
		each(func(from *shop, i int, no, user string) error {
			if i%3 == 0 {
				return nil
			}
			return from.deliver(trade.OrderRefunded, no, refund(no, user, "C-7", true))
		})
		if locked, redeemed := s.counted(t, "C-7"); locked != 0 || redeemed != 0 {
			t.Errorf("%d locked, %d redeemed after all went back", locked, redeemed)
		}
	})
}

// Creations and cancellations of the same orders at once, in two processes: whichever is first, nothing stays locked.
func TestACreationThatMeetsItsCancellationLocksNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		twin := &shop{Bench: s.Twin()}
		twin.told.Store(1_000_000)
		s.must(t, s.create(terms("C-100", 100, 1)))
		var all sync.WaitGroup
		for i := range 24 {
			no, user := fmt.Sprintf("O-%d", i), fmt.Sprintf("user-%d", i)
			for from, deliver := range map[*shop]func(*shop) error{
				s:    func(s *shop) error { return s.deliver(trade.OrderCreated, no, placed(no, user, "C-100")) },
				twin: func(s *shop) error { return s.deliver(trade.OrderCanceled, no, canceled(no, user, "C-100")) },
			} {
				all.Go(func() {
					if err := tradetest.Again(func() error { return deliver(from) }); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if locked, redeemed := s.counted(t, "C-100"); locked != 0 || redeemed != 0 {
			t.Errorf("%d locked, %d redeemed", locked, redeemed)
		}
	})
}
