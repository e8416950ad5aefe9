package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestARequestForAnotherProcessIsPassedOnOnceAndNoFurther(t *testing.T) {
	var got *http.Request
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(peer.Close)
	p := &platform{log: slog.New(slog.DiscardHandler), cfg: serveCommand{Services: []string{"order"}, Peers: map[string]string{"payment": peer.URL, "order": "http://127.0.0.1:1"}}}
	mux := http.NewServeMux()
	p.passOn(mux, p.clients())
	ask := func(path string, header http.Header) int {
		r := httptest.NewRequest(http.MethodPost, path, http.NoBody)
		for name, values := range header {
			r.Header[name] = values
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		_, _ = io.Copy(io.Discard, w.Result().Body) // the status is enough
		return w.Code
	}
	if code := ask("/payments/intents", http.Header{"Idempotency-Key": {"k"}, "X-Forwarded-For": {"6.6.6.6"}}); code != http.StatusTeapot {
		t.Fatalf("%d", code)
	}
	if got.URL.Path != "/payments/intents" || got.Header.Get("Idempotency-Key") != "k" || got.Header.Get("X-Forwarded-For") == "6.6.6.6" || got.Header.Get(passedOn) == "" {
		t.Errorf("passed on as %v %v", got.URL, got.Header)
	}
	if code := ask("/payments/intents", http.Header{passedOn: {"1"}}); code != http.StatusLoopDetected {
		t.Errorf("a request that was passed on already: %d", code)
	}
	if code := ask("/orders/x", nil); code != http.StatusNotFound {
		t.Errorf("a service of this process is passed on: %d", code)
	}
	peer.Close()
	if code := ask("/payments/intents", nil); code != http.StatusBadGateway {
		t.Errorf("a peer that is gone: %d", code)
	}
}
