package shipping

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// HTTPCarrier is a Carrier over HTTP. BaseURL is required.
type HTTPCarrier struct {
	BaseURL string // for example "https://carrier.example", without a trailing slash
	HTTP    *http.Client
	// Timeout of one call; default 10 s.
	Timeout time.Duration
}

var _ Carrier = (*HTTPCarrier)(nil)

const maxAnswer = 64 << 10

// Book is POST /carrier/bookings.
func (c *HTTPCarrier) Book(ctx context.Context, r BookingRequest) (Tracking, error) {
	var t Tracking
	status, err := c.call(ctx, http.MethodPost, "/carrier/bookings", r, &t)
	return t, verdict(status, err)
}

// Booking is GET /carrier/bookings/{key}.
func (c *HTTPCarrier) Booking(ctx context.Context, key string) (t Tracking, known bool, err error) {
	status, err := c.call(ctx, http.MethodGet, "/carrier/bookings/"+url.PathEscape(key), nil, &t)
	if status == http.StatusNotFound {
		return Tracking{}, false, nil
	}
	return t, err == nil, verdict(status, err)
}

// Cancel is POST /carrier/bookings/{key}/cancel. 409 says that the parcel is on its way; 404 that there is nothing to stop: the
// service asks only after the booking's outcome is known, so none is on its way to the carrier.
func (c *HTTPCarrier) Cancel(ctx context.Context, key string) (canceled bool, err error) {
	var t Tracking
	status, err := c.call(ctx, http.MethodPost, "/carrier/bookings/"+url.PathEscape(key)+"/cancel", nil, &t)
	switch status {
	case http.StatusConflict:
		return false, nil
	case http.StatusNotFound:
		return true, nil
	}
	return err == nil, verdict(status, err)
}

// verdict: a 4xx is a definite refusal, except those that say "later" or "not you", which are no answer to this request.
func verdict(status int, err error) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return convergo.Unreachable(err)
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return err
	}
	if status/100 == 4 {
		return convergo.Permanent(err)
	}
	return err
}

// call makes one request; status is 0 when there was no answer.
func (c *HTTPCarrier) call(ctx context.Context, method, path string, in, out any) (status int, err error) {
	timeout, client := c.Timeout, c.HTTP
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	if client == nil {
		client = http.DefaultClient
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return 0, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return 0, convergo.Permanent(fmt.Errorf("%s %s: %w", method, path, err))
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = answer.Body.Close() }()
	read, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(read) > maxAnswer {
		err = errors.New("answer is too long")
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if answer.StatusCode/100 != 2 {
		said := strings.ToValidUTF8(string(read[:min(len(read), 200)]), "")
		return answer.StatusCode, fmt.Errorf("%s %s: the carrier answered %d: %s", method, path, answer.StatusCode, said)
	}
	if err := json.Unmarshal(read, out); err != nil {
		return 0, fmt.Errorf("%s %s: answer cannot be read: %w", method, path, err)
	}
	return answer.StatusCode, nil
}
