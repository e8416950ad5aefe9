package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// mustFind is the order that an event is about. The order was committed before anything was told about it, so an unknown
// one never becomes known.
func (s *Service) mustFind(ctx context.Context, tx convergo.Tx, no string) (*row, error) {
	o, err := s.findOrder(ctx, tx, no)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, convergo.Permanent(fmt.Errorf("there is no order %q", no))
	}
	return o, nil
}

// apply makes a move of the order and, when it was made, tells those who wait for it.
func (s *Service) apply(ctx context.Context, tx convergo.Tx, r machine.Request) (machine.Result, error) {
	r.At = s.deps.Now()
	res, err := Orders().Apply(ctx, tx, r)
	switch {
	case errors.Is(err, machine.ErrNotFound):
		return res, convergo.Permanent(err)
	case err == nil && res.Answer == machine.Applied:
		s.changes.announce(tx, r.ID, res.State, false)
	}
	return res, err
}

type closeRequest struct {
	reason string
	key    convergo.Key // what led to it
	actor  string
}

// close moves a CREATED order to CLOSING; applied is false when the order is not CREATED any more, whatever it is. It
// releases nothing: that happens when the payment side has made sure that no money can come (onPaymentClosed).
func (s *Service) close(ctx context.Context, tx convergo.Tx, no string, r closeRequest) (applied bool, err error) {
	res, err := s.apply(ctx, tx, machine.Request{ID: no, Move: "close", Cause: cutText(r.reason, 200), Key: r.key, Actor: r.actor})
	if err != nil || res.Answer != machine.Applied {
		return false, err
	}
	reason := cutText(r.reason, 500)
	if _, err := s.exec(ctx, tx, "SetClosing", reason, convergo.Micros(s.deps.Now()), no); err != nil {
		return false, err
	}
	return true, s.emit(ctx, tx, trade.OrderClosing, "", no, res.Version, trade.Closing{OrderNo: no, Reason: reason})
}

// cutText cuts at a rune, to what a column holds in bytes.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

func (s *Service) onTimeout(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.Moved](e)
	if err != nil {
		return err
	}
	_, err = s.close(ctx, tx, p.OrderNo, closeRequest{reason: "timeout", key: e.Key, actor: Name})
	return err
}

// onRejected closes the order with the reason. An order that is closed already, for whatever reason, stays as it is.
func (s *Service) onRejected(what string) func(context.Context, convergo.Tx, convergo.Event) error {
	return func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
		a, err := trade.Decode[trade.Answer](e)
		if err != nil {
			return err
		}
		reason := what
		if a.Reason != "" {
			reason += ": " + strings.TrimPrefix(a.Reason, what+": ")
		}
		_, err = s.close(ctx, tx, a.OrderNo, closeRequest{reason: reason, key: e.Key, actor: e.Topic})
		return err
	}
}

func (s *Service) onStockHeld(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.answered(ctx, tx, e, "SetStockHeld", nil)
}

func (s *Service) onRiskApproved(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.answered(ctx, tx, e, "SetRiskApproved", nil)
}

func (s *Service) onCouponLocked(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.answered(ctx, tx, e, "SetCouponHeld", func(a trade.Answer) int64 { return a.Amount })
}

func (s *Service) onPointsLocked(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.answered(ctx, tx, e, "SetPointsHeld", func(a trade.Answer) int64 { return a.Points })
}

// answered notes a positive answer and, when it was the last one that was missing, makes the order payable. The UPDATE
// takes the order's row: of two last answers at one moment the second waits, and then sees that nothing is missing.
func (s *Service) answered(ctx context.Context, tx convergo.Tx, e convergo.Event, statement string, value func(trade.Answer) int64) error {
	a, err := trade.Decode[trade.Answer](e)
	if err != nil {
		return err
	}
	args := []any{convergo.Micros(s.deps.Now()), a.OrderNo}
	if value != nil {
		v := value(a)
		if err := trade.CheckMinor(v); err != nil {
			return convergo.Permanent(fmt.Errorf("%s of %s: %w", e.Type, a.OrderNo, err))
		}
		args = append([]any{v}, args...)
	}
	if _, err := s.exec(ctx, tx, statement, args...); err != nil {
		return err
	}
	var ready bool
	err = tx.QueryRowContext(ctx, s.sql.Get("ReadyToPay"), a.OrderNo).Scan(&ready)
	if errors.Is(err, sql.ErrNoRows) {
		return convergo.Permanent(fmt.Errorf("there is no order %q", a.OrderNo))
	}
	if err != nil {
		return fmt.Errorf("ReadyToPay: %w", err)
	}
	if !ready {
		return nil // an order that is closed meanwhile gets its things released by OrderCanceled
	}
	o, err := s.mustFind(ctx, tx, a.OrderNo)
	if err != nil {
		return err
	}
	return s.makePayable(ctx, tx, *o, e.Key)
}

// makePayable stores the shares, once and for good: the coupon is limited to the goods, the points to what is left, each is
// split over the lines by largest remainder. An order of 0 is paid at once, without the channel.
func (s *Service) makePayable(ctx context.Context, tx convergo.Tx, o row, cause convergo.Key) error {
	lines, err := s.lines(ctx, tx, o.OrderNo)
	if err != nil {
		return err
	}
	shared, coupon, points := share(plainLines(lines), o.CouponValue, min(o.PointsLocked, o.PointsToSpend))
	if coupon == 0 && points == 0 {
		if _, err := s.exec(ctx, tx, "SetWholeLines", o.OrderNo); err != nil {
			return err
		}
		shared = nil
	}
	for _, l := range shared {
		if _, err := s.exec(ctx, tx, "SetLineShares", l.CouponShare, l.PointsShare, l.Payable, o.OrderNo, l.LineNo); err != nil {
			return err
		}
	}
	payable, at := o.GoodsTotal-coupon-points, convergo.Micros(s.deps.Now())
	n, err := s.exec(ctx, tx, "SetPayable", coupon, points, payable, at, at, o.OrderNo)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("order %s changed while it became payable; try again", o.OrderNo)
	}
	if payable == 0 {
		o.CouponTotal, o.PointsSpent, o.Payable = coupon, points, 0
		return s.pay(ctx, tx, &o, payment{"none", "ZERO:" + o.OrderNo, cause})
	}
	s.changes.announce(tx, o.OrderNo, Created, true)
	return s.emit(ctx, tx, trade.OrderPayable, "", o.OrderNo, o.Version+1, trade.Payable{
		OrderNo: o.OrderNo, UserID: o.UserID, Currency: o.Currency, Amount: payable, ExpiresAt: convergo.FromMicros(o.ExpiresAt),
	})
}

// share splits a coupon and points over the lines. Amount = CouponShare + PointsShare + Payable on every line. It returns
// what of the coupon and of the points was used.
func share(lines []trade.Line, couponValue, points int64) (shared []trade.Line, coupon, spent int64) {
	weights, goods := make([]int64, len(lines)), int64(0)
	for i, l := range lines {
		weights[i] = l.Amount
		goods += l.Amount
	}
	coupon = min(couponValue, goods)
	spent = min(points, goods-coupon)
	couponShares := trade.Allocate(coupon, weights)
	for i := range weights {
		weights[i] -= couponShares[i]
	}
	pointShares := trade.Allocate(spent, weights)
	for i, l := range lines {
		l.CouponShare, l.PointsShare = couponShares[i], pointShares[i]
		l.Payable = l.Amount - l.CouponShare - l.PointsShare
		shared = append(shared, l)
	}
	return shared, coupon, spent
}

type payment struct {
	channel     string
	transaction string
	key         convergo.Key
}

func (p payment) cause() string { return p.channel + ":" + p.transaction }

// pay moves the order to PAID because of one payment. The same payment again changes nothing; a second one, or one for
// an order that is CANCELED, must have been told apart by the payment service, so here it is a fault for a person. o is the
// order as it was when it became payable or later: what OrderPaid tells of it does not change after that.
func (s *Service) pay(ctx context.Context, tx convergo.Tx, o *row, p payment) error {
	no := o.OrderNo
	res, err := s.apply(ctx, tx, machine.Request{ID: no, Move: "pay", Cause: p.cause(), Key: p.key, Actor: "payment"})
	if err != nil {
		return err
	}
	switch res.Answer {
	case machine.Already:
		return nil
	case machine.Conflict, machine.Stale:
		return convergo.Permanent(fmt.Errorf("payment %s for order %s: the order is %s (%s); the money must go back",
			p.cause(), no, res.State, res.Cause))
	}
	if _, err := s.exec(ctx, tx, "SetPaid", p.channel, p.transaction, convergo.Micros(s.deps.Now()), no); err != nil {
		return err
	}
	lines, err := s.lines(ctx, tx, no)
	if err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.OrderPaid, "", no, res.Version, trade.Paid{
		OrderNo: no, UserID: o.UserID, Currency: o.Currency, GoodsTotal: o.GoodsTotal, CouponCode: o.CouponCode,
		CouponTotal: o.CouponTotal, PointsSpent: o.PointsSpent, Payable: o.Payable, Channel: p.channel, Transaction: p.transaction,
		Lines: plainLines(lines),
	})
}

func (s *Service) onPaymentSucceeded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Receipt](e)
	if err != nil {
		return err
	}
	o, err := s.mustFind(ctx, tx, r.OrderNo)
	if err != nil {
		return err
	}
	// The payment service has checked this against what it was told; it is cheap to check against what we told.
	if r.Class != trade.Apply || o.PayableAt == 0 || r.Amount != o.Payable || r.Currency != o.Currency {
		return convergo.Permanent(fmt.Errorf("payment %s:%s of class %s, %d %s, does not fit order %s: payable %d %s (0: not yet payable)",
			r.Channel, r.Transaction, r.Class, r.Amount, r.Currency, o.OrderNo, o.Payable, o.Currency))
	}
	return s.pay(ctx, tx, o, payment{r.Channel, r.Transaction, e.Key})
}

// onPaymentClosed is the moment from which no money can come: only now is what was held let go.
func (s *Service) onPaymentClosed(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	a, err := trade.Decode[trade.Answer](e)
	if err != nil {
		return err
	}
	res, err := s.apply(ctx, tx, machine.Request{ID: a.OrderNo, Move: "cancel", Cause: "payment closed", Key: e.Key, Actor: "payment"})
	if err != nil {
		return err
	}
	switch res.Answer {
	case machine.Already:
		return nil
	case machine.Conflict, machine.Stale:
		return convergo.Permanent(fmt.Errorf("payment of order %s is closed but the order is %s (%s)", a.OrderNo, res.State, res.Cause))
	}
	o, err := s.mustFind(ctx, tx, a.OrderNo)
	if err != nil {
		return err
	}
	if _, err := s.exec(ctx, tx, "Touch", convergo.Micros(s.deps.Now()), o.OrderNo); err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.OrderCanceled, "", o.OrderNo, res.Version, trade.Canceled{
		OrderNo: o.OrderNo, UserID: o.UserID, Reason: o.Reason, CouponCode: o.CouponCode, PointsToSpend: o.PointsToSpend,
	})
}

func (s *Service) onDispatched(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.moved(ctx, tx, e, "ship", trade.OrderShipped)
}

func (s *Service) onDelivered(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	return s.moved(ctx, tx, e, "complete", trade.OrderCompleted)
}

// moved follows the shipment. An order that is being refunded, or is, stays so: a parcel on its way moves nothing
// forward. A delivery that overtakes its dispatch comes again later.
func (s *Service) moved(ctx context.Context, tx convergo.Tx, e convergo.Event, move, eventType string) error {
	a, err := trade.Decode[trade.Answer](e)
	if err != nil {
		return err
	}
	res, err := s.apply(ctx, tx, machine.Request{ID: a.OrderNo, Move: move, Key: e.Key, Actor: "shipping"})
	if err != nil {
		return err
	}
	if res.Answer != machine.Applied {
		switch res.State {
		case Created, Closing, Canceled:
			return convergo.Permanent(fmt.Errorf("%s of order %s, which is %s: goods left that nobody paid", e.Type, a.OrderNo, res.State))
		case Paid:
			return fmt.Errorf("%s of order %s before its dispatch; try again", e.Type, a.OrderNo)
		}
		return nil
	}
	var user string
	if err := tx.QueryRowContext(ctx, s.sql.Get("StateOfOrder"), a.OrderNo).Scan(&user, new(string), new(int64)); err != nil {
		return fmt.Errorf("StateOfOrder: %w", err)
	}
	if _, err := s.exec(ctx, tx, "Touch", convergo.Micros(s.deps.Now()), a.OrderNo); err != nil {
		return err
	}
	return s.emit(ctx, tx, eventType, "", a.OrderNo, res.Version, trade.Moved{OrderNo: a.OrderNo, UserID: user})
}
