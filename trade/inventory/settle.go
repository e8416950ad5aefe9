package inventory

import (
	"context"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// canceled gives back what this order holds, and only that: the quantities come from its own hold rows, never from the event.
//
// A cancellation that overtakes its OrderCreated finds nothing; it leaves a tombstone, so that the creation holds nothing
// afterwards. An order that was rejected holds nothing either.
func (s *Service) canceled(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	canceled, err := trade.Decode[trade.Canceled](e)
	if err != nil {
		return err
	}
	if err := trade.CheckOrderNo(canceled.OrderNo); err != nil {
		return convergo.Permanent(err)
	}
	order, err := s.order(ctx, tx, canceled.OrderNo)
	switch {
	case err != nil:
		return err
	case order == nil:
		return s.begin(ctx, tx, e, canceled.OrderNo, canceled.UserID, Released, "canceled before it was created here", "release", "canceled")
	case order.state == Rejected:
		return nil
	}
	done, version, err := s.move(ctx, tx, e, canceled.OrderNo, "release", "canceled")
	if err != nil || !done {
		return err
	}
	if err := s.settle(ctx, tx, e, canceled.OrderNo, Released); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.StockReleased, convergo.Key("StockReleased:"+canceled.OrderNo), version,
		trade.Answer{OrderNo: canceled.OrderNo, UserID: canceled.UserID, Reason: canceled.Reason})
}

// paid turns the hold into a sale.
//
// An order that is not known cannot have been paid: it became payable only after this service committed its hold and said
// StockHeld. So its hold is missing here (a database that was restored, say) or still on its way: again, and after
// the last attempt a person. It must not be held and deducted from the event's lines instead, which would hide the loss. An order
// whose stock was released or refused is a sale without goods: no attempt can cure it, a person must.
func (s *Service) paid(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	paid, err := trade.Decode[trade.Paid](e)
	if err != nil {
		return err
	}
	order, err := s.order(ctx, tx, paid.OrderNo)
	if err != nil {
		return err
	}
	if order == nil {
		return fmt.Errorf("order %s is paid but not known here: its OrderCreated has not been applied", paid.OrderNo)
	}
	done, version, err := s.move(ctx, tx, e, paid.OrderNo, "deduct", paid.Transaction)
	if err != nil || !done {
		return err
	}
	if err := s.settle(ctx, tx, e, paid.OrderNo, Deducted); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.StockDeducted, convergo.Key("StockDeducted:"+paid.OrderNo), version,
		trade.Answer{OrderNo: paid.OrderNo, UserID: paid.UserID})
}

// move applies a move of the order's machine. done is false when it was made before by the same cause; everything else that
// is not an application is an error for a person.
func (s *Service) move(ctx context.Context, tx convergo.Tx, e convergo.Event, orderNo, move, cause string) (done bool,
	version int64, err error) {
	res, err := s.orders.Apply(ctx, tx, machine.Request{ID: orderNo, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: s.Now()})
	switch {
	case err != nil:
		return false, 0, err
	case res.Answer == machine.Applied:
		return true, res.Version, nil
	case res.Answer == machine.Already:
		return false, 0, nil
	}
	return false, 0, convergo.Permanent(fmt.Errorf("order %s: cannot %s for %q: its stock is %s because of %q",
		orderNo, move, cause, res.State, res.Cause))
}

// settle releases or deducts every hold of the order, in SKU order. The machine's move in this transaction makes sure that it
// runs once.
func (s *Service) settle(ctx context.Context, tx convergo.Tx, e convergo.Event, orderNo string, to machine.State) error {
	holds, err := s.holds(ctx, tx, orderNo)
	if err != nil {
		return err
	}
	now := convergo.Micros(s.Now())
	for _, n := range holds {
		settled, err := s.change(ctx, tx, "SettleHold", string(to), now, orderNo, n.sku)
		if err != nil {
			return err
		}
		kind, args := release, []any{n.quantity, now, n.sku, n.quantity}
		statement := "Release"
		if to == Deducted {
			kind, statement, args = deduct, "Deduct", []any{n.quantity, n.quantity, n.quantity, now, n.sku, n.quantity, n.quantity}
		}
		changed, err := s.change(ctx, tx, statement, args...)
		if err != nil {
			return err
		}
		if settled == 0 || changed == 0 {
			return convergo.Permanent(fmt.Errorf("order %s: %s: hold or stock row does not cover %d pieces; the numbers were changed from outside",
				orderNo, flowKey(kind, orderNo, n.sku), n.quantity))
		}
		if err := s.mustFlow(ctx, tx, kind, orderNo, n, e.Key); err != nil {
			return err
		}
	}
	return nil
}

// holds of the order, in SKU order.
func (s *Service) holds(ctx context.Context, tx convergo.Tx, orderNo string) (holds []need, err error) {
	rows, err := tx.QueryContext(ctx, s.sql.Get("Holds"), orderNo)
	if err != nil {
		return nil, fmt.Errorf("holds of %s: %w", orderNo, err)
	}
	defer rows.Close()
	for rows.Next() {
		var n need
		var returned int64
		var state string
		if err := rows.Scan(&n.sku, &n.quantity, &returned, &state); err != nil {
			return nil, fmt.Errorf("holds of %s: %w", orderNo, err)
		}
		holds = append(holds, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("holds of %s: %w", orderNo, err)
	}
	return holds, nil
}

// refunded takes the refunded pieces back, once per refund and SKU, and never more than were deducted.
//
// A refund whose sale has not been applied here is early: again. A refund of money only (no pieces) changes nothing here.
func (s *Service) refunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	refund, err := trade.Decode[trade.Refund](e)
	if err != nil {
		return err
	}
	needs, err := merge(len(refund.Lines), func(i int) (string, int64) { return refund.Lines[i].SKU, refund.Lines[i].Quantity })
	if err != nil {
		return fmt.Errorf("refund %s: %w", refund.RefundNo, err)
	}
	order, err := s.order(ctx, tx, refund.OrderNo)
	switch {
	case err != nil || len(needs) == 0:
		return err
	case order == nil || order.state == Held:
		return fmt.Errorf("refund %s: the stock of order %s is not deducted yet", refund.RefundNo, refund.OrderNo)
	case order.state != Deducted:
		return convergo.Permanent(fmt.Errorf("refund %s: the stock of order %s is %s: nothing was sold", refund.RefundNo, refund.OrderNo,
			order.state))
	}
	fresh := 0
	for _, n := range needs {
		once, err := s.takeBack(ctx, tx, e, refund, n)
		if err != nil {
			return err
		}
		if once {
			fresh++
		}
	}
	if fresh == 0 {
		return nil // another event told of this refund before
	}
	bumped, err := s.change(ctx, tx, "BumpOrder", convergo.Micros(s.Now()), order.orderNo, order.version)
	if err == nil && bumped == 0 {
		err = fmt.Errorf("order %s: another refund was applied at the same moment; try again", order.orderNo)
	}
	if err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.StockReturned, convergo.Key("StockReturned:"+refund.RefundNo), order.version+1,
		trade.Answer{OrderNo: refund.OrderNo, UserID: refund.UserID, RefundNo: refund.RefundNo})
}

func (s *Service) takeBack(ctx context.Context, tx convergo.Tx, e convergo.Event, refund trade.Refund, n need) (fresh bool, err error) {
	key := flowKey(restock, refund.OrderNo, n.sku) + ":" + refund.RefundNo
	if fresh, err = s.flow(ctx, tx, key, restock, refund.OrderNo, n, e.Key, ""); err != nil || !fresh {
		return false, err
	}
	now := convergo.Micros(s.Now())
	held, err := s.change(ctx, tx, "ReturnHold", n.quantity, now, refund.OrderNo, n.sku, n.quantity)
	if err != nil {
		return false, err
	}
	back, err := s.change(ctx, tx, "Return", n.quantity, n.quantity, now, n.sku, n.quantity)
	if err != nil {
		return false, err
	}
	if held == 0 || back == 0 {
		return false, convergo.Permanent(fmt.Errorf("refund %s: order %s would get back more of %s than was deducted (%d more)",
			refund.RefundNo, refund.OrderNo, n.sku, n.quantity))
	}
	return true, nil
}
