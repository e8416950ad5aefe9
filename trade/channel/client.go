package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/convergo/convergo"
)

// Client makes our calls to the channel. The zero values of Timeout, MaxAnswer, HTTP and Now are defaults; BaseURL and
// Secret are required. It is safe for concurrent use.
type Client struct {
	BaseURL string // for example "https://channel.example", without a trailing slash
	Secret  Secret // signs every request
	HTTP    *http.Client
	// Timeout of one call, connection and answer together; default 10 s.
	Timeout time.Duration
	// MaxAnswer is the longest answer that is read, in bytes; default 1 MiB. A longer one is an error.
	MaxAnswer int64
	Now       func() time.Time
}

// ErrNotFound says that the channel has no trace of what was asked for.
var ErrNotFound = errors.New("not found at the channel")

// ErrAmbiguous is wrapped when nobody can tell whether the channel did what it was asked: ask it, then use the same key.
var ErrAmbiguous = errors.New("outcome at the channel is unknown")

// RefusedError is a definite answer "no": the channel did not do it and will not. Its verdict is convergo.Park.
type RefusedError struct {
	Status int
	Code   string // for example "ORDERPAID", "REFUND_EXCEEDS_PAYMENT"
	Detail string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the channel refused with %d %s: %s", e.Status, e.Code, e.Detail)
}

// Codes of refusals.
const (
	CodeNotFound      = "NOT_FOUND"
	CodeOrderPaid     = "ORDERPAID"
	CodeOrderClosed   = "ORDERCLOSED"
	CodeExceeds       = "REFUND_EXCEEDS_PAYMENT"
	CodeMismatch      = "KEY_USED_WITH_OTHER_CONTENT"
	CodeInvalid       = "INVALID_REQUEST"
	CodeUnauthorized  = "UNAUTHORIZED"
	CodeUnavailable   = "UNAVAILABLE"
	CodeLimit         = "ACCOUNT_LIMIT"
	CodeAlreadyMoving = "IN_TRANSIT"
	CodeCanceled      = "CANCELED"
)

// Problem is the body of an answer that is not 2xx.
type Problem struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Trade  *Trade `json:"trade,omitempty"` // with ORDERPAID
}

// Closed is the answer to Close.
type Closed struct {
	// Paid: the trade was paid before; it cannot be closed, and Trade is what was paid. Otherwise the trade is closed
	// and can never be paid.
	Paid  bool  `json:"paid"`
	Trade Trade `json:"trade"`
}

// Trade asks for a trade by our number. ErrNotFound is no proof that it will not be paid: the buyer may still have the
// cashier page open. Only Close is.
func (c *Client) Trade(ctx context.Context, tradeNo string) (Trade, error) {
	var trade Trade
	err := c.call(ctx, http.MethodGet, "/channel/trades/"+url.PathEscape(tradeNo), nil, &trade)
	return trade, err
}

// Close makes sure that a trade can never be paid, also one that the channel has not heard of. Repeating it is harmless.
func (c *Client) Close(ctx context.Context, tradeNo string) (Closed, error) {
	var trade Trade
	err := c.call(ctx, http.MethodPost, "/channel/trades/"+url.PathEscape(tradeNo)+"/close", struct{}{}, &trade)
	var paid *paidError
	if errors.As(err, &paid) {
		return Closed{Paid: true, Trade: paid.trade}, nil
	}
	if err != nil {
		return Closed{}, err
	}
	return Closed{Trade: trade}, nil
}

// Refund sends money back. r.RefundNo is the idempotency key: the same request again gets the first one's answer.
func (c *Client) Refund(ctx context.Context, r RefundRequest) (Refund, error) {
	var refund Refund
	err := c.call(ctx, http.MethodPost, "/channel/refunds", r, &refund)
	return refund, err
}

// RefundStatus asks what became of a refund. ErrNotFound: the channel has no trace of it.
func (c *Client) RefundStatus(ctx context.Context, refundNo string) (Refund, error) {
	var refund Refund
	err := c.call(ctx, http.MethodGet, "/channel/refunds/"+url.PathEscape(refundNo), nil, &refund)
	return refund, err
}

// Bill is the channel's statement of from ≤ time < to; a zero to means everything since from.
func (c *Client) Bill(ctx context.Context, from, to time.Time) ([]BillRow, error) {
	period := url.Values{}
	for name, at := range map[string]time.Time{"from": from, "to": to} {
		if !at.IsZero() {
			period.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	var rows []BillRow
	err := c.call(ctx, http.MethodGet, "/channel/bill?"+period.Encode(), nil, &rows)
	return rows, err
}

// paidError carries the trade of an ORDERPAID answer out of call.
type paidError struct {
	*RefusedError
	trade Trade
}

func (e *paidError) Unwrap() error { return e.RefusedError }

// call makes one signed request. What its errors mean:
//   - the connection could not be made: convergo.Unreachable, nothing was sent;
//   - anything that broke after that, 408, 425, 429 and 5xx: ErrAmbiguous, again later with the same key;
//   - 401 and 403: convergo.Unreachable, because our clock or secret is wrong for every call, not for this one;
//   - 404: ErrNotFound for a GET; other 4xx: convergo.Permanent around a *RefusedError.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.Timeout, 10*time.Second))
	defer cancel()
	request, err := c.request(ctx, method, path, in)
	if err != nil {
		return convergo.Permanent(err)
	}
	client := *orDefault(c.HTTP, http.DefaultClient)
	// A signed request goes where it was signed for.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := client.Do(request)
	if err != nil {
		return failedCall(method, path, err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := c.readAnswer(answer.Body)
	if err != nil {
		return fmt.Errorf("%s %s: read answer: %w: %w", method, path, ErrAmbiguous, err)
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %w", method, path, refusal(method, answer.StatusCode, body))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s %s: answer cannot be read: %w: %w", method, path, ErrAmbiguous, err)
	}
	return nil
}

func (c *Client) request(ctx context.Context, method, path string, in any) (*http.Request, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	if err := SignRequest(request, "req_"+uuid.NewString(), now(), body, c.Secret); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return request, nil
}

func (c *Client) readAnswer(r io.Reader) ([]byte, error) {
	most := orDefault(c.MaxAnswer, 1<<20)
	body, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(body)) > most {
		err = fmt.Errorf("longer than %d bytes", most)
	}
	return body, err
}

// failedCall tells a request that never left from one that may have arrived. The cause's text is kept, and it holds
// the address but no header, so no secret.
func failedCall(method, path string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return convergo.Unreachable(fmt.Errorf("%s %s: %w", method, path, err))
	}
	return fmt.Errorf("%s %s: %w: %w", method, path, ErrAmbiguous, err)
}

func refusal(method string, status int, body []byte) error {
	var p Problem
	_ = json.Unmarshal(body, &p) // an answer without a readable body is judged by its status alone
	refused := &RefusedError{Status: status, Code: clip(p.Code), Detail: clip(p.Detail)}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return convergo.Unreachable(fmt.Errorf("check the shared secret and both clocks: %w", refused))
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly || status == http.StatusTooManyRequests || status/100 != 4:
		return fmt.Errorf("%w: %w", ErrAmbiguous, refused)
	case status == http.StatusNotFound && method == http.MethodGet:
		return fmt.Errorf("%w: %w", ErrNotFound, refused)
	case p.Code == CodeOrderPaid && p.Trade != nil:
		return convergo.Permanent(&paidError{refused, *p.Trade})
	}
	return convergo.Permanent(refused)
}

func clip(s string) string {
	const most = 200
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
