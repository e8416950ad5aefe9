package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/convergo/convergo/trade/payment"
)

// A notice's body is read before its signature can be checked. What that costs is bounded before: how much of it is read, and how often.
func TestNoticesAreBoundedBeforeTheirSignatureIsLookedAt(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0.001", "--burst", "2") // an address: twenty, and then nothing for minutes
	const path = "/payments/notify/standard"
	p.send(http.MethodPost, path, bytes.NewReader(make([]byte, payment.MaxNotice+1))).problem(t, http.StatusRequestEntityTooLarge)
	p.send(http.MethodPost, path, bytes.NewReader(make([]byte, payment.MaxNotice-1))).problem(t, http.StatusUnauthorized)
	forged, refused := 0, 0
	for range 40 {
		switch a := p.send(http.MethodPost, path, strings.NewReader("{}"), "webhook-id", "x", "webhook-timestamp", "1", "webhook-signature", "v1,AAAA"); a.status {
		case http.StatusUnauthorized:
			forged++
			if refused > 0 {
				t.Error("a signature was looked at after the address had used up its allowance")
			}
		case http.StatusTooManyRequests:
			refused++
			a.problem(t, http.StatusTooManyRequests)
		default:
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if forged == 0 || forged > 20 || forged+refused != 40 {
		t.Errorf("%d looked at, %d refused", forged, refused)
	}
}

func TestAQueryThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	for _, query := range []string{"a=1;b=2", "wait=%zz", "timeout=5s;x"} {
		a := p.call(http.MethodGet, "/ops/order/backlog?"+query, p.secrets.OperatorKey, "", nil)
		if problem := a.problem(t, http.StatusBadRequest); problem.Field != "query" || problem.Remedy == "" {
			t.Errorf("%s: %s", query, a.body)
		}
	}
}
