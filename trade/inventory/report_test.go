package inventory_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/tradetest"
)

// lastUnit has n orders want the one piece that there is, at once.
func lastUnit(t *testing.T, db tradetest.Database, n int) {
	t.Helper()
	s := open(t, db)
	s.receive(t, "S1", 1)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			no := fmt.Sprintf("O-%d", i)
			if err := s.deliver(trade.OrderCreated, no, placed(no, line("S1", 1))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if held, refused := len(s.Events(trade.StockHeld)), len(s.Events(trade.StockRejected)); held != 1 || refused != n-1 {
		t.Errorf("%d held, %d refused of %d", held, refused, n)
	}
	if got := s.numbers(t, "S1"); got != [3]int64{1, 1, 0} {
		t.Errorf("on hand, reserved, sold = %v", got)
	}
	s.conserved(t)
}

func TestReport13TwoOrdersForTheLastUnit(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) { lastUnit(t, db, 2) })
}

func TestReport13TheDatabaseItselfRefusesToSellWhatIsNotThere(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		for what, statement := range map[string]string{
			"less than nothing on hand":  "UPDATE stock SET on_hand = on_hand - 2 WHERE sku = 'S1'",
			"more held than there is":    "UPDATE stock SET reserved = reserved + 2 WHERE sku = 'S1'",
			"less than nothing held":     "UPDATE stock SET reserved = reserved - 1 WHERE sku = 'S1'",
			"more back than was ordered": "INSERT INTO stock_hold VALUES ('O-1', 'S1', 1, 2, 'DEDUCTED', 1, 1)",
		} {
			err := s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
			if err == nil {
				t.Errorf("%s is accepted", what)
			}
		}
	})
}

// The check of what is there and the reservation are one statement of one transaction: when that transaction is undone there
// is neither, and whoever comes next finds the piece.
func TestReport14AReservationThatIsUndoneLeavesNothingBehind(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		undone := fmt.Errorf("the process dies before the commit")
		e := s.Event(trade.OrderCreated, "O-1", 1, placed("O-1", line("S1", 1)))
		err := s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
			if err := s.service.Handlers()[e.Type](ctx, tx, e); err != nil {
				t.Error(err)
			}
			return undone
		})
		if err == nil || s.numbers(t, "S1") != [3]int64{1, 0, 0} || len(s.Events(trade.StockHeld)) != 0 {
			t.Errorf("%v, %v, %d told", err, s.numbers(t, "S1"), len(s.Events(trade.StockHeld)))
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", line("S1", 1))))
		if got := s.numbers(t, "S1"); got != [3]int64{1, 1, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}

// A read, a sum in the program and a write back lose whatever was between: reservations, cancellations and receipts of one SKU at
// once must all be in the numbers.
func TestReport18NothingIsLostBetweenAReadAndAWriteOfTheStock(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 100)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				no := fmt.Sprintf("O-%d", i)
				if err := s.deliver(trade.OrderCreated, no, placed(no, line("S1", 2))); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := s.deliver(trade.OrderCanceled, no, trade.Canceled{OrderNo: no, UserID: "ada"}); err != nil {
						t.Error(err)
					}
				}
				if i%4 == 0 {
					s.receive(t, "S1", 1)
				}
			})
		}
		all.Wait()
		if got := s.numbers(t, "S1"); got != [3]int64{110, 40, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}
