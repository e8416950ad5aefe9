package payment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/simulate"
	"github.com/convergo/convergo/trade/tradetest"
)

const (
	merchant = "m-1"
	buyer    = "u-1"
	standard = "standard"
)

// rig is the payment service, the simulated channel and the wires between them.
type rig struct {
	*tradetest.Bench
	world  *simulate.World
	wire   *wire
	secret channel.Secret
}

// wire is the client of the channel with faults between it and the service.
type wire struct {
	payment.API
	mu       sync.Mutex
	refunds  []channel.RefundRequest // that left for the channel
	closes   int
	asked    int                                                        // questions about refunds
	onRefund func(n int, r channel.RefundRequest) (before, after error) // of the n-th refund, 1 is the first
	onStatus func() error                                               // of the question about a refund
	onClose  func() error
	onTrade  func() error
}

func (w *wire) Refund(ctx context.Context, r channel.RefundRequest) (channel.Refund, error) {
	w.mu.Lock()
	w.refunds = append(w.refunds, r)
	n, hook := len(w.refunds), w.onRefund
	w.mu.Unlock()
	var before, after error
	if hook != nil {
		before, after = hook(n, r)
	}
	if before != nil {
		return channel.Refund{}, before
	}
	done, err := w.API.Refund(ctx, r)
	return done, errors.Join(err, after)
}

func (w *wire) RefundStatus(ctx context.Context, no string) (channel.Refund, error) {
	w.mu.Lock()
	w.asked++
	hook := w.onStatus
	w.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return channel.Refund{}, err
		}
	}
	return w.API.RefundStatus(ctx, no)
}

func (w *wire) Close(ctx context.Context, no string) (channel.Closed, error) {
	w.mu.Lock()
	w.closes++
	hook := w.onClose
	w.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return channel.Closed{}, err
		}
	}
	return w.API.Close(ctx, no)
}

func (w *wire) Trade(ctx context.Context, no string) (channel.Trade, error) {
	w.mu.Lock()
	hook := w.onTrade
	w.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return channel.Trade{}, err
		}
	}
	return w.API.Trade(ctx, no)
}

func newRig(t *testing.T, db tradetest.Database) *rig {
	return newRigWith(t, db, simulate.Faults{}, payment.Config{})
}

func newRigWith(t *testing.T, db tradetest.Database, faults simulate.Faults, cfg payment.Config) *rig {
	t.Helper()
	r := &rig{secret: channel.NewSecret(), wire: &wire{}}
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.Handler.ServeHTTP(w, q) }))
	t.Cleanup(shop.Close)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.world.Handler().ServeHTTP(w, q) }))
	t.Cleanup(outside.Close)
	r.Bench = db.Bench(t, func(d trade.Deps) (trade.Service, error) {
		r.wire.API = &channel.Client{BaseURL: outside.URL, Secret: r.secret, Now: d.Now}
		cfg.Channels = map[string]payment.Channel{
			standard: {Merchant: merchant, Secrets: []channel.Secret{r.secret}, CashierURL: outside.URL, API: r.wire},
		}
		return payment.New(d, cfg)
	}, tradetest.Public("/payments/notify/"))
	store, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "simulate.db"), sqlite.Options{Relaxed: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(context.Background(), "simulate", simulate.Migrations()); err != nil {
		t.Fatal(err)
	}
	r.world, err = simulate.New(store, simulate.Config{
		Merchant: merchant, Secrets: []channel.Secret{r.secret}, NotifyURL: shop.URL + "/payments/notify/" + standard,
		Faults: faults, Now: r.Clock.Now, Backoff: convergo.Backoff{Base: time.Second, Jitter: convergo.NoJitter},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// payable opens an order for payment.
func (r *rig) payable(orderNo string, amount int64) {
	r.T.Helper()
	r.MustDeliver(trade.OrderPayable, orderNo, 2, trade.Payable{
		OrderNo: orderNo, UserID: buyer, Currency: "CNY", Amount: amount, ExpiresAt: r.Clock.Now().Add(30 * time.Minute),
	})
}

func (r *rig) closing(orderNo string) {
	r.T.Helper()
	r.MustDeliver(trade.OrderClosing, orderNo, 3, trade.Closing{OrderNo: orderNo, Reason: "timeout"})
}

// intent opens an attempt to pay.
func (r *rig) intent(orderNo string) payment.Intent {
	r.T.Helper()
	answer := r.Post(tradetest.User(buyer), "/payments/intents", map[string]string{"order_no": orderNo, "channel": standard})
	if answer.Status != http.StatusCreated {
		r.T.Fatalf("intent for %s: %d %s", orderNo, answer.Status, answer.Body)
	}
	return tradetest.Into[payment.Intent](r.T, answer)
}

// buy pays an attempt at the channel; the notice is not delivered yet.
func (r *rig) buy(i payment.Intent, o simulate.PayOptions) simulate.Payment {
	r.T.Helper()
	p, err := r.world.Pay(context.Background(), i.CashierURL, o)
	if err != nil {
		r.T.Fatalf("pay %s: %v", i.TradeNo, err)
	}
	return p
}

// deliver delivers every notice that is due.
func (r *rig) deliver() {
	r.T.Helper()
	for {
		n, _, err := r.world.Deliver(context.Background())
		if err != nil {
			r.T.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

// paid is an order that is paid in full, by transaction.
func (r *rig) paid(orderNo string, amount int64) (transaction string) {
	r.T.Helper()
	r.payable(orderNo, amount)
	p := r.buy(r.intent(orderNo), simulate.PayOptions{})
	r.deliver()
	r.wantState(orderNo, "PAID")
	return p.Transaction
}

// settle makes the outgoing calls, also those that wait up to a minute.
func (r *rig) settle() {
	r.T.Helper()
	for range 60 {
		r.RunCalls()
		if r.Int("SELECT COUNT(*) FROM outside_call WHERE state < 2") == 0 {
			return
		}
		r.Clock.Advance(time.Second)
	}
	r.RunCalls()
}

// attempt asks for an attempt to pay.
func (r *rig) attempt(who trade.Principal, orderNo string) tradetest.Response {
	r.T.Helper()
	return r.Post(who, "/payments/intents", map[string]string{"order_no": orderNo, "channel": standard})
}

func (r *rig) view(orderNo string) payment.View {
	r.T.Helper()
	answer := r.Get(tradetest.Operator(), "/payments/"+orderNo)
	if answer.Status != http.StatusOK {
		r.T.Fatalf("payment of %s: %d %s", orderNo, answer.Status, answer.Body)
	}
	return tradetest.Into[payment.View](r.T, answer)
}

func (r *rig) wantState(orderNo, want string) {
	r.T.Helper()
	if got := r.view(orderNo).State; got != want {
		r.T.Errorf("payment of %s is %s, want %s", orderNo, got, want)
	}
}

// wantClass checks the one receipt of a transaction.
func (r *rig) wantClass(transaction, class, state string) {
	r.T.Helper()
	n := r.Int("SELECT COUNT(*) FROM payment_receipt WHERE transaction_id = ? AND class = ? AND state = ?", transaction, class, state)
	all := r.Int("SELECT COUNT(*) FROM payment_receipt WHERE transaction_id = ?", transaction)
	if n != 1 || all != 1 {
		r.T.Errorf("%s: %d receipts, %d of them %s and %s", transaction, all, n, class, state)
	}
}

// wantEvents checks how many events of each type there are.
func (r *rig) wantEvents(want map[string]int) {
	r.T.Helper()
	for eventType, n := range want {
		if got := len(r.Events(eventType)); got != n {
			r.T.Errorf("%d %s, want %d", got, eventType, n)
		}
	}
}

// billed is what the channel has taken and given back for a transaction.
func (r *rig) billed(transaction string) (paid, refunded int64, refunds int) {
	r.T.Helper()
	bill, err := r.world.Bill(context.Background(), time.Time{}, time.Time{})
	if err != nil {
		r.T.Fatal(err)
	}
	for _, row := range bill {
		switch {
		case row.Transaction != transaction:
		case row.Kind == channel.BillPayment:
			paid += row.Amount
		default:
			refunded += row.Amount
			refunds++
		}
	}
	return paid, refunded, refunds
}

// notify sends a signed notice by hand.
func (r *rig) notify(id string, body []byte) tradetest.Response {
	r.T.Helper()
	h := http.Header{}
	if err := channel.SetSignature(h, id, r.Clock.Now(), body, r.secret); err != nil {
		r.T.Fatal(err)
	}
	return r.send(h, body)
}

func (r *rig) send(h http.Header, body []byte) tradetest.Response {
	r.T.Helper()
	q := httptest.NewRequest(http.MethodPost, "/payments/notify/"+standard, bytes.NewReader(body))
	q.Header.Set("Content-Type", "application/json")
	for name, values := range h {
		q.Header[http.CanonicalHeaderKey(name)] = values
	}
	w := httptest.NewRecorder()
	r.Handler.ServeHTTP(w, q)
	return tradetest.Response{Status: w.Code, Header: w.Header(), Body: w.Body.Bytes()}
}

func notice(tradeNo, transaction string, amount int64) channel.Notice {
	return channel.Notice{
		Type: channel.NoticePaid, Merchant: merchant, TradeNo: tradeNo, Transaction: transaction, Amount: amount, Currency: "CNY", At: tradetest.Start(),
	}
}

func asJSON(t testing.TB, v any) []byte {
	t.Helper()
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// refund approves a refund of an order.
func (r *rig) refund(orderNo, refundNo string, cash int64) {
	r.T.Helper()
	if err := r.tryRefund(orderNo, refundNo, cash); err != nil {
		r.T.Fatalf("refund %s: %v", refundNo, err)
	}
}

func (r *rig) tryRefund(orderNo, refundNo string, cash int64) error {
	r.T.Helper()
	e := r.Event(trade.RefundApproved, orderNo, 0, trade.Refund{
		RefundNo: refundNo, OrderNo: orderNo, UserID: buyer, Currency: "CNY", Channel: standard, Amount: cash, Cash: cash,
	})
	e.Key = convergo.Key("RefundApproved:" + refundNo)
	_, err := r.Deliver(e)
	return err
}
