package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/convergo/convergo/trade"
)

func TestAReadWithoutItsDatabaseMayBeAskedAgain(t *testing.T) {
	t.Parallel()
	store, _ := outboxIn(t, filepath.Join(t.TempDir(), "order.db"))
	u := &unit{store: &opened{database: store}}
	failing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Of", "the handler")
		trade.WriteProblem(w, trade.NewProblem(http.StatusInternalServerError, "", "something went wrong", "try again with the same Idempotency-Key"))
	})
	ask := func(method string, next http.Handler) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		outages(u.there, next).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "/orders/O-1", nil))
		return answer
	}
	if a := ask(http.MethodGet, failing); a.Code != http.StatusInternalServerError || strings.Contains(a.Body.String(), "Idempotency-Key") {
		t.Errorf("with its database: %d %s", a.Code, a.Body)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if a := ask(http.MethodGet, failing); a.Code != http.StatusServiceUnavailable || a.Header().Get("Retry-After") != "2" ||
		strings.Contains(a.Body.String(), "Idempotency-Key") || !strings.Contains(a.Body.String(), "the database does not answer") {
		t.Errorf("without its database: %d %v %s", a.Code, a.Header(), a.Body)
	}
	if a := ask(http.MethodPost, failing); a.Code != http.StatusInternalServerError || !strings.Contains(a.Body.String(), "same Idempotency-Key") {
		t.Errorf("a POST is left as it is: %d %s", a.Code, a.Body)
	}
	fine := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("an order")) })
	if a := ask(http.MethodGet, fine); a.Code != http.StatusOK || a.Body.String() != "an order" {
		t.Errorf("what is answered is changed: %d %s", a.Code, a.Body)
	}
	if err := u.there(context.Background()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a closed database answers: %v", err)
	}
}
