package order

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

type askLine struct {
	LineNo   int   `json:"line_no"`
	Quantity int64 `json:"quantity" doc:"pieces to give back; at least 1"`
}

type askRefund struct {
	Key  string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	No   string `path:"no" maxLength:"64"`
	Body struct {
		Lines  []askLine `json:"lines,omitempty" doc:"which pieces; missing means all that is left"`
		Reason string    `json:"reason,omitempty" doc:"up to 200 bytes"`
	}
}

// RefundView is a refund as it is now. Amounts are minor units; Amount = CouponTotal + PointsBack + Cash.
type RefundView struct {
	RefundNo    string             `json:"refund_no"`
	OrderNo     string             `json:"order_no"`
	Status      machine.State      `json:"status"`
	Currency    string             `json:"currency"`
	Amount      int64              `json:"amount"`
	CouponTotal int64              `json:"coupon_total"`
	PointsBack  int64              `json:"points_back"`
	Cash        int64              `json:"cash"`
	Reason      string             `json:"reason,omitempty"`
	Failure     string             `json:"failure,omitempty"`
	ChannelID   string             `json:"channel_refund_id,omitempty"`
	Lines       []trade.RefundLine `json:"lines"`
	CreatedAt   time.Time          `json:"created_at"`
	UpdatedAt   time.Time          `json:"updated_at"`
}

type refundAnswer struct {
	Location string `header:"Location"`
	Body     RefundView
}

type refundsAnswer struct {
	Body struct {
		Refunds []RefundView `json:"refunds"`
	}
}

func (s *Service) refundRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "ask-refund", Method: http.MethodPost, Path: "/orders/{no}/refunds", Tags: []string{Name},
		DefaultStatus: http.StatusAccepted, Summary: "Refund an order, or pieces of its lines",
		Description: "The pieces are reserved at once, so that no two refunds can have the same ones; the money follows. " +
			"Shares of coupon and points come from what was stored with the order, the last refund of a line takes the rest.",
	}, s.askRefund)
	huma.Register(api, huma.Operation{
		OperationID: "list-refunds", Method: http.MethodGet, Path: "/orders/{no}/refunds", Tags: []string{Name}, Summary: "An order's refunds",
	}, func(ctx context.Context, in *struct {
		No string `path:"no" maxLength:"64"`
	}) (*refundsAnswer, error) {
		out := &refundsAnswer{}
		err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
			o, err := s.visible(ctx, tx, in.No)
			if err != nil {
				return err
			}
			out.Body.Refunds, err = s.refundsOf(ctx, tx, *o)
			return err
		})
		return out, err
	})
}

// RefusedByChannel is what a buyer reads of a refund that failed. What the channel said to the shop, such as that its account
// is empty, is the operator's to read.
const RefusedByChannel = "the payment channel refused it; the shop has to settle it"

func (s *Service) refundsOf(ctx context.Context, tx convergo.Tx, o row) ([]RefundView, error) {
	rows, err := selectRows[refundRow](ctx, tx, s.sql.Get("RefundsOfOrder"), o.OrderNo)
	if err != nil {
		return nil, err
	}
	lines, err := selectRows[refundLine](ctx, tx, s.sql.Get("LinesOfRefunds"), o.OrderNo)
	if err != nil {
		return nil, err
	}
	byRefund := make(map[string][]refundLine, len(rows))
	for _, l := range lines {
		byRefund[l.RefundNo] = append(byRefund[l.RefundNo], l)
	}
	views := make([]RefundView, 0, len(rows))
	for _, r := range rows {
		v := refundViewOf(r, o.Currency, payloadLines(byRefund[r.RefundNo]))
		if v.Failure != "" && trade.RequireOperator(ctx) != nil {
			v.Failure = RefusedByChannel
		}
		views = append(views, v)
	}
	return views, nil
}

func refundViewOf(r refundRow, currency string, lines []trade.RefundLine) RefundView {
	return RefundView{
		RefundNo: r.RefundNo, OrderNo: r.OrderNo, Status: r.Status, Currency: currency, Amount: r.Amount, CouponTotal: r.CouponTotal,
		PointsBack: r.PointsBack, Cash: r.Cash, Reason: r.Reason, Failure: r.Failure, ChannelID: r.ChannelID, Lines: lines,
		CreatedAt: convergo.FromMicros(r.CreatedAt), UpdatedAt: convergo.FromMicros(r.UpdatedAt),
	}
}

func payloadLines(rows []refundLine) []trade.RefundLine {
	lines := make([]trade.RefundLine, len(rows))
	for i, l := range rows {
		lines[i] = trade.RefundLine{LineNo: l.LineNo, SKU: l.SKU, Quantity: l.Quantity, Amount: l.Amount, CouponShare: l.CouponShare,
			PointsShare: l.PointsShare, Cash: l.Cash}
	}
	return lines
}

// askRefund reserves, in the transaction of the Idempotency-Key, what is to be given back. Two at once: both want to raise
// the order's refund_count; the second waits for the first one's commit, reads what is left after it and is refused if
// that is too little. No channel is called here: RefundApproved does that, and exists only if the reservation does.
func (s *Service) askRefund(ctx context.Context, in *askRefund) (*refundAnswer, error) {
	tx := trade.TxOf(ctx)
	if _, err := s.visible(ctx, tx, in.No); err != nil {
		return nil, err
	}
	if len(in.Body.Reason) > 200 || strings.ContainsFunc(in.Body.Reason, unicode.IsControl) {
		return nil, trade.Invalid("body.reason", "the reason is longer than 200 bytes or has control characters", "send a shorter, plain text")
	}
	// A program that filtered its lines down to none does not want all of them back.
	if in.Body.Lines != nil && len(in.Body.Lines) == 0 {
		return nil, trade.Invalid("body.lines", "the list of lines is empty", "name the lines, or leave lines out to refund all that is left")
	}
	now := s.deps.Now()
	if _, err := s.exec(ctx, tx, "LockForRefund", convergo.Micros(now), in.No); err != nil {
		return nil, err
	}
	o, err := s.visible(ctx, tx, in.No)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]machine.State{Paid, Shipped, Completed, Refunding}, o.Status) {
		return nil, trade.Conflict("path.no", fmt.Sprintf("order %s is %s: there is nothing to give back", o.OrderNo, o.Status),
			"only a paid order can be refunded")
	}
	if len(in.Body.Lines) > 0 && o.RefundCount >= int64(s.cfg.MaxRefunds) {
		return nil, trade.Conflict("path.no", fmt.Sprintf("order %s has %d refunds, the most that one may have", o.OrderNo, o.RefundCount-1),
			"ask for all that is left: leave lines out")
	}
	lines, err := s.lines(ctx, tx, in.No)
	if err != nil {
		return nil, err
	}
	parts, err := choose(lines, in.Body.Lines)
	if err != nil {
		return nil, err
	}
	return s.openRefund(ctx, tx, *o, lines, parts, in, now)
}

// choose turns the wish into shares of what is left of each line. lines is updated to what is left afterwards.
func choose(lines []line, wish []askLine) ([]trade.RefundLine, error) {
	if len(wish) == 0 {
		for _, l := range lines {
			if left := l.Quantity - l.RefundedQuantity; left > 0 {
				wish = append(wish, askLine{l.LineNo, left})
			}
		}
	}
	if len(wish) == 0 {
		return nil, trade.Conflict("path.no", "nothing is left to refund: 0 pieces, amount 0", "see GET /orders/{no}/refunds")
	}
	parts := make([]trade.RefundLine, 0, len(wish))
	seen := map[int]bool{}
	for i, w := range wish {
		field := fmt.Sprintf("body.lines[%d]", i)
		if w.LineNo < 1 || w.LineNo > len(lines) {
			return nil, trade.Invalid(field+".line_no", fmt.Sprintf("the order has no line %d", w.LineNo),
				fmt.Sprintf("use 1 to %d", len(lines)))
		}
		l := &lines[w.LineNo-1]
		left := l.Quantity - l.RefundedQuantity
		switch {
		case seen[w.LineNo]:
			return nil, trade.Invalid(field+".line_no", fmt.Sprintf("line %d stands twice", w.LineNo), "name a line once")
		case w.Quantity <= 0:
			return nil, trade.Invalid(field+".quantity", fmt.Sprintf("quantity %d is not positive", w.Quantity),
				fmt.Sprintf("1 to %d are left", left))
		case w.Quantity > left:
			return nil, trade.Conflict(field+".quantity",
				fmt.Sprintf("line %d: %d pieces wanted, %d left (cash %d left)", w.LineNo, w.Quantity, left, l.Payable-l.RefundedCash),
				fmt.Sprintf("ask for at most %d", left))
		}
		seen[w.LineNo] = true
		parts = append(parts, l.take(w.Quantity))
	}
	return parts, nil
}

// take takes pieces off what is left of the line and tells their shares. The shares are cumulative: whatever the order and
// the grouping in which pieces go back, they sum to the line's, and the last piece takes the rest.
func (l *line) take(quantity int64) trade.RefundLine {
	upTo := l.RefundedQuantity + quantity
	part := func(total int64, taken *int64) int64 {
		// A refund that failed gave its shares back, so what is taken need not be the first pieces' share.
		share := min(max(trade.Cumulative(total, upTo, l.Quantity)-*taken, 0), total-*taken)
		*taken += share
		return share
	}
	r := trade.RefundLine{LineNo: l.LineNo, SKU: l.SKU, Quantity: quantity,
		CouponShare: part(l.CouponShare, &l.RefundedCoupon), PointsShare: part(l.PointsShare, &l.RefundedPoints),
		Cash: part(l.Line.Payable, &l.RefundedCash)}
	r.Amount = r.CouponShare + r.PointsShare + r.Cash
	l.RefundedQuantity = upTo
	return r
}

func allTaken(lines []line) bool {
	return !slices.ContainsFunc(lines, func(l line) bool { return l.RefundedQuantity < l.Quantity })
}

func (s *Service) openRefund(
	ctx context.Context, tx convergo.Tx, o row, left []line, parts []trade.RefundLine, in *askRefund, now time.Time,
) (*refundAnswer, error) {
	who, _ := trade.PrincipalOf(ctx)
	r := refundRow{RefundNo: fmt.Sprintf("%s-R%d", o.OrderNo, o.RefundCount), OrderNo: o.OrderNo, Status: RefundRequested,
		Reason: in.Body.Reason, Actor: who.String(), CreatedAt: convergo.Micros(now), UpdatedAt: convergo.Micros(now)}
	for _, p := range parts {
		r.Amount, r.Cash = r.Amount+p.Amount, r.Cash+p.Cash
		r.CouponTotal, r.PointsBack = r.CouponTotal+p.CouponShare, r.PointsBack+p.PointsShare
		n, err := s.exec(ctx, tx, "ReserveLine", p.Quantity, p.CouponShare, p.PointsShare, p.Cash, o.OrderNo, p.LineNo,
			left[p.LineNo-1].RefundedQuantity-p.Quantity, p.Quantity)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, fmt.Errorf("order %s line %d changed while its refund was reserved", o.OrderNo, p.LineNo)
		}
	}
	_, err := s.exec(ctx, tx, "InsertRefund", r.RefundNo, o.OrderNo, o.RefundCount, r.Amount, r.CouponTotal, r.PointsBack, r.Cash,
		r.Reason, r.Actor, r.CreatedAt, r.UpdatedAt)
	if err != nil {
		return nil, err
	}
	if err := insertRefundLines(ctx, tx, r.RefundNo, parts); err != nil {
		return nil, err
	}
	begin := machine.Request{ID: r.RefundNo, Cause: "asked", Key: requestKey(in.Key, r.RefundNo), Actor: r.Actor, At: now}
	if err := Refunds().Begin(ctx, tx, begin, RefundRequested); err != nil {
		return nil, err
	}
	version := o.Version
	if allTaken(left) && o.Status != Refunding {
		res, err := s.apply(ctx, tx, machine.Request{ID: o.OrderNo, Move: "refund", Cause: r.RefundNo, Key: begin.Key, Actor: r.Actor})
		if err != nil {
			return nil, err
		}
		version = res.Version
	}
	if err := s.sendRefund(ctx, tx, o, r, left, parts, version); err != nil {
		return nil, err
	}
	final, err := selectRows[refundRow](ctx, tx, s.sql.Get("FindRefund"), r.RefundNo)
	if err != nil || len(final) == 0 {
		return nil, fmt.Errorf("refund %s: inserted, but cannot be read: %w", r.RefundNo, err)
	}
	return &refundAnswer{Location: "/orders/" + o.OrderNo + "/refunds", Body: refundViewOf(final[0], o.Currency, parts)}, nil
}

// sendRefund asks the payment service for the money; when no cash is in it the refund is done at once.
func (s *Service) sendRefund(ctx context.Context, tx convergo.Tx, o row, r refundRow, left []line, parts []trade.RefundLine, version int64,
) error {
	if r.Cash == 0 {
		return s.finishRefund(ctx, tx, r, "none:"+r.RefundNo, convergo.Key("refund:"+r.RefundNo))
	}
	payload := refundPayload(o, r, parts)
	payload.Full = allTaken(left)
	for _, l := range left {
		payload.CashSoFar += l.RefundedCash
	}
	return s.emit(ctx, tx, trade.RefundApproved, convergo.Key("RefundApproved:"+r.RefundNo), o.OrderNo, version, payload)
}

func refundPayload(o row, r refundRow, parts []trade.RefundLine) trade.Refund {
	return trade.Refund{
		RefundNo: r.RefundNo, OrderNo: o.OrderNo, UserID: o.UserID, Currency: o.Currency, Channel: o.Channel, Transaction: o.Transaction,
		Lines: parts, Amount: r.Amount, CouponTotal: r.CouponTotal, PointsBack: r.PointsBack, Cash: r.Cash, CashPaid: o.Payable,
		Coupon: o.CouponCode,
	}
}
