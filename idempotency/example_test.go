package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/store/memory"
)

// A client sends an order, hears nothing, and sends it again; then it uses the key for another order.
func ExampleMiddleware() {
	store := memory.New()
	once := idempotency.Middleware[*memory.Tx](store, idempotency.Config{
		Scope: func(r *http.Request) string { return r.Header.Get("User") }, // in earnest: the signed session's user
	})
	shop := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := idempotency.Tx[*memory.Tx](r.Context())
		n := tx.Add("orders", 1) // commits together with the recorded answer
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", n)
	}))
	for _, body := range []string{"1 x S1", "1 x S1", "2 x S1"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.Header.Set("User", "ann")
		r.Header.Set(idempotency.HeaderKey, "8e03978e")
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, r)
		fmt.Printf("%s: %d %.7s, replayed: %q\n", body, w.Code, w.Body, w.Header().Get(idempotency.HeaderReplayed))
	}
	// Output:
	// 1 x S1: 201 order 1, replayed: ""
	// 1 x S1: 201 order 1, replayed: "true"
	// 2 x S1: 422 {"title, replayed: ""
}
