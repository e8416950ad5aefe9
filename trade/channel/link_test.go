package channel

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestACashierLinkComesBackAsItWasSigned(t *testing.T) {
	older, newer := NewSecret(), NewSecret()
	link := Link{Merchant: "m-1", TradeNo: "O-1-1", Amount: 8800, Currency: "CNY", Expires: at.Add(time.Hour)}
	u, err := url.Parse(link.URL("https://channel.example", older))
	if err != nil || u.Path != "/channel/pay" {
		t.Fatalf("%s: %v", u, err)
	}
	got, err := ParseLink(u.RawQuery, at, newer, older)
	if err != nil || got != link {
		t.Fatalf("got %+v, %v; want %+v", got, err, link)
	}
	if _, err := ParseLink(u.RawQuery, at.Add(time.Hour), older); !errors.Is(err, ErrLinkExpired) {
		t.Errorf("at its expiry: %v", err)
	}
	if _, err := ParseLink(u.RawQuery, at, newer); !errors.Is(err, ErrLink) {
		t.Errorf("another secret: %v", err)
	}
}

func TestAChangedCashierLinkIsRefused(t *testing.T) {
	secret := NewSecret()
	link := Link{Merchant: "m-1", TradeNo: "O-1-1", Amount: 8800, Currency: "CNY", Expires: at.Add(time.Hour)}
	_, query, _ := strings.Cut(link.URL("", secret), "?")
	for name, change := range map[string]func(url.Values){
		"amount": func(q url.Values) { q.Set("amount", "1") }, "currency": func(q url.Values) { q.Set("currency", "USD") },
		"merchant": func(q url.Values) { q.Set("merchant", "m-2") }, "trade_no": func(q url.Values) { q.Set("trade_no", "O-2-1") },
		"expires":   func(q url.Values) { q.Set("expires", "99999999999") },
		"no expiry": func(q url.Values) { q.Del("expires") }, "second amount": func(q url.Values) { q.Add("amount", "1") },
		"extra": func(q url.Values) { q.Set("discount", "1") }, "no signature": func(q url.Values) { q.Del("signature") },
		"signature": func(q url.Values) { q.Set("signature", "AAAA") }, "negative": func(q url.Values) { q.Set("amount", "-1") },
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		change(q)
		if got, err := ParseLink(q.Encode(), at, secret); !errors.Is(err, ErrLink) || got != (Link{}) {
			t.Errorf("%s changed: %+v, %v", name, got, err)
		}
	}
}
