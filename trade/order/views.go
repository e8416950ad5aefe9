package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// Order is an order as it is now.
type Order struct {
	OrderNo        string        `json:"order_no"`
	UserID         string        `json:"user_id"`
	Status         machine.State `json:"status"`
	Version        int64         `json:"version"`
	Reason         string        `json:"reason,omitempty" doc:"why it was closed"`
	Currency       string        `json:"currency"`
	GoodsTotal     int64         `json:"goods_total"`
	CouponCode     string        `json:"coupon_code,omitempty"`
	CouponTotal    int64         `json:"coupon_total"`
	PointsToSpend  int64         `json:"points_to_spend,omitempty"`
	PointsSpent    int64         `json:"points_spent"`
	IsPayable      bool          `json:"is_payable" doc:"everything is held and the amounts are final; see payable"`
	Payable        int64         `json:"payable"`
	Channel        string        `json:"channel,omitempty"`
	Transaction    string        `json:"transaction,omitempty"`
	Reference      string        `json:"reference,omitempty"`
	RefundedCash   int64         `json:"refunded_cash" doc:"reserved by refunds that have not failed"`
	RefundedAmount int64         `json:"refunded_amount" doc:"the same with coupon and points"`
	Lines          []OrderLine   `json:"lines,omitempty"`
	ExpiresAt      time.Time     `json:"expires_at"`
	CreatedAt      time.Time     `json:"created_at"`
	UpdatedAt      time.Time     `json:"updated_at"`
}

// OrderLine is a line of an order. Its name is long because schemas of all services share one document.
type OrderLine struct {
	trade.Line
	RefundedQuantity int64 `json:"refunded_quantity"`
	RefundedCash     int64 `json:"refunded_cash"`
}

type orderAnswer struct {
	Status int
	Body   Order
}

type getOrder struct {
	No      string `path:"no" maxLength:"64"`
	Wait    string `query:"wait" enum:"payable,paid,shipped,completed,closed" doc:"answer when it is there or cannot get there any more"`
	Timeout string `query:"timeout" default:"5s" doc:"how long to wait at most, for example 5s"`
}

type listOrders struct {
	User  string `query:"user" doc:"whose; default the one who asks"`
	After string `query:"after" maxLength:"64" doc:"the last order number of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
}

type listAnswer struct {
	Body struct {
		Orders []Order `json:"orders" doc:"newest first, without lines"`
		Next   string  `json:"next,omitempty" doc:"give it as after for the next page; missing on the last"`
	}
}

type cancelOrder struct {
	Key string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	No  string `path:"no" maxLength:"64"`
}

func (s *Service) viewRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "get-order", Method: http.MethodGet, Path: "/orders/{no}", Tags: []string{Name}, Summary: "An order as it is",
		Description: "With wait it answers when the order has got there, cannot get there any more, or the timeout is over.",
	}, s.getOrder)
	huma.Register(api, huma.Operation{
		OperationID: "list-orders", Method: http.MethodGet, Path: "/orders", Tags: []string{Name}, Summary: "A user's orders, newest first",
	}, s.listOrders)
	huma.Register(api, huma.Operation{
		OperationID: "cancel-order", Method: http.MethodPost, Path: "/orders/{no}/cancel", Tags: []string{Name},
		DefaultStatus: http.StatusAccepted, Summary: "Cancel an unpaid order",
		Description: "202: it is CLOSING until no money can come any more, then CANCELED; a payment that was on its way still makes it PAID. " +
			"200: it is closing or canceled already. 409: it is paid; ask for a refund.",
	}, s.cancel)
}

// visible is the order if the caller may see it. Whose it is, and even that it exists, is nobody else's business.
func (s *Service) visible(ctx context.Context, tx convergo.Tx, no string) (*row, error) {
	o, err := s.findOrder(ctx, tx, no)
	if err != nil {
		return nil, err
	}
	if o == nil || !trade.Owns(ctx, o.UserID) {
		return nil, errNoSuchOrder()
	}
	return o, nil
}

func (s *Service) view(ctx context.Context, tx convergo.Tx, o row) (Order, error) {
	v := viewOf(o)
	lines, err := s.lines(ctx, tx, o.OrderNo)
	if err != nil {
		return v, err
	}
	for _, l := range lines {
		v.Lines = append(v.Lines, OrderLine{l.Line, l.RefundedQuantity, l.RefundedCash})
		v.RefundedCash += l.RefundedCash
		v.RefundedAmount += l.RefundedCash + l.RefundedCoupon + l.RefundedPoints
	}
	return v, nil
}

func viewOf(o row) Order {
	return Order{
		OrderNo: o.OrderNo, UserID: o.UserID, Status: o.Status, Version: o.Version, Reason: o.Reason, Currency: o.Currency,
		GoodsTotal: o.GoodsTotal, CouponCode: o.CouponCode, CouponTotal: o.CouponTotal, PointsToSpend: o.PointsToSpend,
		PointsSpent: o.PointsSpent, IsPayable: o.PayableAt != 0, Payable: o.Payable, Channel: o.Channel, Transaction: o.Transaction,
		Reference: o.Reference, ExpiresAt: convergo.FromMicros(o.ExpiresAt), CreatedAt: convergo.FromMicros(o.CreatedAt),
		UpdatedAt: convergo.FromMicros(o.UpdatedAt),
	}
}

func (s *Service) getOrder(ctx context.Context, in *getOrder) (*orderAnswer, error) {
	timeout, err := time.ParseDuration(in.Timeout)
	if err != nil || timeout < 0 || timeout > s.cfg.MaxWait {
		return nil, trade.Invalid("query.timeout", fmt.Sprintf("the timeout is not between 0s and %s", s.cfg.MaxWait),
			"send for example timeout=5s")
	}
	if in.Wait == "" {
		timeout = 0
	}
	out := &orderAnswer{Status: http.StatusOK}
	err = s.changes.until(ctx, in.No, in.Wait, timeout, func(woken, last bool) (there bool, err error) {
		err = s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
			if !woken {
				if there, err = s.there(ctx, tx, in.No, in.Wait); err != nil || !there && !last {
					return err
				}
			}
			o, err := s.visible(ctx, tx, in.No)
			if err != nil {
				return err
			}
			there = arrived(in.Wait, o.Status, o.PayableAt != 0)
			out.Body, err = s.view(ctx, tx, *o)
			return err
		})
		return there, err
	})
	return out, err
}

// there tells whether the order has got where somebody waits for it. It reads little: most looks find that it has not.
func (s *Service) there(ctx context.Context, tx convergo.Tx, no, where string) (bool, error) {
	if where == "" {
		return true, nil
	}
	var (
		user      string
		state     machine.State
		payableAt int64
	)
	err := tx.QueryRowContext(ctx, s.sql.Get("StateOfOrder"), no).Scan(&user, &state, &payableAt)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !trade.Owns(ctx, user) {
		return false, errNoSuchOrder()
	}
	if err != nil {
		return false, fmt.Errorf("StateOfOrder: %w", err)
	}
	return arrived(where, state, payableAt != 0), nil
}

func errNoSuchOrder() error { return trade.NotFound("path.no", "you have no order with this number") }

// arrived tells whether there is nothing left to wait for: the order is there, is past it, or cannot get there.
func arrived(wait string, state machine.State, payable bool) bool {
	if state == Canceled || state == Refunded {
		return true
	}
	switch wait {
	case "payable":
		return payable || state != Created
	case "paid":
		return state != Created && state != Closing
	case "shipped":
		return slices.Contains([]machine.State{Shipped, Completed, Refunding}, state)
	case "completed":
		return state == Completed || state == Refunding
	}
	return wait == ""
}

func (s *Service) listOrders(ctx context.Context, in *listOrders) (*listAnswer, error) {
	if in.User == "" {
		user, err := trade.RequireUser(ctx)
		if err != nil {
			return nil, err
		}
		in.User = user.ID
	}
	if err := trade.RequireOwner(ctx, in.User); err != nil {
		return nil, err
	}
	if in.After == "" {
		in.After = "~" // after every order number
	}
	out := &listAnswer{}
	out.Body.Orders = []Order{}
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		rows, err := selectRows[row](ctx, tx, s.sql.Get("OrdersOfUser"), in.User, in.After, in.Limit+1)
		for i, o := range rows {
			if i == in.Limit {
				out.Body.Next = rows[i-1].OrderNo
				break
			}
			out.Body.Orders = append(out.Body.Orders, viewOf(o))
		}
		return err
	})
	return out, err
}

// cancel: any number of them at once make one transition and one OrderClosing; all others find it done.
func (s *Service) cancel(ctx context.Context, in *cancelOrder) (*orderAnswer, error) {
	tx := trade.TxOf(ctx)
	o, err := s.visible(ctx, tx, in.No)
	if err != nil {
		return nil, err
	}
	who, _ := trade.PrincipalOf(ctx)
	applied, err := s.close(ctx, tx, o.OrderNo, closeRequest{reason: "user", key: requestKey(in.Key, o.OrderNo), actor: who.String()})
	if err != nil {
		return nil, err
	}
	if o, err = s.visible(ctx, tx, in.No); err != nil {
		return nil, err
	}
	out := &orderAnswer{Status: http.StatusAccepted}
	if !applied {
		out.Status = http.StatusOK
		if o.Status != Closing && o.Status != Canceled {
			return nil, trade.Conflict("path.no", fmt.Sprintf("order %s is %s", o.OrderNo, o.Status),
				"ask for a refund: POST /orders/"+o.OrderNo+"/refunds")
		}
	}
	out.Body, err = s.view(ctx, tx, *o)
	return out, err
}
