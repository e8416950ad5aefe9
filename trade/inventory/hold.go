package inventory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// need is how many pieces of a SKU an order or a refund is about.
type need struct {
	sku      string
	quantity int64
}

// merge adds up the lines by SKU and sorts the SKUs. One sum per SKU, because two lines that are checked alone can both find
// enough; sorted, because two transactions that lock rows in the same order cannot wait for each other in a circle.
func merge(n int, line func(i int) (sku string, quantity int64)) ([]need, error) {
	bySKU := make(map[string]int64, n)
	for i := range n {
		sku, quantity := line(i)
		if err := trade.CheckSKU(sku); err != nil {
			return nil, convergo.Permanent(fmt.Errorf("line %d: %w", i+1, err))
		}
		// 2,000 lines of 1,000,000 pieces are far from the end of an int64.
		if quantity < 0 || quantity > trade.MaxQuantity || n > trade.MaxLines {
			return nil, convergo.Permanent(fmt.Errorf("line %d of %d: quantity %d of %s: %w", i+1, n, quantity, sku, convergo.ErrInvalid))
		}
		bySKU[sku] += quantity
	}
	needs := make([]need, 0, len(bySKU))
	for sku, quantity := range bySKU {
		if quantity > 0 {
			needs = append(needs, need{sku, quantity})
		}
	}
	slices.SortFunc(needs, func(a, b need) int { return strings.Compare(a.sku, b.sku) })
	return needs, nil
}

// shortage says what an order cannot have. It is the reason of StockRejected.
type shortage []string

func (s shortage) Error() string {
	const most = 400 // bytes: a reason is for a person, and orders keep it in a column; 2,000 SKUs are not
	text := ""
	for i, one := range s {
		if len(text)+len(one) > most {
			return text + fmt.Sprintf("; and %d more", len(s)-i)
		}
		if i > 0 {
			text += "; "
		}
		text += one
	}
	return text
}

// created holds the order's stock, all of it or nothing, and answers StockHeld or StockRejected.
//
// An order that is known already was answered already, or its cancellation came first (a RELEASED tombstone): nothing
// may be held for it, because nobody would release it again.
func (s *Service) created(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	placed, err := trade.Decode[trade.OrderPlaced](e)
	if err != nil {
		return err
	}
	needs, err := merge(len(placed.Lines), func(i int) (string, int64) { return placed.Lines[i].SKU, placed.Lines[i].Quantity })
	if err != nil {
		return fmt.Errorf("order %s: %w", placed.OrderNo, err)
	}
	if err := trade.CheckOrderNo(placed.OrderNo); err != nil {
		return convergo.Permanent(err)
	}
	if len(needs) == 0 {
		return convergo.Permanent(fmt.Errorf("order %s has no pieces: %w", placed.OrderNo, convergo.ErrInvalid))
	}
	known, err := s.order(ctx, tx, placed.OrderNo)
	if err != nil || known != nil {
		return err
	}
	hold := func(ctx context.Context, tx convergo.Tx) error { return s.hold(ctx, tx, e, placed, needs) }
	if len(needs) == 1 {
		err = hold(ctx, tx) // its only statement has changed nothing when it comes back short: no savepoint to pay for
	} else {
		err = s.DB.Nested(ctx, tx, hold)
	}
	var short shortage
	if errors.As(err, &short) {
		return s.reject(ctx, tx, e, placed, short)
	}
	return err
}

// hold reserves every SKU; its error is a shortage when it could not have all of them, and then the caller undoes the rest.
func (s *Service) hold(ctx context.Context, tx convergo.Tx, e convergo.Event, placed trade.OrderPlaced, needs []need) error {
	now := convergo.Micros(s.Now())
	var short shortage
	for _, n := range needs {
		got, err := s.change(ctx, tx, "Reserve", n.quantity, now, n.sku, n.quantity)
		if err != nil {
			return err
		}
		if got == 0 {
			why, err := s.explain(ctx, tx, n)
			if err != nil {
				return err
			}
			short = append(short, why)
		}
	}
	if len(short) > 0 {
		return short
	}
	if err := s.begin(ctx, tx, e, placed.OrderNo, placed.UserID, Held, "", "hold", "created"); err != nil {
		return err
	}
	for _, n := range needs {
		if _, err := s.change(ctx, tx, "AddHold", placed.OrderNo, n.sku, n.quantity, now, now); err != nil {
			return err
		}
		if err := s.mustFlow(ctx, tx, reserve, placed.OrderNo, n, e.Key); err != nil {
			return err
		}
	}
	return s.emit(ctx, tx, trade.StockHeld, convergo.Key("StockHeld:"+placed.OrderNo), 1, trade.Answer{OrderNo: placed.OrderNo,
		UserID: placed.UserID})
}

// explain says why a SKU could not be reserved.
func (s *Service) explain(ctx context.Context, tx convergo.Tx, n need) (string, error) {
	stock, err := s.stock(ctx, tx, n.sku)
	switch {
	case err != nil:
		return "", err
	case stock == nil:
		return fmt.Sprintf("%s: unknown SKU", n.sku), nil
	}
	return fmt.Sprintf("%s: %d wanted, %d left", n.sku, n.quantity, stock.OnHand-stock.Reserved), nil
}

func (s *Service) reject(ctx context.Context, tx convergo.Tx, e convergo.Event, placed trade.OrderPlaced, short shortage) error {
	if err := s.begin(ctx, tx, e, placed.OrderNo, placed.UserID, Rejected, short.Error(), "reject", "created"); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.StockRejected, convergo.Key("StockRejected:"+placed.OrderNo), 1,
		trade.Answer{OrderNo: placed.OrderNo, UserID: placed.UserID, Reason: short.Error()})
}

// begin writes the order's row in its first state.
func (s *Service) begin(
	ctx context.Context, tx convergo.Tx, e convergo.Event, orderNo, userID string, first machine.State, reason, move, cause string,
) error {
	at := s.Now()
	fresh, err := s.change(ctx, tx, "AddOrder", orderNo, userID, string(first), reason, convergo.Micros(at), convergo.Micros(at))
	if err != nil {
		return err
	}
	if fresh == 0 {
		// Another process wrote the row between our look and our insert, and has committed by now. Everything of this attempt is
		// undone; the next one sees the row.
		return fmt.Errorf("order %s: another event of it was applied at the same moment; try again", orderNo)
	}
	return s.orders.Begin(ctx, tx, machine.Request{ID: orderNo, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: at}, first)
}

// mustFlow writes the flow row of a change, and its effect. The state of the order says that the change was never made, so a
// row that is there contradicts it: a person must look.
func (s *Service) mustFlow(ctx context.Context, tx convergo.Tx, kind, orderNo string, n need, cause convergo.Key) error {
	key := flowKey(kind, orderNo, n.sku)
	fresh, err := s.flow(ctx, tx, key, kind, orderNo, n, cause, undoes(kind, orderNo, n.sku))
	if err == nil && !fresh {
		err = convergo.Permanent(fmt.Errorf("order %s: flow %s is there although the order's state says that it cannot be", orderNo, key))
	}
	return err
}

// flow writes the flow row and the effect of a change; fresh is false, and nothing is written, when the change was made
// before.
func (s *Service) flow(ctx context.Context, tx convergo.Tx, key, kind, orderNo string, n need, cause,
	reverses convergo.Key) (fresh bool, err error) {
	at := s.Now()
	added, err := s.change(ctx, tx, "AddFlow", key, n.sku, kind, n.quantity, orderNo, string(cause), convergo.Micros(at))
	if err != nil || added == 0 {
		return false, err
	}
	return trade.RecordEffect(ctx, tx, s.DB.Dialect(), trade.Effect{
		Key: convergo.Key(key), OrderNo: orderNo, Kind: "stock." + strings.ToLower(kind), Reverses: reverses, Cause: cause,
		Detail: fmt.Sprintf(`{"sku":%q,"quantity":%d}`, n.sku, n.quantity), At: at,
	})
}

func flowKey(kind, orderNo, sku string) string { return kind + ":" + orderNo + ":" + sku }

// undoes is the effect that a change undoes as a whole. A return is often one of several of the same deduction; what bounds
// those is stock_hold.returned, and they name no single effect as reversed.
func undoes(kind, orderNo, sku string) convergo.Key {
	if kind == release {
		return convergo.Key(flowKey(reserve, orderNo, sku))
	}
	return ""
}

// orderRow is what is known of an order.
type orderRow struct {
	orderNo string
	state   machine.State
	version int64
}

// order is nil when the order is not known.
func (s *Service) order(ctx context.Context, tx convergo.Tx, orderNo string) (*orderRow, error) {
	var o orderRow
	err := tx.QueryRowContext(ctx, s.sql.Get("FindOrder"), orderNo).Scan(&o.orderNo, &o.state, &o.version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find order %s: %w", orderNo, err)
	}
	return &o, nil
}
