package points

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// order is what is known of an order.
type order struct {
	no        string
	userID    string
	state     machine.State
	version   int64
	locked    int64 // at its creation
	spent     int64
	givenBack int64 // of the spent ones
	granted   int64
	reversed  int64 // of the granted ones
}

// order is nil when it is not known.
func (s *Service) order(ctx context.Context, tx convergo.Tx, orderNo string) (*order, error) {
	var o order
	err := tx.QueryRowContext(ctx, s.sql.Get("FindOrder"), orderNo).
		Scan(&o.no, &o.userID, &o.state, &o.version, &o.locked, &o.spent, &o.givenBack, &o.granted, &o.reversed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find order %s: %w", orderNo, err)
	}
	return &o, nil
}

// created locks the points that the customer wants to spend and answers PointsLocked or PointsRejected.
//
// An order that is known was answered already, or its cancellation or payment came first: nothing may be locked for it,
// because nobody would unlock it again.
func (s *Service) created(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	placed, err := trade.Decode[trade.OrderPlaced](e)
	if err != nil || placed.PointsToSpend == 0 {
		return err
	}
	if err := errors.Join(trade.CheckOrderNo(placed.OrderNo), trade.CheckUserID(placed.UserID),
		trade.CheckMinor(placed.PointsToSpend)); err != nil {
		return convergo.Permanent(err)
	}
	known, err := s.order(ctx, tx, placed.OrderNo)
	if err != nil || known != nil {
		return err
	}
	n := placed.PointsToSpend
	locked, err := s.change(ctx, tx, "Lock", n, convergo.Micros(s.Now()), placed.UserID, n)
	if err != nil {
		return err
	}
	answer := trade.Answer{OrderNo: placed.OrderNo, UserID: placed.UserID, Currency: placed.Currency}
	o := order{no: placed.OrderNo, userID: placed.UserID}
	if locked == 0 {
		available := int64(0)
		a, err := s.account(ctx, tx, placed.UserID)
		if err != nil {
			return err
		}
		if a != nil {
			available = a.balance - a.locked
		}
		answer.Reason = fmt.Sprintf("%d points wanted, %d available", n, available)
		o.state = Rejected
		if err := s.begin(ctx, tx, e, o, answer.Reason, "reject", "created"); err != nil {
			return err
		}
		return s.emit(ctx, tx, trade.PointsRejected, convergo.Key("PointsRejected:"+placed.OrderNo), 1, answer)
	}
	o.state, o.locked = Locked, n
	if err := s.begin(ctx, tx, e, o, "", "lock", "created"); err != nil {
		return err
	}
	key := lockKind + ":" + placed.OrderNo
	if err := s.mustRecord(ctx, tx, entry{key: key, kind: lockKind, userID: o.userID, orderNo: o.no, locked: n, cause: e.Key}); err != nil {
		return err
	}
	answer.Points = n
	return s.emit(ctx, tx, trade.PointsLocked, convergo.Key("PointsLocked:"+placed.OrderNo), 1, answer)
}

// begin writes the order's row in its first state.
func (s *Service) begin(ctx context.Context, tx convergo.Tx, e convergo.Event, o order, reason, move, cause string) error {
	at := s.Now()
	fresh, err := s.change(ctx, tx, "AddOrder", o.no, o.userID, string(o.state), o.locked, reason, convergo.Micros(at), convergo.Micros(at))
	if err != nil {
		return err
	}
	if fresh == 0 {
		// Another process wrote the row between our look and our insert, and has committed by now. Everything of this attempt is
		// undone; the next one sees the row.
		return fmt.Errorf("order %s: another event of it was applied at the same moment; try again", o.no)
	}
	return s.orders.Begin(ctx, tx, machine.Request{ID: o.no, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: at}, o.state)
}

// canceled unlocks what this order locked. When it overtakes its OrderCreated it leaves a tombstone, so that the creation locks
// nothing afterwards. An order that was refused its points has nothing to unlock.
func (s *Service) canceled(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	canceled, err := trade.Decode[trade.Canceled](e)
	if err != nil || canceled.PointsToSpend == 0 {
		return err
	}
	o, err := s.order(ctx, tx, canceled.OrderNo)
	switch {
	case err != nil:
		return err
	case o == nil:
		tomb := order{no: canceled.OrderNo, userID: canceled.UserID, state: Released}
		return s.begin(ctx, tx, e, tomb, "canceled before it was created here", "release", "canceled")
	case o.state == Rejected:
		return nil
	}
	version, err := s.move(ctx, tx, e, o.no, "release", "canceled")
	if err != nil || version == 0 {
		return err
	}
	err = s.mustRecord(ctx, tx, entry{
		key: unlockKind + ":" + o.no, kind: unlockKind, userID: o.userID, orderNo: o.no, locked: -o.locked, cause: e.Key,
		undoes: convergo.Key(lockKind + ":" + o.no),
	})
	if err != nil {
		return err
	}
	return s.unlock(ctx, tx, o.userID, o.locked, 0)
}

// move applies a move of the order's machine. The version is 0 when it was made before by the same cause; everything else
// that is not an application is an error for a person.
func (s *Service) move(ctx context.Context, tx convergo.Tx, e convergo.Event, orderNo, move, cause string) (version int64, err error) {
	res, err := s.orders.Apply(ctx, tx, machine.Request{ID: orderNo, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: s.Now()})
	switch {
	case err != nil:
		return 0, err
	case res.Answer == machine.Applied:
		return res.Version, nil
	case res.Answer == machine.Already:
		return 0, nil
	}
	return 0, convergo.Permanent(fmt.Errorf("order %s: cannot %s for %q: its points are %s because of %q", orderNo, move, cause,
		res.State, res.Cause))
}

// paid spends the order's points, frees what it locked and did not use, and grants new ones.
//
// An order that spends points and is not known here cannot have become payable: its lock is lost or still on its way: again,
// and after the last attempt a person. An order that spends none is unknown as a rule and begins here as PAID.
func (s *Service) paid(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	paid, err := trade.Decode[trade.Paid](e)
	if err != nil {
		return err
	}
	granted, err := earned(paid.Payable, paid.Currency)
	if err = errors.Join(err, trade.CheckOrderNo(paid.OrderNo), trade.CheckUserID(paid.UserID),
		trade.CheckMinor(paid.PointsSpent)); err != nil {
		return convergo.Permanent(fmt.Errorf("order %q: %w", paid.OrderNo, err))
	}
	o, err := s.order(ctx, tx, paid.OrderNo)
	if err != nil {
		return err
	}
	version, err := s.pay(ctx, tx, e, o, paid)
	if err != nil || version == 0 {
		return err
	}
	err = s.mustRecord(ctx, tx, entry{
		key: orderPoint + ":" + paid.OrderNo, kind: orderPoint, userID: paid.UserID, orderNo: paid.OrderNo, points: granted, cause: e.Key,
	})
	if err != nil {
		return err
	}
	if err := s.credit(ctx, tx, paid.UserID, granted); err != nil {
		return err
	}
	if _, err := s.change(ctx, tx, "PayOrder", paid.PointsSpent, granted, convergo.Micros(s.Now()), paid.OrderNo); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.PointsGranted, convergo.Key("PointsGranted:"+paid.OrderNo), version,
		trade.Answer{OrderNo: paid.OrderNo, UserID: paid.UserID, Currency: paid.Currency, Points: granted})
}

// pay brings the order to PAID and spends its points; the version is 0 when the same payment did so before.
func (s *Service) pay(ctx context.Context, tx convergo.Tx, e convergo.Event, o *order, paid trade.Paid) (version int64, err error) {
	if o == nil {
		if paid.PointsSpent > 0 {
			return 0, fmt.Errorf("order %s is paid with %d points but not known here: its OrderCreated has not been applied", paid.OrderNo,
				paid.PointsSpent)
		}
		return 1, s.begin(ctx, tx, e, order{no: paid.OrderNo, userID: paid.UserID, state: Paid}, "", "pay", paid.Transaction)
	}
	if version, err = s.move(ctx, tx, e, o.no, "pay", paid.Transaction); err != nil || version == 0 {
		return 0, err
	}
	if paid.PointsSpent > o.locked {
		return 0, convergo.Permanent(fmt.Errorf("order %s spends %d points and locked %d: %w", o.no, paid.PointsSpent, o.locked,
			convergo.ErrInvalid))
	}
	if paid.PointsSpent > 0 {
		spent := entry{key: spendKind + ":" + o.no, kind: spendKind, userID: o.userID, orderNo: o.no, cause: e.Key}
		spent.points, spent.locked = -paid.PointsSpent, -paid.PointsSpent
		if err := s.mustRecord(ctx, tx, spent); err != nil {
			return 0, err
		}
	}
	if rest := o.locked - paid.PointsSpent; rest > 0 {
		freed := entry{key: unlockKind + ":" + o.no, kind: unlockKind, userID: o.userID, orderNo: o.no, locked: -rest, cause: e.Key}
		if err := s.mustRecord(ctx, tx, freed); err != nil {
			return 0, err
		}
	}
	return version, s.unlock(ctx, tx, o.userID, o.locked, paid.PointsSpent)
}

// earned is what a paid order grants: one point per whole unit of its currency paid in cash, at least one.
func earned(cash int64, currency string) (int64, error) {
	places, ok := trade.Exponent(currency)
	if !ok {
		return 0, fmt.Errorf("currency %q is not known: %w", currency, convergo.ErrInvalid)
	}
	if err := trade.CheckMinor(cash); err != nil {
		return 0, err
	}
	unit := int64(1)
	for range places {
		unit *= 10
	}
	return max(1, cash/unit), nil
}

// refunded gives spent points back and takes granted points back, once per refund.
//
// What is taken back follows the cash that was refunded so far, not this refund alone: the parts then sum to the whole, and
// refunds that arrive in the other order take the same in the end. Points that were spent meanwhile become debt. A refund
// whose payment has not been applied here is early: again.
func (s *Service) refunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	refund, err := trade.Decode[trade.Refund](e)
	if err != nil {
		return err
	}
	o, err := s.order(ctx, tx, refund.OrderNo)
	switch {
	case err != nil:
		return err
	case o == nil || o.state == Locked:
		return fmt.Errorf("refund %s: order %s is not paid here yet", refund.RefundNo, refund.OrderNo)
	case o.state != Paid:
		return convergo.Permanent(fmt.Errorf("refund %s: the points of order %s are %s: nothing was granted", refund.RefundNo,
			refund.OrderNo, o.state))
	case refund.PointsBack < 0 || refund.CashSoFar < 0 || refund.CashSoFar > refund.CashPaid:
		return convergo.Permanent(fmt.Errorf("refund %s: %d of %d refunded, %d points back: %w",
			refund.RefundNo, refund.CashSoFar, refund.CashPaid, refund.PointsBack, convergo.ErrInvalid))
	}
	back, taken := refund.PointsBack, toReverse(*o, refund)
	fresh, err := s.record(ctx, tx, entry{
		key: reverseKind + ":" + refund.RefundNo, kind: reverseKind, userID: o.userID, orderNo: o.no, points: -taken, cause: e.Key,
	})
	if err != nil || !fresh {
		return err
	}
	if o.givenBack+back > o.spent {
		return convergo.Permanent(fmt.Errorf("refund %s gives %d points back; order %s spent %d and got %d back: %w",
			refund.RefundNo, back, o.no, o.spent, o.givenBack, convergo.ErrInvalid))
	}
	changed, err := s.change(ctx, tx, "RefundOrder", back, taken, convergo.Micros(s.Now()), o.no, o.version, back, taken)
	if err == nil && changed == 0 {
		err = fmt.Errorf("order %s: another refund was applied at the same moment; try again", o.no)
	}
	if err != nil {
		return err
	}
	if err := s.moveBack(ctx, tx, e, *o, refund.RefundNo, back, taken); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.PointsReversed, convergo.Key("PointsReversed:"+refund.RefundNo), o.version+1, trade.Answer{
		OrderNo: o.no, UserID: o.userID, Currency: refund.Currency, RefundNo: refund.RefundNo, Points: taken, Amount: back,
	})
}

// moveBack changes the balance: first what comes back, so that less of what is taken becomes debt.
func (s *Service) moveBack(ctx context.Context, tx convergo.Tx, e convergo.Event, o order, refundNo string, back, taken int64) error {
	if back > 0 {
		given := entry{key: backKind + ":" + refundNo, kind: backKind, userID: o.userID, orderNo: o.no, points: back, cause: e.Key}
		if err := s.mustRecord(ctx, tx, given); err != nil {
			return err
		}
		if err := s.credit(ctx, tx, o.userID, back); err != nil {
			return err
		}
	}
	if taken == 0 {
		return nil
	}
	return s.debit(ctx, tx, o.userID, taken)
}

// toReverse is how many of the granted points this refund takes back.
func toReverse(o order, refund trade.Refund) int64 {
	target := int64(0)
	switch {
	case refund.Full:
		target = o.granted // also of an order that was paid without cash and was granted its one point
	case refund.CashPaid > 0:
		target = trade.Cumulative(o.granted, refund.CashSoFar, refund.CashPaid)
	}
	return max(0, target-o.reversed) // a later refund that was applied first has taken this one's part already
}
