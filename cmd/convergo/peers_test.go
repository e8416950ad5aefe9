package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
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

// theOther is a platform whose payment service is the handler, in another process.
func theOther(t *testing.T, handler http.HandlerFunc) (entry *httptest.Server, peer *httptest.Server) {
	t.Helper()
	peer = httptest.NewServer(handler)
	t.Cleanup(peer.Close)
	p := &platform{log: slog.New(slog.DiscardHandler), cfg: serveCommand{Services: []string{"order"}, Peers: map[string]string{"payment": peer.URL}}}
	mux := http.NewServeMux()
	p.passOn(mux, clientsBehind(t, "127.0.0.0/8"))
	entry = httptest.NewServer(mux)
	t.Cleanup(entry.Close)
	return entry, peer
}

func TestAPeerGetsTheQueryAsItCameAndTheClientsAddress(t *testing.T) {
	var query, list string
	var client netip.Addr
	entry, _ := theOther(t, func(_ http.ResponseWriter, r *http.Request) {
		query, list, client = r.URL.RawQuery, r.Header.Get("X-Forwarded-For"), clients{secret: clientSecret, now: time.Now}.of(r)
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, entry.URL+"/payments/x?a=1;b=2&c=%zz", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-For", "8.8.8.8, 198.51.100.1")
	r.Header.Set("Connection", passedOn) // what the client calls his connection's own is not passed on, and this process's word is
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if query != "a=1;b=2&c=%zz" {
		t.Errorf("the peer was asked %q", query)
	}
	if list != "198.51.100.1" || client.String() != "198.51.100.1" {
		t.Errorf("the peer hears that the client is %q and counts %v", list, client)
	}
}

func TestAPeersAnswerThatIsCutShortIsNotGivenAsWhole(t *testing.T) {
	cut := func(size int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size+1000))
			_, _ = w.Write(bytes.Repeat([]byte("x"), size)) // the rest never comes
			panic(http.ErrAbortHandler)
		}
	}
	ask := func(handler http.HandlerFunc) (status int, body []byte, err error) {
		entry, _ := theOther(t, handler)
		answer, err := http.Get(entry.URL + "/payments/x")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err = io.ReadAll(answer.Body)
		if answer.StatusCode == http.StatusBadGateway && answer.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("a 502 of %s", answer.Header.Get("Content-Type"))
		}
		return answer.StatusCode, body, err
	}
	for _, size := range []int{0, 10, 100_000} {
		if status, body, err := ask(cut(size)); status != http.StatusBadGateway || err != nil || !strings.Contains(string(body), "the service payment does not answer") {
			t.Errorf("%d bytes, then nothing: %d, %d bytes, %v", size, status, len(body), err)
		}
	}
	if status, body, err := ask(cut(2 * heldBack)); err == nil {
		t.Errorf("a long answer that is cut short: %d with %d bytes, and the client is not told", status, len(body))
	}
	for _, size := range []int{0, 10, heldBack, heldBack + 1, 3 * heldBack} {
		whole := bytes.Repeat([]byte("y"), size)
		status, body, err := ask(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(whole) })
		if status != http.StatusOK || err != nil || !bytes.Equal(body, whole) {
			t.Errorf("%d bytes: %d, %d bytes, %v", size, status, len(body), err)
		}
	}
}
