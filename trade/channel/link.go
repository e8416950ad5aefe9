package channel

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// Link is what a cashier page is opened with: the buyer's browser carries it, so it is signed.
type Link struct {
	Merchant string
	TradeNo  string // our number of this payment, unique per merchant
	Amount   int64  // minor units, > 0
	Currency string // ISO 4217
	Expires  time.Time
}

// Errors of ParseLink.
var (
	ErrLink        = errors.New("cashier link is malformed or not signed by the merchant")
	ErrLinkExpired = errors.New("cashier link has expired")
)

// URL is the address of the cashier page below base, for example "https://channel.example/channel/pay?…".
func (l Link) URL(base string, secret Secret) string {
	query := l.query()
	query.Set("signature", base64.RawURLEncoding.EncodeToString(l.mac(secret)))
	return base + "/channel/pay?" + query.Encode()
}

// ParseLink reads and verifies the query of a cashier link. Each parameter must be there exactly once.
func ParseLink(rawQuery string, now time.Time, secrets ...Secret) (Link, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return Link{}, fmt.Errorf("query cannot be read: %w", ErrLink)
	}
	names := []string{"merchant", "trade_no", "amount", "currency", "expires", "signature"}
	for _, name := range names {
		if len(query[name]) != 1 || query.Get(name) == "" {
			return Link{}, fmt.Errorf("want exactly one %s, got %d: %w", name, len(query[name]), ErrLink)
		}
	}
	if len(query) != len(names) {
		return Link{}, fmt.Errorf("it has parameters that were not signed: %w", ErrLink)
	}
	link := Link{Merchant: query.Get("merchant"), TradeNo: query.Get("trade_no"), Currency: query.Get("currency")}
	if link.Amount, err = strconv.ParseInt(query.Get("amount"), 10, 64); err != nil || link.Amount <= 0 {
		return Link{}, fmt.Errorf("amount is not a positive whole number: %w", ErrLink)
	}
	seconds, err := strconv.ParseInt(query.Get("expires"), 10, 64)
	if err != nil {
		return Link{}, fmt.Errorf("expires is not a number of seconds: %w", ErrLink)
	}
	link.Expires = time.Unix(seconds, 0).UTC()
	got, err := base64.RawURLEncoding.DecodeString(query.Get("signature"))
	if err != nil {
		return Link{}, fmt.Errorf("signature is not base64: %w", ErrLink)
	}
	for _, secret := range secrets {
		if !secret.IsZero() && hmac.Equal(got, link.mac(secret)) {
			return link, link.checkTime(now)
		}
	}
	return Link{}, fmt.Errorf("no signature fits: %w", ErrLink)
}

func (l Link) checkTime(now time.Time) error {
	if !now.Before(l.Expires) {
		return fmt.Errorf("it was valid until %s: %w", l.Expires.Format(time.RFC3339), ErrLinkExpired)
	}
	return nil
}

// query is canonical: url.Values.Encode sorts by name.
func (l Link) query() url.Values {
	return url.Values{
		"merchant": {l.Merchant}, "trade_no": {l.TradeNo}, "amount": {strconv.FormatInt(l.Amount, 10)},
		"currency": {l.Currency}, "expires": {strconv.FormatInt(l.Expires.Unix(), 10)},
	}
}

// mac starts with a line that no webhook can start with (an id has no line end), so that a signature of one kind is
// never one of the other.
func (l Link) mac(secret Secret) []byte {
	return secret.mac([]byte("cashier-link\n" + l.query().Encode()))
}
