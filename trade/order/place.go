package order

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/trade"
)

type placeLine struct {
	SKU      string `json:"sku" maxLength:"64"`
	Offer    string `json:"offer,omitempty" maxLength:"64" doc:"one of the product's offers; default its standard price"`
	Quantity int64  `json:"quantity" doc:"1 to 1,000,000"`
}

type placeBody struct {
	ClientToken   string      `json:"client_token,omitempty" maxLength:"4096" doc:"from POST /tokens; single use"`
	Currency      string      `json:"currency" doc:"ISO 4217 code; that of every product"`
	Lines         []placeLine `json:"lines" doc:"1 to 2,000; one SKU may stand on several"`
	CouponCode    string      `json:"coupon_code,omitempty"`
	PointsToSpend int64       `json:"points_to_spend,omitempty" doc:"a point is worth one minor unit"`
	Reference     string      `json:"reference,omitempty" doc:"your own text, up to 200 bytes"`
}

type placeInput struct {
	Key  string `header:"Idempotency-Key" doc:"1 to 255 bytes, your choice"`
	Body placeBody
}

// PlacedOrder is the answer to POST /orders: the order as it was placed. It never changes, so that whoever repeats the
// request gets the same answer.
type PlacedOrder struct {
	OrderNo       string        `json:"order_no"`
	UserID        string        `json:"user_id"`
	Status        machine.State `json:"status"`
	Currency      string        `json:"currency"`
	GoodsTotal    int64         `json:"goods_total"`
	CouponCode    string        `json:"coupon_code,omitempty"`
	PointsToSpend int64         `json:"points_to_spend,omitempty"`
	Reference     string        `json:"reference,omitempty"`
	Lines         []PlacedLine  `json:"lines"`
	ExpiresAt     time.Time     `json:"expires_at" doc:"when it is closed if it is not paid"`
	CreatedAt     time.Time     `json:"created_at"`
}

// PlacedLine is an order line with the price that was fixed.
type PlacedLine struct {
	LineNo    int    `json:"line_no"`
	SKU       string `json:"sku"`
	Quantity  int64  `json:"quantity"`
	UnitPrice int64  `json:"unit_price"`
	Amount    int64  `json:"amount"`
}

type placeAnswer struct {
	Location string `header:"Location"`
	Body     PlacedOrder
}

func (s *Service) placeRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "place-order", Method: http.MethodPost, Path: "/orders", Tags: []string{Name}, DefaultStatus: http.StatusCreated,
		Summary: "Place an order", MaxBodyBytes: trade.MaxBody,
		Description: "The order is CREATED; stock, coupon, points and risk answer next (GET /orders/{no}?wait=payable). " +
			"Needs an Idempotency-Key and a client token; the same token with the same content gives the first answer again.",
		Errors: []int{400, 401, 403, 409, 410, 413},
	}, s.place)
}

// place runs in the transaction of the Idempotency-Key: claim, order, lines and events commit together or never were.
func (s *Service) place(ctx context.Context, in *placeInput) (*placeAnswer, error) {
	user, err := trade.RequireUser(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := s.readToken(in.Body.ClientToken, user)
	if err != nil {
		return nil, err
	}
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	content, err := fingerprint(in.Body)
	if err != nil {
		return nil, err
	}
	tx, now := trade.TxOf(ctx), s.deps.Now().UTC().Truncate(time.Microsecond)
	claim, err := s.findClaim(ctx, tx, claims.ID)
	if err != nil {
		return nil, err
	}
	if claim != nil {
		return s.placedBefore(ctx, tx, *claim, content)
	}
	if now.UnixMicro() >= claims.Expires {
		return nil, errTokenExpired()
	}
	no, err := newOrderNo(now)
	if err != nil {
		return nil, err
	}
	// Two requests with one token and two idempotency keys get here together: the claim's primary key lets one through,
	// and the other, which waited for its commit, finds the claim.
	n, err := s.exec(ctx, tx, "ClaimToken", claims.ID, user.ID, no, content, convergo.Micros(now))
	if err != nil {
		return nil, err
	}
	if n == 0 {
		claim, err := s.findClaim(ctx, tx, claims.ID)
		if err != nil || claim == nil {
			return nil, fmt.Errorf("token %s: claimed, but the claim cannot be read: %w", claims.ID, cmp.Or(err, machine.ErrNotFound))
		}
		return s.placedBefore(ctx, tx, *claim, content)
	}
	return s.placeNew(ctx, tx, no, user.ID, in, now)
}

func (s *Service) placedBefore(ctx context.Context, tx convergo.Tx, claim claimRow, content string) (*placeAnswer, error) {
	if claim.Fingerprint != content {
		return nil, errTokenReused(claim.OrderNo)
	}
	return s.placed(ctx, tx, claim.OrderNo)
}

func (s *Service) placeNew(ctx context.Context, tx convergo.Tx, no, userID string, in *placeInput, now time.Time) (*placeAnswer, error) {
	lines, total, err := s.price(ctx, tx, in.Body)
	if err != nil {
		return nil, err
	}
	b, at := in.Body, convergo.Micros(now)
	expires := now.Add(s.cfg.PaymentWindow)
	_, err = s.exec(ctx, tx, "InsertOrder", no, userID, b.Currency, total, b.CouponCode, b.PointsToSpend,
		number(b.CouponCode == ""), number(b.PointsToSpend == 0), b.Reference, convergo.Micros(expires), convergo.Micros(expires), at, at)
	if err != nil {
		return nil, err
	}
	if err := insertLines(ctx, tx, no, lines); err != nil {
		return nil, err
	}
	begin := machine.Request{ID: no, Cause: "token", Key: requestKey(in.Key, no), Actor: "user:" + userID, At: now}
	if err := Orders().Begin(ctx, tx, begin, Created); err != nil {
		return nil, err
	}
	created := trade.OrderPlaced{OrderNo: no, UserID: userID, Currency: b.Currency, Lines: lines, GoodsTotal: total,
		CouponCode: b.CouponCode, PointsToSpend: b.PointsToSpend}
	err = s.emit(ctx, tx, trade.OrderCreated, "", no, 1, created)
	if errors.Is(err, outbox.ErrTooLarge) {
		return nil, trade.Invalid("body.lines", "the order is larger than this platform's broker can carry", "place it as several orders with fewer lines each")
	}
	if err != nil {
		return nil, err
	}
	timeout, err := trade.NewEvent(trade.OrderTimeout, convergo.Key("OrderTimeout:"+no), no, 0, trade.Moved{OrderNo: no, UserID: userID})
	if err != nil {
		return nil, err
	}
	timeout.DeliverAt = expires
	if err := s.deps.Outbox.Add(ctx, tx, timeout); err != nil {
		return nil, err
	}
	return answerOf(row{OrderNo: no, UserID: userID, Currency: b.Currency, GoodsTotal: total, CouponCode: b.CouponCode,
		PointsToSpend: b.PointsToSpend, Reference: b.Reference, ExpiresAt: convergo.Micros(expires), CreatedAt: at}, lines), nil
}

// placed is the answer that was, or is, given to the request that placed the order; made of what never changes.
func (s *Service) placed(ctx context.Context, tx convergo.Tx, no string) (*placeAnswer, error) {
	o, err := s.findOrder(ctx, tx, no)
	if err != nil || o == nil {
		return nil, fmt.Errorf("order %s: placed, but cannot be read: %w", no, cmp.Or(err, machine.ErrNotFound))
	}
	lines, err := s.lines(ctx, tx, no)
	if err != nil {
		return nil, err
	}
	return answerOf(*o, plainLines(lines)), nil
}

func answerOf(o row, lines []trade.Line) *placeAnswer {
	out := &placeAnswer{Location: "/orders/" + o.OrderNo, Body: PlacedOrder{
		OrderNo: o.OrderNo, UserID: o.UserID, Status: Created, Currency: o.Currency, GoodsTotal: o.GoodsTotal, CouponCode: o.CouponCode,
		PointsToSpend: o.PointsToSpend, Reference: o.Reference, ExpiresAt: convergo.FromMicros(o.ExpiresAt),
		CreatedAt: convergo.FromMicros(o.CreatedAt),
	}}
	for _, l := range lines {
		out.Body.Lines = append(out.Body.Lines, PlacedLine{l.LineNo, l.SKU, l.Quantity, l.UnitPrice, l.Amount})
	}
	return out
}

// check finds what is wrong with the request by itself.
func (b placeBody) check() error {
	if err := trade.CheckCurrency(b.Currency); err != nil {
		return trade.Invalid("body.currency", err.Error(), "use the currency of the products")
	}
	if n := len(b.Lines); n < 1 || n > trade.MaxLines {
		return trade.Invalid("body.lines", fmt.Sprintf("there are %d lines, not 1 to %d", n, trade.MaxLines), "split the order")
	}
	for i, l := range b.Lines {
		field := fmt.Sprintf("body.lines[%d]", i)
		if err := trade.CheckSKU(l.SKU); err != nil {
			return trade.Invalid(field+".sku", err.Error(), "use a SKU from the catalogue")
		}
		if l.Offer != "" && trade.CheckSKU(l.Offer) != nil {
			return trade.Invalid(field+".offer", "the offer's name is not valid", "use an offer of the product")
		}
		if err := trade.CheckQuantity(l.Quantity); err != nil {
			return trade.Invalid(field+".quantity", err.Error(), "order at least one piece, or split the order")
		}
	}
	if b.CouponCode != "" {
		if err := trade.CheckCouponCode(b.CouponCode); err != nil {
			return trade.Invalid("body.coupon_code", err.Error(), "check the code")
		}
	}
	if err := trade.CheckMinor(b.PointsToSpend); err != nil {
		return trade.Invalid("body.points_to_spend", err.Error(), "spend 0 or more points")
	}
	if len(b.Reference) > 200 || strings.ContainsFunc(b.Reference, unicode.IsControl) {
		return trade.Invalid("body.reference", "the reference is longer than 200 bytes or has control characters", "send a shorter, plain text")
	}
	return nil
}

// price fixes the prices of the moment. What the products cost later does not touch the order.
func (s *Service) price(ctx context.Context, tx convergo.Tx, b placeBody) (lines []trade.Line, total int64, err error) {
	type wanted struct{ sku, offer string }
	catalogue := map[wanted]priceRow{}
	for i, l := range b.Lines {
		field, want := fmt.Sprintf("body.lines[%d]", i), wanted{l.SKU, l.Offer}
		p, known := catalogue[want]
		if !known {
			if p, err = s.findPrice(ctx, tx, l, field); err != nil {
				return nil, 0, err
			}
			catalogue[want] = p
		}
		if p.Currency != b.Currency {
			return nil, 0, trade.Invalid("body.currency", fmt.Sprintf("product %s is sold in %s, not in %s", l.SKU, p.Currency, b.Currency),
				"order it in its own currency")
		}
		amount, err := trade.Mul(p.UnitPrice, l.Quantity)
		if err != nil {
			return nil, 0, trade.Invalid(field+".quantity", err.Error(), "order fewer pieces")
		}
		if total, err = trade.Add(total, amount); err != nil {
			return nil, 0, trade.Invalid("body.lines", err.Error(), "split the order")
		}
		lines = append(lines, trade.Line{LineNo: i + 1, SKU: l.SKU, Quantity: l.Quantity, UnitPrice: p.UnitPrice, Amount: amount})
	}
	return lines, total, nil
}

// findPrice reads one price; a product may have many offers. Every product has its standard price, by which one without the
// offer is told from one that is not there.
func (s *Service) findPrice(ctx context.Context, tx convergo.Tx, l placeLine, field string) (priceRow, error) {
	for _, offer := range []string{l.Offer, ""} {
		found, err := selectRows[priceRow](ctx, tx, s.sql.Get("FindPrice"), l.SKU, offer)
		switch {
		case err != nil:
			return priceRow{}, err
		case len(found) == 1 && offer == l.Offer:
			return found[0], nil
		case len(found) == 1:
			return priceRow{}, trade.Invalid(field+".offer", fmt.Sprintf("product %s has no offer %q", l.SKU, l.Offer), "see GET /products/"+l.SKU)
		}
	}
	return priceRow{}, trade.Invalid(field+".sku", "there is no product "+l.SKU, "use a SKU from the catalogue")
}

// digits in ASCII order, so that numbers sort as they were made; without those that are mistaken for others.
const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newOrderNo is "20261129-1K3FQ07XM2NPA4": the day, the millisecond of the day and 40 random bits. Numbers grow with time
// and fit into names, headers and subjects.
func newOrderNo(now time.Time) (string, error) {
	var random [8]byte
	if _, err := rand.Read(random[3:]); err != nil {
		return "", fmt.Errorf("order number: %w", err)
	}
	ms := uint64(now.Sub(now.Truncate(24*time.Hour)) / time.Millisecond)
	return now.Format("20060102") + "-" + base32Text(ms, 6) + base32Text(binary.BigEndian.Uint64(random[:]), 8), nil
}

func base32Text(n uint64, length int) string {
	text := make([]byte, length)
	for i := length - 1; i >= 0; i-- {
		text[i] = digits[n&31]
		n >>= 5
	}
	return string(text)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// requestKey is the cause of what an HTTP request does, for the history.
func requestKey(idempotencyKey, no string) convergo.Key {
	key := convergo.Key("request:" + strings.Trim(idempotencyKey, `"`))
	if key.Validate() != nil {
		return convergo.Key("request:" + no)
	}
	return key
}
