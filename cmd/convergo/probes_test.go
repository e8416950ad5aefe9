package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAProbeLooksOnceASecondHoweverManyAsk(t *testing.T) {
	var looks atomic.Int64
	var wrong atomic.Value
	wrong.Store("")
	var clock atomic.Int64
	asked := probing(func() time.Time { return time.Unix(1, clock.Load()) }, "ready", "wait", func(ctx context.Context) string {
		looks.Add(1)
		if ctx.Err() != nil {
			return "one who has gone ends the look of the others"
		}
		if _, bounded := ctx.Deadline(); !bounded {
			return "a look may last for ever"
		}
		return wrong.Load().(string)
	})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	all := func(code int) {
		t.Helper()
		var asking sync.WaitGroup
		for range 64 {
			asking.Go(func() {
				w := httptest.NewRecorder()
				asked(w, httptest.NewRequestWithContext(gone, http.MethodGet, "/readyz", nil))
				if w.Code != code {
					t.Errorf("%d %s, want %d", w.Code, w.Body, code)
				}
			})
		}
		asking.Wait()
	}
	all(http.StatusOK)
	wrong.Store("the database of order does not answer")
	clock.Store(int64(time.Second - 1))
	all(http.StatusOK)
	if n := looks.Load(); n != 1 {
		t.Errorf("it looked %d times within a second", n)
	}
	clock.Store(int64(time.Second))
	all(http.StatusServiceUnavailable)
	if n := looks.Load(); n != 2 {
		t.Errorf("it looked %d times within two seconds", n)
	}
}
