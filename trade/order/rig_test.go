package order_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/tradetest"
)

// rig is the order service on a bench, with the words of its tests.
type rig struct {
	*tradetest.Bench
	service *order.Service
	version map[string]int64 // of the neighbours' events
}

func newRig(t testing.TB, db tradetest.Database) *rig { return newRigWith(t, db, order.Config{}) }

func newRigWith(t testing.TB, db tradetest.Database, cfg order.Config) *rig {
	t.Helper()
	r := &rig{version: map[string]int64{}}
	cfg.TokenSecret = []byte(tradetest.Secret)
	r.Bench = db.Bench(t, func(deps trade.Deps) (trade.Service, error) {
		var err error
		r.service, err = order.New(deps, cfg)
		return r.service, err
	})
	return r
}

type wish struct {
	ClientToken   string     `json:"client_token,omitempty"`
	Currency      string     `json:"currency"`
	Lines         []wishLine `json:"lines"`
	CouponCode    string     `json:"coupon_code,omitempty"`
	PointsToSpend int64      `json:"points_to_spend,omitempty"`
	Reference     string     `json:"reference,omitempty"`
}

type wishLine struct {
	SKU      string `json:"sku"`
	Offer    string `json:"offer,omitempty"`
	Quantity int64  `json:"quantity"`
}

func (r *rig) price(sku string, minor int64) {
	r.T.Helper()
	res := r.Put(tradetest.Operator(), "/products/"+sku, map[string]any{"currency": "CNY", "unit_price": minor})
	if res.Status != http.StatusOK {
		r.T.Fatalf("price of %s: %d %s", sku, res.Status, res.Body)
	}
}

func (r *rig) token(user string) string {
	r.T.Helper()
	res := r.Post(tradetest.User(user), "/tokens", map[string]string{"scene": order.SceneOrder})
	if res.Status != http.StatusCreated {
		r.T.Fatalf("token: %d %s", res.Status, res.Body)
	}
	return tradetest.Into[order.Token](r.T, res).Token
}

// place places an order for one piece of each price and tells its number.
func (r *rig) place(user string, w wish) string {
	r.T.Helper()
	w.ClientToken = r.token(user)
	res := r.Post(tradetest.User(user), "/orders", w)
	if res.Status != http.StatusCreated {
		r.T.Fatalf("place: %d %s", res.Status, res.Body)
	}
	return tradetest.Into[order.PlacedOrder](r.T, res).OrderNo
}

// goods is a wish for the quantities at the prices, SKUs S1, S2, …
func (r *rig) goods(priceAndQuantity ...int64) wish {
	r.T.Helper()
	w := wish{Currency: "CNY"}
	for i := 0; i < len(priceAndQuantity); i += 2 {
		sku := fmt.Sprintf("S%d", i/2+1)
		r.price(sku, priceAndQuantity[i])
		w.Lines = append(w.Lines, wishLine{SKU: sku, Quantity: priceAndQuantity[i+1]})
	}
	return w
}

// tell delivers a neighbour's event.
func (r *rig) tell(eventType, no string, payload any) error {
	r.T.Helper()
	r.version[no+eventType]++
	_, err := r.Deliver(r.Event(eventType, no, r.version[no+eventType], payload))
	return err
}

func (r *rig) must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// hold answers for all neighbours that hold something.
func (r *rig) hold(no string, coupon, points int64) {
	r.T.Helper()
	r.must(r.tell(trade.StockHeld, no, trade.Answer{OrderNo: no}))
	if coupon > 0 {
		r.must(r.tell(trade.CouponLocked, no, trade.Answer{OrderNo: no, Amount: coupon}))
	}
	if points > 0 {
		r.must(r.tell(trade.PointsLocked, no, trade.Answer{OrderNo: no, Points: points}))
	}
	r.must(r.tell(trade.RiskApproved, no, trade.Answer{OrderNo: no}))
}

func (r *rig) receipt(no, transaction string) trade.Receipt {
	r.T.Helper()
	o := r.order(no)
	return trade.Receipt{Channel: "sim", Transaction: transaction, TradeNo: no + "-1", OrderNo: no, Amount: o.Payable, Currency: o.Currency, Class: trade.Apply}
}

// paid places, holds and pays an order.
func (r *rig) paid(user string, w wish, coupon, points int64) string {
	r.T.Helper()
	no := r.place(user, w)
	r.hold(no, coupon, points)
	if r.order(no).Payable > 0 {
		r.must(r.tell(trade.PaymentSucceeded, no, r.receipt(no, "T-"+no)))
	}
	r.is(no, order.Paid)
	return no
}

func (r *rig) order(no string) order.Order {
	r.T.Helper()
	res := r.Get(tradetest.Operator(), "/orders/"+no)
	if res.Status != http.StatusOK {
		r.T.Fatalf("order %s: %d %s", no, res.Status, res.Body)
	}
	return tradetest.Into[order.Order](r.T, res)
}

func (r *rig) is(no string, want any) {
	r.T.Helper()
	if o := r.order(no); fmt.Sprint(o.Status) != fmt.Sprint(want) {
		r.T.Fatalf("order %s is %s (%s), want %s", no, o.Status, o.Reason, want)
	}
}

// types of the order's events in the outbox, in order, without the reminder.
func (r *rig) types(no string) []string {
	r.T.Helper()
	var types []string
	for _, e := range r.EventsOf(no, "") {
		if e.Type != trade.OrderTimeout {
			types = append(types, e.Type)
		}
	}
	return types
}

func (r *rig) told(no string, want ...string) {
	r.T.Helper()
	if got := r.types(no); !slices.Equal(got, want) {
		r.T.Errorf("order %s told %v, want %v", no, got, want)
	}
}

func (r *rig) refund(no string, lines ...map[string]int64) tradetest.Response {
	r.T.Helper()
	body := map[string]any{}
	if lines != nil {
		body["lines"] = lines
	}
	return r.Post(tradetest.Operator(), "/orders/"+no+"/refunds", body)
}

func pieces(lineNo, quantity int64) map[string]int64 {
	return map[string]int64{"line_no": lineNo, "quantity": quantity}
}

// refunded answers for the payment side.
func (r *rig) refunded(v order.RefundView) error {
	r.T.Helper()
	return r.tell(trade.PaymentRefunded, v.OrderNo, trade.RefundPaid{RefundNo: v.RefundNo, OrderNo: v.OrderNo, Channel: "sim",
		ChannelID: "C-" + v.RefundNo, Amount: v.Cash, Currency: v.Currency})
}

func (r *rig) asked(res tradetest.Response) order.RefundView {
	r.T.Helper()
	if res.Status != http.StatusAccepted {
		r.T.Fatalf("refund: %d %s", res.Status, res.Body)
	}
	return tradetest.Into[order.RefundView](r.T, res)
}

// nothingWritten is what the tables of the service hold, to compare before and after a refused request.
func (r *rig) rows() string {
	r.T.Helper()
	var b strings.Builder
	for _, table := range []string{"orders", "order_line", "client_token_claim", "refund", "refund_line", "product_price", "outbox_event", "effect", "machine_transition"} {
		fmt.Fprintf(&b, "%s %d; ", table, r.Int("SELECT COUNT(*) FROM "+table))
	}
	return b.String()
}

func (r *rig) sweep(want int) {
	r.T.Helper()
	n, err := r.service.Sweep(r.T.Context())
	if err != nil || n != want {
		r.T.Errorf("the sweep closed %d, %v; want %d", n, err, want)
	}
}

const paymentWindow = 30 * time.Minute
