package channel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

// answering is a client of a server that verifies the request and gives one answer.
func answering(t *testing.T, status int, body string) *Client {
	t.Helper()
	secret := NewSecret()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		if _, err := VerifyRequest(r, sent, at, secret); err != nil {
			t.Errorf("%s %s is not signed: %v", r.Method, r.URL, err)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return &Client{BaseURL: server.URL, Secret: secret, HTTP: server.Client(), Now: func() time.Time { return at }}
}

func TestARefusalIsPermanentAndNamesItsCode(t *testing.T) {
	c := answering(t, http.StatusUnprocessableEntity, `{"code":"REFUND_EXCEEDS_PAYMENT","detail":"4000 left"}`)
	_, err := c.Refund(t.Context(), RefundRequest{RefundNo: "RF-2", Transaction: "T-1", Amount: 6000, Currency: "CNY"})
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Code != CodeExceeds || convergo.VerdictOf(err) != convergo.Park || errors.Is(err, ErrAmbiguous) {
		t.Errorf("%v, verdict %v", err, convergo.VerdictOf(err))
	}
}

func TestWhatMayHaveArrivedIsAmbiguousAndTriedAgain(t *testing.T) {
	for _, status := range []int{408, 425, 429, 500, 502, 503, 504, 302} {
		_, err := answering(t, status, `oops`).Refund(t.Context(), RefundRequest{RefundNo: "RF-1"})
		if !errors.Is(err, ErrAmbiguous) || convergo.VerdictOf(err) != convergo.Again {
			t.Errorf("status %d: %v, verdict %v", status, err, convergo.VerdictOf(err))
		}
	}
	if _, err := answering(t, 200, `{"state":`).Refund(t.Context(), RefundRequest{RefundNo: "RF-1"}); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("an answer that is cut off: %v", err)
	}
	c := answering(t, 200, `{"x":"`+strings.Repeat("x", 5000)+`"}`)
	c.MaxAnswer = 1000
	if _, err := c.Trade(t.Context(), "O-1-1"); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("an answer that is too long: %v", err)
	}
}

func TestAWrongSecretOrClockIsAnOutageAndNoRefusal(t *testing.T) {
	for _, status := range []int{401, 403} {
		if _, err := answering(t, status, `{"code":"UNAUTHORIZED"}`).Trade(t.Context(), "O-1-1"); convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("status %d: %v, verdict %v", status, err, convergo.VerdictOf(err))
		}
	}
}

func TestNotFoundIsToldApart(t *testing.T) {
	_, err := answering(t, 404, `{"code":"NOT_FOUND"}`).RefundStatus(t.Context(), "RF-9")
	if !errors.Is(err, ErrNotFound) || convergo.VerdictOf(err) != convergo.Again {
		t.Errorf("%v, verdict %v", err, convergo.VerdictOf(err))
	}
}

func TestCloseOfAPaidTradeBringsTheTrade(t *testing.T) {
	c := answering(t, 409, `{"code":"ORDERPAID","detail":"paid",
		"trade":{"trade_no":"O-1-1","state":"PAID","transaction":"T-1","amount":100,"currency":"CNY"}}`)
	closed, err := c.Close(t.Context(), "O-1-1")
	if err != nil || !closed.Paid || closed.Trade.Transaction != "T-1" || closed.Trade.Amount != 100 {
		t.Errorf("%+v, %v", closed, err)
	}
	closed, err = answering(t, 200, `{"trade_no":"O-1-1","state":"CLOSED"}`).Close(t.Context(), "O-1-1")
	if err != nil || closed.Paid || closed.Trade.State != TradeClosed {
		t.Errorf("%+v, %v", closed, err)
	}
	if _, err = answering(t, 409, `{"code":"OTHER"}`).Close(t.Context(), "O-1-1"); convergo.VerdictOf(err) != convergo.Park {
		t.Errorf("another conflict: %v", err)
	}
}

func TestNobodyThereIsAnOutage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	c := &Client{BaseURL: "http://" + address, Secret: NewSecret()}
	if _, err := c.Trade(t.Context(), "O-1-1"); convergo.VerdictOf(err) != convergo.Outage || errors.Is(err, ErrAmbiguous) {
		t.Errorf("%v, verdict %v", err, convergo.VerdictOf(err))
	}
}

func TestATimeOutIsAmbiguousAndShowsNoSecret(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-gone
	}))
	defer server.Close()
	defer close(gone)
	c := &Client{BaseURL: server.URL, Secret: NewSecret(), Timeout: 20 * time.Millisecond}
	_, err := c.Refund(context.Background(), RefundRequest{RefundNo: "RF-1"})
	if !errors.Is(err, ErrAmbiguous) || convergo.VerdictOf(err) != convergo.Again {
		t.Errorf("%v, verdict %v", err, convergo.VerdictOf(err))
	}
	if strings.Contains(err.Error(), "v1,") || strings.Contains(err.Error(), c.Secret.Reveal()) {
		t.Errorf("it shows a secret: %v", err)
	}
}
