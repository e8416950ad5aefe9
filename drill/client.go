package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Client speaks to the platform as its customers and its operator do. While the platform is down it tries again, always
// with the same Idempotency-Key.
type Client struct {
	URL         string
	OperatorKey string
	HTTP        *http.Client

	Repeats  atomic.Int64 // requests sent again because no answer came
	Replayed atomic.Int64 // answers that the platform marked as replayed: duplicates it absorbed
}

// Refused is an answer that is not 2xx.
type Refused struct {
	Status int
	Detail string
}

func (r *Refused) Error() string { return fmt.Sprintf("%d %s", r.Status, r.Detail) }

// request is one call.
type request struct {
	method, path, bearer, key string
	body, into                any
}

// do sends the request until an answer comes. An answer of 5xx, 409 in progress or 429 is tried again as well.
func (c *Client) do(ctx context.Context, r request) error {
	body, err := json.Marshal(r.body)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, r, body)
		var refused *Refused
		again := err != nil
		if errors.As(err, &refused) {
			again = refused.Status >= 500 || refused.Status == http.StatusTooManyRequests ||
				(refused.Status == http.StatusConflict && r.key != "" && refused.Detail == inProgress)
		}
		if !again {
			return err
		}
		c.Repeats.Add(1)
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s %s", r.method, r.path), err, ctx.Err())
		case <-time.After(min(time.Duration(attempt+1)*20*time.Millisecond, 200*time.Millisecond)):
		}
	}
}

const inProgress = "in progress"

func (c *Client) once(ctx context.Context, r request, body []byte) error {
	var reader io.Reader
	if r.body != nil {
		reader = bytes.NewReader(body)
	}
	q, err := http.NewRequestWithContext(ctx, r.method, c.URL+r.path, reader)
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", "Bearer "+r.bearer)
	if r.body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		q.Header.Set("Idempotency-Key", r.key)
	}
	answer, err := c.HTTP.Do(q)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 8<<20))
	if closing := answer.Body.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	if answer.Header.Get("Idempotency-Replayed") == "true" {
		c.Replayed.Add(1)
	}
	if answer.StatusCode >= 300 {
		var problem struct{ Title, Detail, Type string }
		_ = json.Unmarshal(text, &problem) // whatever it says is shown
		if answer.StatusCode == http.StatusConflict && answer.Header.Get("Retry-After") != "" {
			problem.Detail = inProgress
		}
		return &Refused{answer.StatusCode, problem.Detail}
	}
	if r.into == nil {
		return nil
	}
	return json.Unmarshal(text, r.into)
}

// operator makes a request as the operator.
func (c *Client) operator(ctx context.Context, method, path, key string, body, into any) error {
	return c.do(ctx, request{method, path, c.OperatorKey, key, body, into})
}

// PlacedOrder is what the drill reads of an order.
type PlacedOrder struct {
	OrderNo      string `json:"order_no"`
	Status       string `json:"status"`
	Reason       string `json:"reason"`
	IsPayable    bool   `json:"is_payable"`
	Payable      int64  `json:"payable"`
	GoodsTotal   int64  `json:"goods_total"`
	RefundedCash int64  `json:"refunded_cash"`
}

// closed: no money can come any more. A CLOSING order may still be paid.
func (o PlacedOrder) closed() bool { return o.Status == "CANCELED" }

// intent is a payment that was opened.
type intent struct {
	TradeNo string `json:"trade_no"`
	Link    string `json:"cashier_url"`
}
