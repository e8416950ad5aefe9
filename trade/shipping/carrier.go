package shipping

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/convergo/convergo/trade"
)

// HTTPCarrier is a Carrier over HTTP. BaseURL is required.
type HTTPCarrier struct {
	BaseURL string // for example "https://carrier.example", without a trailing slash
	Token   string // bearer token; empty sends none
	HTTP    *http.Client
	// Timeout of one call; default 10 s.
	Timeout time.Duration
}

func (c *HTTPCarrier) partner() trade.Partner {
	return trade.Partner{Name: "the carrier", BaseURL: c.BaseURL, Token: c.Token, HTTP: c.HTTP, Timeout: c.Timeout}
}

var _ Carrier = (*HTTPCarrier)(nil)

// Book is POST /carrier/bookings.
func (c *HTTPCarrier) Book(ctx context.Context, r BookingRequest) (Tracking, error) {
	var t Tracking
	status, err := c.partner().Call(ctx, http.MethodPost, "/carrier/bookings", r, &t)
	return t, trade.PartnerVerdict(status, err)
}

// Booking is GET /carrier/bookings/{key}.
func (c *HTTPCarrier) Booking(ctx context.Context, key string) (t Tracking, known bool, err error) {
	status, err := c.partner().Call(ctx, http.MethodGet, "/carrier/bookings/"+url.PathEscape(key), nil, &t)
	if status == http.StatusNotFound {
		return Tracking{}, false, nil
	}
	return t, err == nil, trade.PartnerVerdict(status, err)
}

// Cancel is POST /carrier/bookings/{key}/cancel. 409 says that the parcel is on its way; 404 that there is nothing to stop: the
// service asks only after the booking's outcome is known, so none is on its way to the carrier.
func (c *HTTPCarrier) Cancel(ctx context.Context, key string) (canceled bool, err error) {
	var t Tracking
	status, err := c.partner().Call(ctx, http.MethodPost, "/carrier/bookings/"+url.PathEscape(key)+"/cancel", nil, &t)
	switch status {
	case http.StatusConflict:
		return false, nil
	case http.StatusNotFound:
		return true, nil
	}
	return err == nil, trade.PartnerVerdict(status, err)
}
