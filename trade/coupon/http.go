package coupon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// Terms are what a coupon promises: the body of POST /coupons. Amounts are minor units.
type Terms struct {
	Code         string    `json:"code" minLength:"1" maxLength:"64"`
	FaceValue    int64     `json:"face_value" minimum:"1" doc:"what it takes off the goods, at most their total"`
	Currency     string    `json:"currency" minLength:"3" maxLength:"3"`
	MinimumSpend int64     `json:"minimum_spend,omitempty" minimum:"0" doc:"goods total from which it may be used"`
	TotalLimit   int64     `json:"total_limit" minimum:"1" maximum:"1000000000" doc:"uses by all customers, locked ones included"`
	PerUserLimit int64     `json:"per_user_limit" minimum:"1" maximum:"1000000000" doc:"uses by one customer, locked ones included"`
	ValidFrom    time.Time `json:"valid_from"`
	ValidUntil   time.Time `json:"valid_until" doc:"first moment at which it is not valid any more"`
}

// Coupon is a coupon and how much of it is used.
type Coupon struct {
	Terms
	Locked    int64     `json:"locked" doc:"uses by orders that are not paid yet"`
	Redeemed  int64     `json:"redeemed" doc:"uses by paid orders that are not refunded in full"`
	CreatedAt time.Time `json:"created_at"`
}

// Routes registers the operations on coupons.
func (s *Service) Routes(api huma.API) {
	tags := []string{Name}
	huma.Register(api, huma.Operation{OperationID: "create-coupon", Method: http.MethodPost, Path: "/coupons", Tags: tags,
		Summary: "Make a coupon", DefaultStatus: http.StatusCreated}, s.create)
	huma.Register(api, huma.Operation{OperationID: "get-coupon", Method: http.MethodGet, Path: "/coupons/{code}", Tags: tags,
		Summary: "Terms and use of a coupon"}, s.get)
	trade.RegisterStory(api, s.Deps, Name)
}

type couponOutput struct{ Body Coupon }

func (s *Service) create(ctx context.Context, in *struct{ Body Terms }) (*couponOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	tx := trade.TxOf(ctx)
	if err := s.Create(ctx, tx, in.Body); err != nil {
		return nil, err
	}
	c, err := s.coupon(ctx, tx, in.Body.Code)
	if err != nil {
		return nil, err
	}
	return &couponOutput{*c}, nil
}

func (t Terms) check() error {
	most := int64(1_000_000_000)
	switch {
	case trade.CheckCouponCode(t.Code) != nil:
		return trade.Invalid("body.code", trade.CheckCouponCode(t.Code).Error(), "use letters, digits, '.', '_' and '-'")
	case trade.CheckCurrency(t.Currency) != nil:
		return trade.Invalid("body.currency", trade.CheckCurrency(t.Currency).Error(), "use an ISO 4217 code")
	case t.FaceValue < 1 || trade.CheckMinor(t.FaceValue) != nil:
		return trade.Invalid("body.face_value", fmt.Sprintf("face value %d is not between 1 and %d", t.FaceValue, trade.MaxMinor),
			"give it in minor units")
	case trade.CheckMinor(t.MinimumSpend) != nil:
		return trade.Invalid("body.minimum_spend", trade.CheckMinor(t.MinimumSpend).Error(), "give it in minor units")
	case t.TotalLimit < 1 || t.TotalLimit > most:
		return trade.Invalid("body.total_limit", fmt.Sprintf("limit %d is not between 1 and %d", t.TotalLimit, most),
			"give a limit in this range")
	case t.PerUserLimit < 1 || t.PerUserLimit > most:
		return trade.Invalid("body.per_user_limit", fmt.Sprintf("limit %d is not between 1 and %d", t.PerUserLimit, most),
			"give a limit in this range")
	case !t.ValidUntil.After(t.ValidFrom):
		return trade.Invalid("body.valid_until", "the coupon would end before it begins", "give a time after valid_from")
	}
	return nil
}

// Create makes the coupon. The same terms a second time change nothing; other terms under its code are a trade.Problem: what was
// promised to customers is not changed.
func (s *Service) Create(ctx context.Context, tx convergo.Tx, t Terms) error {
	// Stored times have microseconds; compare what will be read back.
	t.ValidFrom, t.ValidUntil = t.ValidFrom.Truncate(time.Microsecond).UTC(), t.ValidUntil.Truncate(time.Microsecond).UTC()
	fresh, err := s.change(ctx, tx, "AddCoupon", t.Code, t.FaceValue, t.Currency, t.MinimumSpend, t.TotalLimit, t.PerUserLimit,
		t.ValidFrom.UnixMicro(), t.ValidUntil.UnixMicro(), convergo.Micros(s.Now()))
	if err != nil || fresh == 1 {
		return err
	}
	c, err := s.coupon(ctx, tx, t.Code)
	if err == nil && c.Terms != t {
		err = trade.Conflict("body.code", fmt.Sprintf("coupon %s is there with other terms", t.Code), "use another code")
	}
	return err
}

func (s *Service) get(ctx context.Context, in *struct {
	Code string `path:"code" maxLength:"64"`
}) (*couponOutput, error) {
	var c *Coupon
	err := s.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		c, err = s.coupon(ctx, tx, in.Code)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, trade.NotFound("path.code", fmt.Sprintf("there is no coupon %q", in.Code))
	}
	return &couponOutput{*c}, nil
}

// coupon is nil when it is not known.
func (s *Service) coupon(ctx context.Context, tx convergo.Tx, code string) (*Coupon, error) {
	var c Coupon
	var from, until, created int64
	err := tx.QueryRowContext(ctx, s.sql.Get("FindCoupon"), code).Scan(&c.Code, &c.FaceValue, &c.Currency, &c.MinimumSpend, &c.TotalLimit,
		&c.PerUserLimit, &from, &until, &c.Locked, &c.Redeemed, &created)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find coupon %s: %w", code, err)
	}
	// time.UnixMicro and not convergo.FromMicros: 1970 is a date here, not "none".
	c.ValidFrom, c.ValidUntil, c.CreatedAt = time.UnixMicro(from).UTC(), time.UnixMicro(until).UTC(), convergo.FromMicros(created)
	return &c, nil
}
