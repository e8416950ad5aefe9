package simulate

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

type tradeRow struct {
	TradeNo     string `db:"trade_no"`
	Merchant    string `db:"merchant"`
	State       string `db:"state"`
	Transaction string `db:"transaction_id"`
	At          int64  `db:"at"`
	Amount      int64  `db:"amount"`
	Currency    string `db:"currency"`
}

func (w *World) tradeOf(ctx context.Context, tx convergo.Tx, tradeNo string) (channel.Trade, bool, error) {
	var row tradeRow
	found, err := w.find(ctx, tx, &row, "FindTrade", tradeNo)
	if err != nil || !found {
		return channel.Trade{}, false, err
	}
	t := channel.Trade{
		Merchant: row.Merchant, TradeNo: row.TradeNo, State: row.State, Transaction: row.Transaction, Amount: row.Amount, Currency: row.Currency,
	}
	if row.State == channel.TradePaid {
		t.PaidAt = convergo.FromMicros(row.At)
	}
	return t, true, nil
}

// findTrade is GET /channel/trades/{trade_no}. An unpaid trade is not known to the channel, as at real ones.
func (w *World) findTrade(r *http.Request, _ []byte) (answer, error) {
	var t channel.Trade
	err := w.db.View(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		found, ok, err := w.tradeOf(ctx, tx, r.PathValue("trade_no"))
		if err == nil && !ok {
			err = refuse(http.StatusNotFound, channel.CodeNotFound, "no such trade")
		}
		t = found
		return err
	})
	return answer{http.StatusOK, t}, err
}

// closeTrade is POST /channel/trades/{trade_no}/close. Closing a trade that nobody has heard of leaves a tombstone that
// a later payment runs into; closing a paid one brings the trade.
func (w *World) closeTrade(r *http.Request, _ []byte) (answer, error) {
	tradeNo, now := r.PathValue("trade_no"), w.cfg.Now()
	if len(tradeNo) > 100 {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "trade number too long")
	}
	var t channel.Trade
	err := w.db.Update(r.Context(), func(ctx context.Context, tx convergo.Tx) (err error) {
		if _, err := w.exec(ctx, tx, "InsertTrade", tradeNo, w.cfg.Merchant, channel.TradeClosed, "", convergo.Micros(now)); err != nil {
			return err
		}
		t, _, err = w.tradeOf(ctx, tx, tradeNo)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	if t.State == channel.TradePaid {
		return answer{}, &refusalError{http.StatusConflict, channel.Problem{
			Code: channel.CodeOrderPaid, Detail: "a paid trade cannot be closed", Trade: &t,
		}}
	}
	return answer{http.StatusOK, t}, nil
}

type paymentRow struct {
	Transaction string `db:"transaction_id"`
	TradeNo     string `db:"trade_no"`
	Merchant    string `db:"merchant"`
	Amount      int64  `db:"amount"`
	Currency    string `db:"currency"`
	Refunded    int64  `db:"refunded"`
	At          int64  `db:"at"`
}

type refundRow struct {
	RefundNo    string `db:"refund_no"`
	RefundID    string `db:"refund_id"`
	Transaction string `db:"transaction_id"`
	Amount      int64  `db:"amount"`
	Currency    string `db:"currency"`
}

func (r refundRow) wire() channel.Refund {
	return channel.Refund{
		RefundNo: r.RefundNo, RefundID: r.RefundID, Transaction: r.Transaction, Amount: r.Amount, Currency: r.Currency,
		State: channel.RefundSucceeded,
	}
}

// refund is POST /channel/refunds. One number is one refund, whatever the number of requests.
func (w *World) refund(r *http.Request, body []byte) (answer, error) {
	var q channel.RefundRequest
	if err := read(body, &q); err != nil {
		return answer{}, err
	}
	if q.RefundNo == "" || len(q.RefundNo) > 255 || q.Amount <= 0 {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "out_refund_no must have 1 to 255 bytes, amount must be > 0")
	}
	if w.dice.refuses(q.RefundNo) {
		w.countAlone(r.Context(), faultRefusal)
		return answer{}, refuse(http.StatusUnprocessableEntity, channel.CodeLimit, "this refund cannot be made; use a new out_refund_no")
	}
	var row refundRow
	err := w.db.Update(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		found, err := w.find(ctx, tx, &row, "FindRefund", q.RefundNo)
		if err != nil {
			return err
		}
		if found {
			if row.Transaction != q.Transaction || row.Amount != q.Amount || row.Currency != q.Currency {
				return refuse(http.StatusUnprocessableEntity, channel.CodeMismatch, "out_refund_no was used for another refund")
			}
			_, err = w.exec(ctx, tx, "RepeatRefund", q.RefundNo)
			return err
		}
		row = refundRow{q.RefundNo, newID("RF"), q.Transaction, q.Amount, q.Currency}
		return w.newRefund(ctx, tx, row)
	})
	return answer{http.StatusOK, row.wire()}, err
}

func (w *World) newRefund(ctx context.Context, tx convergo.Tx, row refundRow) error {
	taken, err := w.exec(ctx, tx, "TakeRefund", row.Amount, row.Transaction, w.cfg.Merchant, row.Currency, row.Amount)
	if err != nil {
		return err
	}
	if taken == 0 {
		var p paymentRow
		found, err := w.find(ctx, tx, &p, "FindPayment", row.Transaction)
		switch {
		case err != nil:
			return err
		case !found || p.Merchant != w.cfg.Merchant:
			return refuse(http.StatusNotFound, channel.CodeNotFound, "no such transaction of yours")
		case p.Currency != row.Currency:
			return refuse(http.StatusUnprocessableEntity, channel.CodeInvalid, "the payment was in "+p.Currency)
		}
		return refuse(http.StatusUnprocessableEntity, channel.CodeExceeds, fmt.Sprintf("%d left", p.Amount-p.Refunded))
	}
	_, err = w.exec(ctx, tx, "InsertRefund", row.RefundNo, row.RefundID, row.Transaction, row.Amount, row.Currency,
		convergo.Micros(w.cfg.Now()))
	return err
}

// findRefund is GET /channel/refunds/{refund_no}.
func (w *World) findRefund(r *http.Request, _ []byte) (answer, error) {
	var row refundRow
	err := w.db.View(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		found, err := w.find(ctx, tx, &row, "FindRefund", r.PathValue("refund_no"))
		if err == nil && !found {
			err = refuse(http.StatusNotFound, channel.CodeNotFound, "no such refund")
		}
		return err
	})
	return answer{http.StatusOK, row.wire()}, err
}

type billRow struct {
	Kind        string `db:"kind"`
	Merchant    string `db:"merchant"`
	TradeNo     string `db:"trade_no"`
	Transaction string `db:"transaction_id"`
	RefundNo    string `db:"refund_no"`
	RefundID    string `db:"refund_id"`
	Amount      int64  `db:"amount"`
	Currency    string `db:"currency"`
	At          int64  `db:"at"`
}

type csvText string

// bill is GET /channel/bill?from=&to=&format=: every payment to the merchant and every refund of one, from ≤ time < to
// (RFC 3339; default everything), as JSON or CSV.
func (w *World) bill(r *http.Request, _ []byte) (answer, error) {
	from, to, err := period(r)
	if err != nil {
		return answer{}, err
	}
	rows, err := w.Bill(r.Context(), from, to)
	if err != nil {
		return answer{}, err
	}
	if r.FormValue("format") == "csv" {
		return answer{http.StatusOK, asCSV(rows)}, nil
	}
	return answer{http.StatusOK, rows}, nil
}

// Bill is the channel's statement for from ≤ time < to; a zero to means everything since from.
func (w *World) Bill(ctx context.Context, from, to time.Time) ([]channel.BillRow, error) {
	until := int64(1) << 62
	if !to.IsZero() {
		until = to.UnixMicro()
	}
	since := convergo.Micros(from)
	var rows []billRow
	err := w.db.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return sqlscan.Select(ctx, tx, &rows, w.sql.Get("Bill"), w.cfg.Merchant, since, until, w.cfg.Merchant, since, until)
	})
	if err != nil {
		return nil, fmt.Errorf("simulated world: bill: %w", err)
	}
	bill := make([]channel.BillRow, len(rows))
	for i, r := range rows {
		bill[i] = channel.BillRow{
			Kind: r.Kind, Merchant: r.Merchant, TradeNo: r.TradeNo, Transaction: r.Transaction, RefundNo: r.RefundNo, RefundID: r.RefundID,
			Amount: r.Amount, Currency: r.Currency, At: convergo.FromMicros(r.At),
		}
	}
	return bill, nil
}

func period(r *http.Request) (from, to time.Time, err error) {
	for name, into := range map[string]*time.Time{"from": &from, "to": &to} {
		text := r.FormValue(name)
		if text == "" {
			continue
		}
		if *into, err = time.Parse(time.RFC3339, text); err != nil {
			return from, to, refuse(http.StatusBadRequest, channel.CodeInvalid, name+" is not an RFC 3339 time")
		}
	}
	return from, to, nil
}

func asCSV(rows []channel.BillRow) csvText {
	var text strings.Builder
	out := csv.NewWriter(&text)
	_ = out.Write([]string{"kind", "merchant", "trade_no", "transaction", "out_refund_no", "refund_id", "amount", "currency", "at"})
	for _, r := range rows {
		_ = out.Write([]string{
			r.Kind, r.Merchant, r.TradeNo, r.Transaction, r.RefundNo, r.RefundID,
			strconv.FormatInt(r.Amount, 10), r.Currency, r.At.Format(time.RFC3339Nano),
		})
	}
	out.Flush() // a strings.Builder does not fail
	return csvText(text.String())
}
