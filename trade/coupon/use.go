package coupon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// use is one use of a coupon by one business object of one customer.
type use struct {
	key     string // {biz_id}-{biz_type}-{user}: starts with the order's number, by which its story is found
	code    string
	orderNo string
	userID  string
	amount  int64 // face value that was promised
	state   machine.State
	version int64
}

func useKey(orderNo, userID string) string { return orderNo + "-" + bizOrder + "-" + userID }

// refusal is why a coupon cannot be used: the reason of CouponRejected.
type refusal string

func (r refusal) Error() string { return string(r) }

// created locks the coupon that the order names and answers CouponLocked or CouponRejected.
//
// A use that is known was answered already (an order recognizes its own earlier use and is not refused by it), or its
// cancellation came first (a RELEASED tombstone): nothing may be locked for it, because nobody would release it again.
func (s *Service) created(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	placed, err := trade.Decode[trade.OrderPlaced](e)
	if err != nil || placed.CouponCode == "" {
		return err
	}
	if err := errors.Join(trade.CheckOrderNo(placed.OrderNo), trade.CheckUserID(placed.UserID),
		trade.CheckCouponCode(placed.CouponCode)); err != nil {
		return convergo.Permanent(err)
	}
	known, err := s.use(ctx, tx, placed.OrderNo, placed.UserID)
	if err != nil || known != nil {
		return err
	}
	err = s.lock(ctx, tx, e, placed)
	var refused refusal
	if !errors.As(err, &refused) {
		return err
	}
	u := use{key: useKey(placed.OrderNo, placed.UserID), code: placed.CouponCode, orderNo: placed.OrderNo, userID: placed.UserID}
	if err := s.begin(ctx, tx, e, u, Rejected, refused.Error(), "reject", "created"); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.CouponRejected, 1, trade.Answer{OrderNo: u.orderNo, UserID: u.userID, Currency: placed.Currency,
		Reason: refused.Error()})
}

// lock counts one use, or fails with a refusal and has changed nothing.
func (s *Service) lock(ctx context.Context, tx convergo.Tx, e convergo.Event, placed trade.OrderPlaced) error {
	c, err := s.coupon(ctx, tx, placed.CouponCode)
	if err != nil {
		return err
	}
	// The customer's right is judged by when he placed the order, not by when the event was handled: a backlog must not
	// cost him his coupon.
	at := e.CreatedAt
	if at.IsZero() {
		at = s.Now()
	}
	if why := c.refuses(placed, at); why != "" {
		return why
	}
	if _, err := s.change(ctx, tx, "OpenUser", c.Code, placed.UserID, c.PerUserLimit); err != nil {
		return err
	}
	return s.DB.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error {
		n, err := s.change(ctx, tx, "LockUser", c.Code, placed.UserID)
		switch {
		case err != nil:
			return err
		case n == 0:
			return refusal(fmt.Sprintf("%s may be used %d times by one customer, and is", c.Code, c.PerUserLimit))
		}
		n, err = s.change(ctx, tx, "Lock", c.Code)
		switch {
		case err != nil:
			return err
		case n == 0:
			return refusal(fmt.Sprintf("%s is used up: all %d uses are taken", c.Code, c.TotalLimit))
		}
		u := use{key: useKey(placed.OrderNo, placed.UserID), code: c.Code, orderNo: placed.OrderNo, userID: placed.UserID, amount: c.FaceValue}
		if err := s.begin(ctx, tx, e, u, Locked, "", "lock", "created"); err != nil {
			return err
		}
		if err := s.effect(ctx, tx, e, u, "LOCK", ""); err != nil {
			return err
		}
		return s.emit(ctx, tx, trade.CouponLocked, 1, trade.Answer{OrderNo: u.orderNo, UserID: u.userID, Currency: c.Currency,
			Amount: c.FaceValue})
	})
}

// refuses tells why the coupon cannot be used for the order; empty when it can. A nil coupon is one that is not known.
func (c *Coupon) refuses(placed trade.OrderPlaced, at time.Time) refusal {
	switch {
	case c == nil:
		return refusal(fmt.Sprintf("%s is not known", placed.CouponCode))
	case c.Currency != placed.Currency:
		return refusal(fmt.Sprintf("%s is in %s, the order in %s", c.Code, c.Currency, placed.Currency))
	case placed.GoodsTotal < c.MinimumSpend:
		return refusal(fmt.Sprintf("%s needs goods of %s or more", c.Code, trade.FormatAmount(c.MinimumSpend, c.Currency)))
	case at.Before(c.ValidFrom):
		return refusal(fmt.Sprintf("%s is valid from %s", c.Code, c.ValidFrom.Format(time.RFC3339)))
	case !at.Before(c.ValidUntil):
		return refusal(fmt.Sprintf("%s expired at %s", c.Code, c.ValidUntil.Format(time.RFC3339)))
	}
	return ""
}

// paid redeems the lock.
//
// A use that is not known cannot have been promised: the order became payable only after this service committed its lock.
// So it is lost or still on its way: again, and after the last attempt a person.
func (s *Service) paid(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	paid, err := trade.Decode[trade.Paid](e)
	if err != nil || paid.CouponCode == "" {
		return err
	}
	u, err := s.use(ctx, tx, paid.OrderNo, paid.UserID)
	switch {
	case err != nil:
		return err
	case u == nil:
		return fmt.Errorf("order %s is paid with coupon %s but its use is not known here: its OrderCreated has not been applied",
			paid.OrderNo, paid.CouponCode)
	}
	version, err := s.move(ctx, tx, e, u, "redeem", paid.Transaction)
	if err != nil || version == 0 {
		return err
	}
	if err := s.must(ctx, tx, "Redeem", u.code); err != nil {
		return err
	}
	if err := s.effect(ctx, tx, e, *u, "REDEEM", ""); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.CouponRedeemed, version,
		trade.Answer{OrderNo: u.orderNo, UserID: u.userID, Currency: paid.Currency, Amount: paid.CouponTotal})
}

// canceled gives back the use that this order locked. When it overtakes its OrderCreated it leaves a tombstone, so that the
// creation locks nothing afterwards. A refused coupon has nothing to give back.
func (s *Service) canceled(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	canceled, err := trade.Decode[trade.Canceled](e)
	if err != nil || canceled.CouponCode == "" {
		return err
	}
	u, err := s.use(ctx, tx, canceled.OrderNo, canceled.UserID)
	switch {
	case err != nil:
		return err
	case u == nil:
		tomb := use{key: useKey(canceled.OrderNo, canceled.UserID), code: canceled.CouponCode, orderNo: canceled.OrderNo, userID: canceled.UserID}
		return s.begin(ctx, tx, e, tomb, Released, "canceled before it was created here", "release", "canceled")
	case u.state == Rejected:
		return nil
	}
	version, err := s.move(ctx, tx, e, u, "release", "canceled")
	if err != nil || version == 0 {
		return err
	}
	return s.giveBack(ctx, tx, e, *u, "Release", "RELEASE", "LOCK", version, trade.Answer{Reason: canceled.Reason})
}

// refunded gives back the redeemed use when the whole order is refunded; a part of an order keeps its discount. The use
// counts as free again; whether the coupon can be used once more is judged like any new use, so not after it expired.
//
// A refund whose payment has not been applied here is early: again.
func (s *Service) refunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	refund, err := trade.Decode[trade.Refund](e)
	if err != nil || refund.Coupon == "" || !refund.Full {
		return err
	}
	u, err := s.use(ctx, tx, refund.OrderNo, refund.UserID)
	switch {
	case err != nil:
		return err
	case u == nil || u.state == Locked:
		return fmt.Errorf("refund %s: coupon %s of order %s is not redeemed yet", refund.RefundNo, refund.Coupon, refund.OrderNo)
	}
	version, err := s.move(ctx, tx, e, u, "return", refund.RefundNo)
	if err != nil || version == 0 {
		return err
	}
	return s.giveBack(ctx, tx, e, *u, "GiveBack", "RETURN", "REDEEM", version, trade.Answer{RefundNo: refund.RefundNo,
		Currency: refund.Currency})
}

// giveBack takes one use off the counters, once: the move of the machine was made in this transaction.
func (s *Service) giveBack(
	ctx context.Context, tx convergo.Tx, e convergo.Event, u use, statement, kind, reversed string, version int64, a trade.Answer,
) error {
	if err := s.must(ctx, tx, "ReleaseUser", u.code, u.userID); err != nil {
		return err
	}
	if err := s.must(ctx, tx, statement, u.code); err != nil {
		return err
	}
	if err := s.effect(ctx, tx, e, u, kind, effectKey(reversed, u)); err != nil {
		return err
	}
	a.OrderNo, a.UserID = u.orderNo, u.userID
	return s.emit(ctx, tx, trade.CouponReturned, version, a)
}

// begin writes the use's row in its first state.
func (s *Service) begin(
	ctx context.Context, tx convergo.Tx, e convergo.Event, u use, first machine.State, reason, move, cause string,
) error {
	at := s.Now()
	fresh, err := s.change(ctx, tx, "AddUse", u.key, u.code, bizOrder, u.orderNo, u.userID, u.amount, string(first), reason,
		convergo.Micros(at), convergo.Micros(at))
	if err != nil {
		return err
	}
	if fresh == 0 {
		// Another process wrote the row between our look and our insert, and has committed by now. Everything of this attempt is
		// undone; the next one sees the row.
		return fmt.Errorf("order %s: another event of it was applied at the same moment; try again", u.orderNo)
	}
	return s.uses.Begin(ctx, tx, machine.Request{ID: u.key, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: at}, first)
}

// move applies a move of the use. The version is 0 when it was made before by the same cause; everything else that is not an
// application is an error for a person, such as a payment for a coupon that was given back.
func (s *Service) move(ctx context.Context, tx convergo.Tx, e convergo.Event, u *use, move, cause string) (version int64, err error) {
	res, err := s.uses.Apply(ctx, tx, machine.Request{ID: u.key, Move: move, Cause: cause, Key: e.Key, Actor: Name, At: s.Now()})
	switch {
	case err != nil:
		return 0, err
	case res.Answer == machine.Applied:
		return res.Version, nil
	case res.Answer == machine.Already:
		return 0, nil
	}
	return 0, convergo.Permanent(fmt.Errorf("order %s: cannot %s coupon %s for %q: its use is %s because of %q",
		u.orderNo, move, u.code, cause, res.State, res.Cause))
}

// must runs a statement that has to change its row: the use's state says that the counters cover it.
func (s *Service) must(ctx context.Context, tx convergo.Tx, statement string, args ...any) error {
	n, err := s.change(ctx, tx, statement, args...)
	if err == nil && n == 0 {
		err = convergo.Permanent(fmt.Errorf("%s %v: the counters do not cover this use; they were changed from outside", statement, args))
	}
	return err
}

// effectKey carries the identity of requirement F5: business type, business id, customer.
func effectKey(kind string, u use) convergo.Key {
	return convergo.Key("COUPON_" + kind + ":" + bizOrder + ":" + u.orderNo + ":" + u.userID)
}

func (s *Service) effect(ctx context.Context, tx convergo.Tx, e convergo.Event, u use, kind string, reverses convergo.Key) error {
	names := map[string]string{"LOCK": "coupon.lock", "REDEEM": "coupon.redeem", "RELEASE": "coupon.release", "RETURN": "coupon.return"}
	fresh, err := trade.RecordEffect(ctx, tx, s.DB.Dialect(), trade.Effect{
		Key: effectKey(kind, u), OrderNo: u.orderNo, Kind: names[kind], Reverses: reverses, Cause: e.Key,
		Detail: fmt.Sprintf(`{"code":%q,"amount":%d}`, u.code, u.amount), At: s.Now(),
	})
	if err == nil && !fresh {
		err = convergo.Permanent(fmt.Errorf("effect %s is there although the use's state says that it cannot be", effectKey(kind, u)))
	}
	return err
}

// use is nil when it is not known.
func (s *Service) use(ctx context.Context, tx convergo.Tx, orderNo, userID string) (*use, error) {
	var u use
	err := tx.QueryRowContext(ctx, s.sql.Get("FindUse"), useKey(orderNo, userID)).
		Scan(&u.key, &u.code, &u.orderNo, &u.userID, &u.amount, &u.state, &u.version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find use %s: %w", useKey(orderNo, userID), err)
	}
	return &u, nil
}
