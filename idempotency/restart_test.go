package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/store/memory"
)

// restarting is a store that runs every function twice and rolls the first run back, as a database that locks rows does
// when it has to end a deadlock.
type restarting struct{ *memory.Store }

var errDeadlock = errors.New("deadlock")

func (r restarting) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	err := r.Store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		_ = fn(ctx, tx)
		return errDeadlock
	})
	if !errors.Is(err, errDeadlock) {
		return err
	}
	return r.Store.Update(ctx, fn)
}

func TestAHandlerThatIsRunAgainSeesAnUnreadRequestAndAnswersOnce(t *testing.T) {
	s := restarting{memory.New()}
	runs := 0
	handler := idempotency.Middleware[*memory.Tx](s, idempotency.Config{Scope: func(*http.Request) string { return "me" }})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			tx, _ := idempotency.Tx[*memory.Tx](r.Context())
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "two pencils" || r.Header.Get("Content-Type") != "text/plain" {
				t.Errorf("run %d: body %q, %v, content type %q", runs, body, err, r.Header.Get("Content-Type"))
			}
			r.Header.Del("Content-Type") // whatever a handler does to its request
			if r.URL.Path == "/panics" && runs == 1 {
				panic("only in the run that is rolled back")
			}
			tx.Add("orders", 1)
			w.Header().Add("Location", "/orders/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "made")
		}))
	for _, path := range []string{"/orders", "/panics"} {
		runs = 0
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("two pencils"))
		r.Header.Set("Content-Type", "text/plain")
		r.Header.Set("Idempotency-Key", "key"+path[1:])
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusCreated || w.Body.String() != "made" || len(w.Header()["Location"]) != 1 {
			t.Errorf("%s: %d %q %v", path, w.Code, w.Body, w.Header())
		}
		if runs != 2 {
			t.Errorf("%s: the handler ran %d times: this test shows nothing", path, runs)
		}
	}
	err := s.View(t.Context(), func(_ context.Context, tx *memory.Tx) error {
		if n := tx.Get("orders"); n != 2 {
			t.Errorf("%d orders, want one of each request", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
