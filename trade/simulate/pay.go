package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

// PayOptions are the ways in which a drill's buyer misbehaves. The zero value pays what the link says.
type PayOptions struct {
	Amount   int64  `json:"amount,omitempty"`   // pays this instead
	Currency string `json:"currency,omitempty"` // in this currency
	Merchant string `json:"merchant,omitempty"` // to somebody else's account, whose notice comes to us
	TradeNo  string `json:"trade_no,omitempty"` // under a number that nobody issued
	Decline  bool   `json:"decline,omitempty"`  // the attempt fails; a notice says so
	Force    bool   `json:"force,omitempty"`    // the channel takes the money although the link is expired or the trade closed or paid
}

// Payment is what a buyer's attempt led to.
type Payment struct {
	TradeNo     string `json:"trade_no"`
	Transaction string `json:"transaction"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
	Declined    bool   `json:"declined,omitempty"`
}

// ErrNotPayable is wrapped by the errors of Pay that say why no money moved: the link is not valid, expired, or its
// trade is closed or paid.
var ErrNotPayable = errors.New("not payable")

// Pay is a buyer who pays a cashier link. The notices are on their way when it returns.
func (w *World) Pay(ctx context.Context, link string, o PayOptions) (Payment, error) {
	_, query, _ := strings.Cut(link, "?")
	l, err := channel.ParseLink(query, w.cfg.Now(), w.cfg.Secrets...)
	switch {
	case errors.Is(err, channel.ErrLinkExpired) && o.Force: // it was read all the same
	case errors.Is(err, channel.ErrLinkExpired):
		return Payment{}, errors.Join(ErrNotPayable, refuse(http.StatusGone, channel.CodeOrderClosed, err.Error()))
	case err != nil:
		return Payment{}, errors.Join(ErrNotPayable, refuse(http.StatusBadRequest, channel.CodeInvalid, err.Error()))
	}
	var paid Payment
	err = w.db.Update(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		paid, err = w.pay(ctx, tx, l, o)
		return err
	})
	if err != nil {
		return Payment{}, err
	}
	w.hint()
	return paid, nil
}

func (w *World) pay(ctx context.Context, tx convergo.Tx, l channel.Link, o PayOptions) (Payment, error) {
	if err := w.countOptions(ctx, tx, o); err != nil {
		return Payment{}, err
	}
	l = overridden(l, o)
	now := w.cfg.Now()
	p := Payment{TradeNo: l.TradeNo, Transaction: newID("TX"), Amount: l.Amount, Currency: l.Currency, Declined: o.Decline}
	notice := channel.Notice{
		Type: channel.NoticePaid, Merchant: l.Merchant, TradeNo: l.TradeNo, Transaction: p.Transaction,
		Amount: l.Amount, Currency: l.Currency, At: now.UTC().Truncate(time.Microsecond),
	}
	if o.Decline {
		notice.Type = channel.NoticeFailed
		return p, w.addNotice(ctx, tx, notice, now)
	}
	fresh, err := w.exec(ctx, tx, "InsertTrade", l.TradeNo, l.Merchant, channel.TradePaid, p.Transaction, convergo.Micros(now))
	if err != nil {
		return Payment{}, err
	}
	if fresh == 0 {
		if err := w.payAgain(ctx, tx, l.TradeNo, p.Transaction, o.Force); err != nil {
			return Payment{}, err
		}
	}
	_, err = w.exec(ctx, tx, "InsertPayment", p.Transaction, l.TradeNo, l.Merchant, l.Amount, l.Currency, convergo.Micros(now))
	if err != nil {
		return Payment{}, err
	}
	return p, w.addNotice(ctx, tx, notice, now)
}

// payAgain: the trade is closed or paid already. Only a forced payment goes through; the first one stays the trade's own.
func (w *World) payAgain(ctx context.Context, tx convergo.Tx, tradeNo, transaction string, force bool) error {
	if force {
		_, err := w.exec(ctx, tx, "ForceTradePaid", transaction, tradeNo)
		return err
	}
	t, _, err := w.tradeOf(ctx, tx, tradeNo)
	if err != nil {
		return err
	}
	code := channel.CodeOrderPaid
	if t.State == channel.TradeClosed {
		code = channel.CodeOrderClosed
	}
	return errors.Join(ErrNotPayable, refuse(http.StatusConflict, code, "trade "+tradeNo+" is "+t.State))
}

func (w *World) countOptions(ctx context.Context, tx convergo.Tx, o PayOptions) error {
	for _, f := range []struct {
		name string
		made bool
	}{
		{faultAmount, o.Amount != 0}, {faultCurrency, o.Currency != ""}, {faultMerchant, o.Merchant != ""},
		{faultUnknown, o.TradeNo != ""}, {faultDeclined, o.Decline}, {faultForced, o.Force},
	} {
		if !f.made {
			continue
		}
		if err := w.count(ctx, tx, f.name, 1); err != nil {
			return err
		}
	}
	return nil
}

func overridden(l channel.Link, o PayOptions) channel.Link {
	if o.Amount > 0 {
		l.Amount = o.Amount
	}
	if o.Currency != "" {
		l.Currency = o.Currency
	}
	if o.Merchant != "" {
		l.Merchant = o.Merchant
	}
	if o.TradeNo != "" {
		l.TradeNo = o.TradeNo
	}
	return l
}

// payLink is POST {cashier link}, with PayOptions as JSON, or the form of the cashier page.
func (w *World) payLink(r *http.Request, body []byte) (answer, error) {
	var o PayOptions
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") && len(body) > 0 {
		if err := read(body, &o); err != nil {
			return answer{}, err
		}
	}
	if o.Amount < 0 || len(o.TradeNo) > 100 || len(o.Merchant) > 100 || (o.Currency != "" && len(o.Currency) != 3) {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "amount must be > 0, names at most 100 bytes, currency 3 letters")
	}
	p, err := w.Pay(r.Context(), "?"+r.URL.RawQuery, o)
	return answer{http.StatusOK, p}, err
}

// cashierPage shows a person what he is about to pay.
func (w *World) cashierPage(rw http.ResponseWriter, r *http.Request) {
	l, err := channel.ParseLink(r.URL.RawQuery, w.cfg.Now(), w.cfg.Secrets...)
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	problem := ""
	if err != nil {
		problem = err.Error()
		rw.WriteHeader(http.StatusBadRequest)
	}
	page := template.Must(template.New("cashier").Parse(cashierHTML))
	_ = page.Execute(rw, struct { // a browser that is gone cannot be told
		channel.Link
		Problem string
	}{l, problem})
}

const cashierHTML = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Cashier</title>
<h1>Simulated cashier</h1>
{{if .Problem}}<p>This link cannot be paid: {{.Problem}}</p>{{else}}
<p>{{.Merchant}} asks for <strong>{{.Amount}}</strong> minor units {{.Currency}} (payment {{.TradeNo}}).</p>
<form method="post"><button>Pay</button></form>{{end}}</html>`

func newID(prefix string) string {
	return prefix + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")
}

// addNotice writes the copies that will be delivered.
func (w *World) addNotice(ctx context.Context, tx convergo.Tx, n channel.Notice, now time.Time) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	id := newID("msg_")
	copies := max(w.dice.current().Copies, 1)
	held := int64(0)
	for i := range copies {
		wait := w.dice.within(w.dice.current().Delay)
		if wait > 0 {
			held++
		}
		if _, err := w.exec(ctx, tx, "InsertNotice", id, i+1, n.TradeNo, string(body), convergo.Micros(now.Add(wait))); err != nil {
			return err
		}
	}
	if err := w.count(ctx, tx, faultDelayed, held); err != nil {
		return err
	}
	return w.count(ctx, tx, faultCopy, int64(copies-1))
}
