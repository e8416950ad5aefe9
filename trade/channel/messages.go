package channel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Trade states at the channel.
const (
	TradeUnpaid = "UNPAID"
	TradePaid   = "PAID"
	TradeClosed = "CLOSED" // never paid, and can never be
)

// Trade is a payment as the channel sees it.
type Trade struct {
	Merchant    string    `json:"merchant"`
	TradeNo     string    `json:"trade_no"`
	State       string    `json:"state"`
	Transaction string    `json:"transaction,omitempty"` // the channel's number of the payment; set when paid
	Amount      int64     `json:"amount,omitempty"`
	Currency    string    `json:"currency,omitempty"`
	PaidAt      time.Time `json:"paid_at,omitzero"`
}

// Notice types.
const (
	NoticePaid   = "payment.succeeded"
	NoticeFailed = "payment.failed" // an attempt was declined; the trade may still be paid by another
)

// Notice is the body of a message that the channel sends to us.
type Notice struct {
	Type        string    `json:"type"`
	Merchant    string    `json:"merchant"`
	TradeNo     string    `json:"trade_no"`
	Transaction string    `json:"transaction"`
	Amount      int64     `json:"amount"`
	Currency    string    `json:"currency"`
	At          time.Time `json:"at"`
}

// Refund states at the channel.
const (
	RefundSucceeded  = "SUCCEEDED"
	RefundProcessing = "PROCESSING"
	RefundFailed     = "FAILED"
)

// Refund is a refund as the channel sees it.
type Refund struct {
	RefundNo    string `json:"out_refund_no"` // ours; the idempotency key
	RefundID    string `json:"refund_id"`     // the channel's
	Transaction string `json:"transaction"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
	State       string `json:"state"`
}

// RefundRequest asks for a refund. Two requests with one RefundNo are one refund.
type RefundRequest struct {
	RefundNo    string `json:"out_refund_no"`
	Transaction string `json:"transaction"`
	Amount      int64  `json:"amount"`
	Currency    string `json:"currency"`
}

// BillRow is one line of the channel's statement.
type BillRow struct {
	Kind        string    `json:"kind"` // "PAYMENT" or "REFUND"
	Merchant    string    `json:"merchant"`
	TradeNo     string    `json:"trade_no"`
	Transaction string    `json:"transaction"`
	RefundNo    string    `json:"out_refund_no,omitempty"`
	RefundID    string    `json:"refund_id,omitempty"`
	Amount      int64     `json:"amount"` // minor units, positive for both kinds
	Currency    string    `json:"currency"`
	At          time.Time `json:"at"`
}

// Statement rows' kinds.
const (
	BillPayment = "PAYMENT"
	BillRefund  = "REFUND"
)

// ErrMalformed is wrapped by the errors of ParseNotice.
var ErrMalformed = errors.New("malformed message")

const (
	maxNumberBytes = 100 // merchant, trade number, transaction: they fit into keys together with their prefixes
	maxTypeBytes   = 64
	maxDepth       = 16
)

// ParseNotice reads a notice strictly: UTF-8, one JSON object, no name twice in any object (encoding/json would take
// the last one, and would take "AMOUNT" for "amount"), no name that differs from a known one only in case, no field
// missing that money depends on. Unknown names are allowed: a channel may add some.
func ParseNotice(body []byte) (Notice, error) {
	if !utf8.Valid(body) {
		return Notice{}, fmt.Errorf("body is not UTF-8: %w", ErrMalformed)
	}
	if err := checkNames(body, "type", "merchant", "trade_no", "transaction", "amount", "currency", "at"); err != nil {
		return Notice{}, err
	}
	var n Notice
	if err := json.Unmarshal(body, &n); err != nil {
		return Notice{}, fmt.Errorf("%w: %w", err, ErrMalformed)
	}
	return n, n.validate()
}

func (n Notice) validate() error {
	for _, f := range []struct{ name, value string }{
		{"type", n.Type}, {"merchant", n.Merchant}, {"trade_no", n.TradeNo}, {"transaction", n.Transaction},
	} {
		plain := func(r rune) bool { return r > ' ' && r < 0x7f }
		if f.value == "" || len(f.value) > maxNumberBytes || strings.ContainsFunc(f.value, func(r rune) bool { return !plain(r) }) {
			return fmt.Errorf("%s must be 1 to %d printable ASCII characters without blanks: %w", f.name, maxNumberBytes, ErrMalformed)
		}
	}
	if len(n.Type) > maxTypeBytes {
		return fmt.Errorf("type is longer than %d: %w", maxTypeBytes, ErrMalformed)
	}
	if n.Amount <= 0 {
		return fmt.Errorf("amount must be a positive whole number of minor units: %w", ErrMalformed)
	}
	if len(n.Currency) != 3 || strings.Trim(n.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return fmt.Errorf("currency must be three capital letters: %w", ErrMalformed)
	}
	return nil
}

// checkNames walks the JSON text and refuses an object that has a name twice, compared as encoding/json compares, and,
// at the top, a name that encoding/json would take for a known one although it is spelt differently.
func checkNames(body []byte, known ...string) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	first, err := d.Token()
	if err != nil || first != json.Delim('{') {
		return fmt.Errorf("body is not a JSON object: %w", ErrMalformed)
	}
	exact := make(map[string]string, len(known))
	for _, name := range known {
		exact[fold(name)] = name
	}
	if err := checkObject(d, exact, 1); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows the JSON object: %w", ErrMalformed)
	}
	return nil
}

func checkObject(d *json.Decoder, exact map[string]string, depth int) error {
	seen := make(map[string]bool)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return fmt.Errorf("%w: %w", err, ErrMalformed)
		}
		name, _ := token.(string)
		folded := fold(name)
		if seen[folded] {
			return fmt.Errorf("name %.40q stands twice in one object: %w", name, ErrMalformed)
		}
		seen[folded] = true
		if want, ok := exact[folded]; ok && want != name {
			return fmt.Errorf("name %.40q must be written %q: %w", name, want, ErrMalformed)
		}
		if err := checkValue(d, depth); err != nil {
			return err
		}
	}
	_, err := d.Token() // the closing brace
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrMalformed)
	}
	return nil
}

func checkValue(d *json.Decoder, depth int) error {
	token, err := d.Token()
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrMalformed)
	}
	if depth >= maxDepth {
		return fmt.Errorf("nested deeper than %d: %w", maxDepth, ErrMalformed)
	}
	switch token {
	case json.Delim('{'):
		return checkObject(d, nil, depth+1)
	case json.Delim('['):
		for d.More() {
			if err := checkValue(d, depth+1); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return fmt.Errorf("%w: %w", err, ErrMalformed)
		}
	}
	return nil
}

// fold maps names that encoding/json treats as equal to one text; "ſ" and the Kelvin sign are among them.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }
