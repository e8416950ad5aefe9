package inventory_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/inventory"
	"github.com/convergo/convergo/trade/tradetest"
)

// shop is the inventory on a bench. Every delivery has an event key of its own, as if the producer told the fact anew: what
// the inbox would hold back reaches the handlers, and the business keys have to stand alone.
type shop struct {
	*tradetest.Bench
	service *inventory.Service
	told    atomic.Int64
}

func open(t testing.TB, db tradetest.Database) *shop {
	t.Helper()
	s := &shop{}
	s.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		var err error
		s.service, err = inventory.New(d)
		return s.service, err
	})
	return s
}

func (s *shop) deliver(eventType, orderNo string, payload any) error {
	e, err := trade.NewEvent(eventType, convergo.Key(fmt.Sprintf("%s:%s:told-%d", eventType, orderNo, s.told.Add(1))), orderNo, 0, payload)
	if err != nil {
		return err
	}
	_, err = s.Deliver(e)
	return err
}

func (s *shop) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shop) receive(t testing.TB, sku string, n int64) {
	t.Helper()
	s.must(t, s.receipt(sku, n, fmt.Sprintf("note-%d", s.told.Add(1))))
}

// numbers of a SKU: on hand, reserved, sold.
func (s *shop) numbers(t testing.TB, sku string) (n [3]int64) {
	t.Helper()
	s.row(t, "SELECT on_hand, reserved, sold FROM stock WHERE sku = ?", []any{sku}, &n[0], &n[1], &n[2])
	return n
}

// row reads one row.
func (s *shop) row(t testing.TB, query string, args []any, into ...any) {
	t.Helper()
	s.must(t, s.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(into...)
	}))
}

// answers are the events that the inventory told about an order, oldest first.
func (s *shop) answers(t testing.TB, orderNo string) (types []string, last trade.Answer) {
	t.Helper()
	for _, e := range s.Events("") {
		if e.Aggregate.ID != orderNo {
			continue
		}
		types = append(types, e.Type)
		var err error
		last, err = trade.Decode[trade.Answer](e)
		s.must(t, err)
	}
	return types, last
}

// conserved checks the equations between the numbers, the flows and the holds of every SKU.
func (s *shop) conserved(t interface{ Fatalf(string, ...any) }) {
	const sums = `SELECT s.sku, s.on_hand, s.reserved, s.sold,
		COALESCE(SUM(CASE f.kind WHEN 'RECEIVE' THEN f.quantity WHEN 'DEDUCT' THEN -f.quantity WHEN 'RETURN' THEN f.quantity END), 0),
		COALESCE(SUM(CASE f.kind WHEN 'RESERVE' THEN f.quantity WHEN 'RELEASE' THEN -f.quantity WHEN 'DEDUCT' THEN -f.quantity END), 0),
		COALESCE(SUM(CASE f.kind WHEN 'DEDUCT' THEN f.quantity WHEN 'RETURN' THEN -f.quantity END), 0),
		(SELECT COALESCE(SUM(quantity), 0) FROM stock_hold h WHERE h.sku = s.sku AND h.state = 'HELD'),
		(SELECT COALESCE(SUM(quantity - returned), 0) FROM stock_hold h WHERE h.sku = s.sku AND h.state = 'DEDUCTED')
		FROM stock s LEFT JOIN stock_flow f ON f.sku = s.sku GROUP BY s.sku, s.on_hand, s.reserved, s.sold`
	err := s.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		rows, err := tx.QueryContext(ctx, sums)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var sku string
			var onHand, reserved, sold, flowOnHand, flowReserved, flowSold, held, out int64
			if err := rows.Scan(&sku, &onHand, &reserved, &sold, &flowOnHand, &flowReserved, &flowSold, &held, &out); err != nil {
				return err
			}
			if onHand < 0 || reserved < 0 || sold < 0 || reserved > onHand {
				return fmt.Errorf("%s: %d on hand, %d reserved, %d sold", sku, onHand, reserved, sold)
			}
			if onHand != flowOnHand || reserved != flowReserved || sold != flowSold {
				return fmt.Errorf("%s: numbers %d %d %d, flows %d %d %d", sku, onHand, reserved, sold, flowOnHand, flowReserved, flowSold)
			}
			if reserved != held || sold != out {
				return fmt.Errorf("%s: %d reserved, %d sold; holds say %d and %d", sku, reserved, sold, held, out)
			}
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func placed(orderNo string, lines ...trade.Line) trade.OrderPlaced {
	return trade.OrderPlaced{OrderNo: orderNo, UserID: "ada", Currency: "CNY", Lines: lines}
}

func line(sku string, quantity int64) trade.Line { return trade.Line{SKU: sku, Quantity: quantity} }

func canceled(orderNo string) trade.Canceled {
	return trade.Canceled{OrderNo: orderNo, UserID: "ada", Reason: "user"}
}

func paid(orderNo string) trade.Paid {
	return trade.Paid{OrderNo: orderNo, UserID: "ada", Currency: "CNY", Transaction: "T-" + orderNo}
}

func refund(orderNo, refundNo string, lines ...trade.RefundLine) trade.Refund {
	return trade.Refund{RefundNo: refundNo, OrderNo: orderNo, UserID: "ada", Currency: "CNY", Lines: lines}
}

func (s *shop) receipt(sku string, quantity int64, key string) error {
	return s.Store.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return s.service.Receive(ctx, tx, inventory.Receipt{SKU: sku, Quantity: quantity, Key: key}, "test")
	})
}

// damage changes rows behind the service's back.
func (s *shop) damage(statement string) {
	s.Update(func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
}
