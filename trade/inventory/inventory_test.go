package inventory_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/inventory"
	"github.com/convergo/convergo/trade/tradetest"
)

// Reports 13, 14 and 18: check and reservation are one statement, whoever runs beside it.
func TestCaseB40TheLastUnitIsSoldOnceTo50Buyers(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		var wait sync.WaitGroup
		var failed atomic.Int64
		for i := range 50 {
			wait.Go(func() {
				if err := s.deliver(trade.OrderCreated, fmt.Sprintf("O-%d", i), placed(fmt.Sprintf("O-%d", i), line("S1", 1))); err != nil {
					failed.Add(1)
				}
			})
		}
		wait.Wait()
		held, rejected := 0, 0
		for i := range 50 {
			switch types, last := s.answers(t, fmt.Sprintf("O-%d", i)); {
			case slices.Equal(types, []string{trade.StockHeld}):
				held++
			case slices.Equal(types, []string{trade.StockRejected}) && last.Reason == "S1: 1 wanted, 0 left":
				rejected++
			default:
				t.Errorf("order %d was told %v: %q", i, types, last.Reason)
			}
		}
		if held != 1 || rejected != 49 || failed.Load() != 0 {
			t.Errorf("%d held, %d rejected, %d errors; want 1, 49, 0", held, rejected, failed.Load())
		}
		if got := s.numbers(t, "S1"); got != [3]int64{1, 1, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}

func TestCaseB40TwoLinesOfOneSKUAreOneDemand(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) { twoLines(t, db) })
}

func TestReport15TwoLinesOfOneSKUAreOneDemand(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) { twoLines(t, db) })
}

func twoLines(t *testing.T, db tradetest.Database) {
	s := open(t, db)
	s.receive(t, "S1", 1)
	s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 1), line("S1", 1))))
	if types, last := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.StockRejected}) || last.Reason != "S1: 2 wanted, 1 left" {
		t.Errorf("told %v: %q", types, last.Reason)
	}
	s.receive(t, "S1", 1)
	s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", line("S1", 1), line("S1", 1))))
	if got := s.numbers(t, "S1"); got != [3]int64{2, 2, 0} {
		t.Errorf("on hand, reserved, sold = %v", got)
	}
	s.conserved(t)
}

func TestCaseB40OrdersOfTheSameSKUsInOppositeOrderNeverBlockEachOther(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 150)
		s.receive(t, "S2", 150)
		var wait sync.WaitGroup
		for i := range 100 {
			for j, lines := range [][]trade.Line{{line("S1", 1), line("S2", 1)}, {line("S2", 1), line("S1", 1)}} {
				wait.Go(func() {
					no := fmt.Sprintf("O-%d-%d", i, j)
					if err := s.deliver(trade.OrderCreated, no, placed(no, lines...)); err != nil {
						t.Errorf("%s: %v", no, err)
					}
				})
			}
		}
		wait.Wait()
		for _, sku := range []string{"S1", "S2"} {
			if got := s.numbers(t, sku); got != [3]int64{150, 150, 0} {
				t.Errorf("%s: on hand, reserved, sold = %v", sku, got)
			}
		}
		s.conserved(t)
	})
}

// The rows of a transaction are locked in the order of its statements; this is what keeps two of them from a deadlock.
func TestReport16SKUsAreMergedAndTakenInSortedOrder(t *testing.T) {
	s := open(t, databases.SQLite()) // its rows have a number that tells their order
	for _, sku := range []string{"S3", "S1", "S2"} {
		s.receive(t, sku, 9)
	}
	s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S3", 1), line("S1", 2), line("S2", 1), line("S1", 1))))
	var order string
	s.row(t, `SELECT group_concat(sku || '=' || quantity)
		FROM (SELECT sku, quantity FROM stock_flow WHERE order_no = 'O-1' ORDER BY rowid)`, nil, &order)
	if order != "S1=3,S2=1,S3=1" {
		t.Errorf("reserved %s", order)
	}
}

func TestAnOrderHoldsAllOfItsSKUsOrNothingAndNamesWhatIsShort(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 5)
		s.receive(t, "S2", 1)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 5), line("S2", 2), line("S9", 1))))
		types, last := s.answers(t, "O-1")
		if !slices.Equal(types, []string{trade.StockRejected}) || last.Reason != "S2: 2 wanted, 1 left; S9: unknown SKU" {
			t.Errorf("told %v: %q", types, last.Reason)
		}
		if got := s.numbers(t, "S1"); got != [3]int64{5, 0, 0} {
			t.Errorf("S1: on hand, reserved, sold = %v", got)
		}
		s.conserved(t)
	})
}

func TestTheReasonOfAHugeShortageIsShort(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		var lines []trade.Line
		for i := range 2000 {
			lines = append(lines, line(fmt.Sprintf("SKU-%04d", i), 1))
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", lines...)))
		if _, last := s.answers(t, "O-1"); len(last.Reason) > 450 || !strings.HasSuffix(last.Reason, "more") {
			t.Errorf("%d bytes: %q", len(last.Reason), last.Reason)
		}
	})
}

func TestReport06ConcurrentCancelsReleaseOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 10)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 3))))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", line("S1", 4))))
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				if err := s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if got := s.numbers(t, "S1"); got != [3]int64{10, 4, 0} {
			t.Errorf("on hand, reserved, sold = %v: only the canceled order's 3 go back, once", got)
		}
		if types, _ := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.StockHeld, trade.StockReleased}) {
			t.Errorf("told %v", types)
		}
		s.conserved(t)
	})
}

func TestReport01ALoserReleasesNothingOfTheWinner(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		s.must(t, s.deliver(trade.OrderCreated, "winner", placed("winner", line("S1", 1))))
		s.must(t, s.deliver(trade.OrderCreated, "loser", placed("loser", line("S1", 1))))
		s.must(t, s.deliver(trade.OrderCanceled, "loser", canceled("loser")))
		if got := s.numbers(t, "S1"); got != [3]int64{1, 1, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
	})
}

func TestACancellationThatComesFirstLeavesATombstone(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		for range 2 {
			s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")))
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 1))))
		s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")))
		if got := s.numbers(t, "S1"); got != [3]int64{1, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		if types, _ := s.answers(t, "O-1"); len(types) != 0 {
			t.Errorf("told %v", types)
		}
	})
}

func TestReport12APaidOrderWithoutStockIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 1)
		if err := s.deliver(trade.OrderPaid, "O-0", paid("O-0")); err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("an order that is not known yet: %v, want a later attempt", err)
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 1))))
		s.must(t, s.deliver(trade.OrderCreated, "O-2", placed("O-2", line("S1", 1))))
		s.must(t, s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")))
		for _, no := range []string{"O-1", "O-2"} {
			if err := s.deliver(trade.OrderPaid, no, paid(no)); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s has no stock: %v, want a dead letter", no, err)
			}
		}
		if got := s.numbers(t, "S1"); got != [3]int64{1, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
	})
}

// Reports 17 and 28: a hold is resolved at most once, and only its own.
func TestReport28AHoldIsDeductedOrReleasedNeverBoth(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 5)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 2))))
		for range 3 {
			s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1")))
		}
		if err := s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("canceling what is deducted: %v", err)
		}
		other := paid("O-1")
		other.Transaction = "T-second"
		if err := s.deliver(trade.OrderPaid, "O-1", other); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("paid by a second transaction: %v", err)
		}
		if got := s.numbers(t, "S1"); got != [3]int64{3, 0, 2} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		if types, _ := s.answers(t, "O-1"); !slices.Equal(types, []string{trade.StockHeld, trade.StockDeducted}) {
			t.Errorf("told %v", types)
		}
		s.conserved(t)
	})
}

func TestReport30APieceIsReturnedOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 5)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 2), line("S1", 1))))
		early := refund("O-1", "R-1", trade.RefundLine{SKU: "S1", Quantity: 1})
		if err := s.deliver(trade.OrderRefunded, "O-1", early); err == nil || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("a refund before the deduction: %v, want a later attempt", err)
		}
		s.must(t, s.deliver(trade.OrderPaid, "O-1", paid("O-1")))
		for range 3 {
			s.must(t, s.deliver(trade.OrderRefunded, "O-1", early))
		}
		one := trade.RefundLine{SKU: "S1", Quantity: 1}
		s.must(t, s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-2", one, one)))
		if err := s.deliver(trade.OrderRefunded, "O-1", refund("O-1", "R-3", one)); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("a fourth piece of three: %v", err)
		}
		if err := s.deliver(trade.OrderCanceled, "O-1", canceled("O-1")); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("canceled after the refund: %v", err)
		}
		if got := s.numbers(t, "S1"); got != [3]int64{5, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
		types, last := s.answers(t, "O-1")
		want := []string{trade.StockHeld, trade.StockDeducted, trade.StockReturned, trade.StockReturned}
		if !slices.Equal(types, want) || last.RefundNo != "R-2" {
			t.Errorf("told %v, last refund %s", types, last.RefundNo)
		}
		s.conserved(t)
	})
}

func TestADamagedStockRowStopsTheOrderAndChangesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		s.receive(t, "S1", 5)
		s.receive(t, "S2", 5)
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 1), line("S2", 1))))
		s.damage("UPDATE stock SET reserved = 0 WHERE sku = 'S2'")
		if err := s.deliver(trade.OrderPaid, "O-1", paid("O-1")); convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("got %v", err)
		}
		if got := s.numbers(t, "S1"); got != [3]int64{5, 1, 0} {
			t.Errorf("S1: on hand, reserved, sold = %v", got)
		}
	})
}

func TestWhatCannotBeAnOrderIsForAPerson(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for name, p := range map[string]trade.OrderPlaced{
			"no lines":           placed("O-1"),
			"negative quantity":  placed("O-1", line("S1", -1)),
			"quantity of zero":   placed("O-1", line("S1", 0)),
			"too many pieces":    placed("O-1", line("S1", trade.MaxQuantity+1)),
			"a SKU that is none": placed("O-1", line("S 1", 1)),
			"no number":          placed("", line("S1", 1)),
		} {
			if err := s.deliver(trade.OrderCreated, "O-1", p); convergo.VerdictOf(err) != convergo.Park {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestAReceiptIsCountedOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		first := s.receipt("S1", 5, "N-1")
		s.must(t, first)
		s.must(t, s.receipt("S1", 5, "N-1"))
		s.must(t, s.receipt("S1", 2, "N-2"))
		var problem *trade.Problem
		if err := s.receipt("S1", 6, "N-1"); !errors.As(err, &problem) || problem.Status != 409 || problem.Field != "body.key" {
			t.Errorf("another delivery under one key: %v", err)
		}
		if err := s.receipt("S2", 5, "N-1"); !errors.As(err, &problem) || problem.Status != 409 {
			t.Errorf("another SKU under one key: %v", err)
		}
		if got := s.numbers(t, "S1"); got != [3]int64{7, 0, 0} {
			t.Errorf("on hand, reserved, sold = %v", got)
		}
	})
}

func TestTheMachineIsSound(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		if err := open(t, db).service.Machine().Validate(); err != nil {
			t.Error(err)
		}
	})
}

// Report 17: numbers, flows and holds agree after any order, repetition and mixture of the events of orders, also of stories that
// contradict themselves.
func TestReport17NumbersFlowsAndHoldsNeverDrift(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		round := 0
		db.Check(t, func(r *rapid.T) {
			round++
			skus := make([]string, 3)
			for i := range skus {
				skus[i] = fmt.Sprintf("S%d-%d", round, i)
				s.receive(t, skus[i], rapid.Int64Range(1, 8).Draw(r, "stock"))
			}
			pool := stories(r, round, skus)
			for step := 0; len(pool) > 0 && step < 200; step++ {
				i := rapid.IntRange(0, len(pool)-1).Draw(r, "next")
				err := s.deliver(pool[i].eventType, pool[i].orderNo, pool[i].payload)
				if err != nil && convergo.VerdictOf(err) == convergo.Again {
					continue // waits for another event
				}
				if !rapid.Bool().Draw(r, "twice") {
					pool = slices.Delete(pool, i, i+1)
				}
			}
			s.conserved(r)
		})
	})
}

type happening struct {
	eventType, orderNo string
	payload            any
}

// stories are the events of a few orders: some canceled, some paid, some both, some refunded in parts or twice.
func stories(r *rapid.T, round int, skus []string) (pool []happening) {
	for o := range rapid.IntRange(1, 4).Draw(r, "orders") {
		no := fmt.Sprintf("O%d-%d", round, o)
		var lines []trade.Line
		for range rapid.IntRange(1, 3).Draw(r, "lines") {
			lines = append(lines, line(rapid.SampledFrom(skus).Draw(r, "sku"), rapid.Int64Range(1, 4).Draw(r, "quantity")))
		}
		pool = append(pool, happening{trade.OrderCreated, no, placed(no, lines...)})
		if rapid.Bool().Draw(r, "canceled") {
			pool = append(pool, happening{trade.OrderCanceled, no, canceled(no)})
		}
		if rapid.Bool().Draw(r, "paid") {
			pool = append(pool, happening{trade.OrderPaid, no, paid(no)})
		}
		for i, l := range lines {
			if rapid.Bool().Draw(r, "refunded") {
				part := trade.RefundLine{SKU: l.SKU, Quantity: rapid.Int64Range(1, l.Quantity).Draw(r, "back")}
				pool = append(pool, happening{trade.OrderRefunded, no, refund(no, fmt.Sprintf("R-%s-%d", no, i), part)})
			}
		}
	}
	return pool
}

func TestTheOperatorReceivesStockAndEverybodySeesIt(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		made := s.Post(tradetest.Operator(), "/stock/receipts", inventory.Receipt{SKU: "S1", Quantity: 5, Key: "N-1"})
		if got := tradetest.Into[inventory.Stock](t, made); made.Status != 201 || got.OnHand != 5 || got.Available != 5 {
			t.Errorf("%d %+v", made.Status, got)
		}
		s.must(t, s.deliver(trade.OrderCreated, "O-1", placed("O-1", line("S1", 2))))
		if got := tradetest.Into[inventory.Stock](t, s.Get(tradetest.User("ada"), "/stock/S1")); got.Reserved != 2 || got.Available != 3 {
			t.Errorf("%+v", got)
		}
		for low, want := range map[int]int{2: 0, 3: 1} {
			list := tradetest.Into[struct{ Stock []inventory.Stock }](t, s.Get(tradetest.Operator(), fmt.Sprintf("/stock?low=%d", low)))
			if len(list.Stock) != want {
				t.Errorf("low=%d lists %d SKUs", low, len(list.Stock))
			}
		}
		flow := tradetest.Into[struct{ Flow []inventory.Flow }](t, s.Get(tradetest.Operator(), "/stock/S1/flow"))
		if len(flow.Flow) != 2 || flow.Flow[0].Key != "RECEIVE:N-1" || flow.Flow[1].Key != "RESERVE:O-1:S1" {
			t.Errorf("%+v", flow)
		}
		story := tradetest.Into[trade.StoryAnswer](t, s.Get(tradetest.Operator(), "/inventory/story/O-1"))
		if len(story.Entries) != 3 { // the transition, the effect, the event
			t.Errorf("%+v", story)
		}
	})
}

func TestWhatIsWrongWithAReceiptIsSaid(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		for _, c := range []struct {
			who    trade.Principal
			body   string
			status int
			field  string
		}{
			{tradetest.User("ada"), `{"sku":"S1","quantity":5,"key":"N-1"}`, 403, "header.Authorization"},
			{tradetest.Operator(), `{"sku":"S 1","quantity":5,"key":"N-1"}`, 422, "body.sku"},
			{tradetest.Operator(), `{"sku":"S1","quantity":0,"key":"N-1"}`, 422, "body.quantity"},
			{tradetest.Operator(), `{"sku":"S1","quantity":-5,"key":"N-1"}`, 422, "body.quantity"},
			{tradetest.Operator(), `{"sku":"S1","quantity":5,"key":" N-1"}`, 422, "body.key"},
		} {
			got := s.Post(c.who, "/stock/receipts", c.body)
			if p := got.Problem(); got.Status != c.status || p.Field != c.field || p.Remedy == "" {
				t.Errorf("%s by %s: %d %+v", c.body, c.who, got.Status, p)
			}
		}
		if n := s.Int("SELECT COUNT(*) FROM stock_flow"); n != 0 {
			t.Errorf("%d flows", n)
		}
		if got := s.Get(tradetest.Operator(), "/stock/S9"); got.Status != 404 {
			t.Errorf("an unknown SKU: %d", got.Status)
		}
	})
}
