package simulate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestTheCarrierAndTheMessengerServeOnlyThoseTheyKnow(t *testing.T) {
	s := newShop(t, Faults{})
	s.world.cfg.Token = "the shop's"
	server := httptest.NewServer(s.world.Handler())
	defer server.Close()
	status := func(method, path, authorization string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", authorization)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer another's", "the shop's"} {
		for _, path := range []string{"/carrier/bookings", "/carrier/bookings/SHIP:O-1/cancel", "/messenger/messages"} {
			if got := status(http.MethodPost, path, header); got != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d", path, header, got)
			}
		}
	}
	for _, path := range []string{"/carrier/bookings/SHIP:O-1", "/messenger/messages/NOTIFY:OrderPaid:O-1"} {
		if got := status(http.MethodGet, path, "Bearer the shop's"); got != http.StatusNotFound {
			t.Errorf("%s with the token: %d", path, got)
		}
	}
}
