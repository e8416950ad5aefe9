package drill

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// answers plays one answer after another; the last one stays.
type answers struct {
	mu   sync.Mutex
	play []http.HandlerFunc
	seen []*http.Request
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.seen = append(a.seen, r)
	h := a.play[0]
	if len(a.play) > 1 {
		a.play = a.play[1:]
	}
	a.mu.Unlock()
	h(w, r)
}

func status(code int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func breaks(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

func clientOf(t *testing.T, play ...http.HandlerFunc) (*Client, *answers) {
	t.Helper()
	a := &answers{play: play}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return &Client{URL: server.URL, OperatorKey: "op", HTTP: server.Client()}, a
}

func TestARequestIsSentAgainUnderItsKeyUntilThereIsAnAnswer(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		"connection broken": breaks,
		"500":               status(500, `{"title":"oops"}`),
		"503":               status(503, "not even JSON"),
		"429":               status(429, `{"detail":"slow down"}`),
		"409 in progress":   status(409, `{"detail":"the same key is running"}`, "Retry-After", "1"),
		"half an answer": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
			breaks(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, seen := clientOf(t, first, first, status(201, `{"order_no":"O-1"}`))
			var placed PlacedOrder
			err := c.do(t.Context(), request{http.MethodPost, "/orders", "bearer", "order:1", map[string]int{"a": 1}, &placed})
			if err != nil || placed.OrderNo != "O-1" || c.Repeats.Load() != 2 || len(seen.seen) != 3 {
				t.Fatalf("%+v, %d repeats, %d requests, %v", placed, c.Repeats.Load(), len(seen.seen), err)
			}
			for _, r := range seen.seen {
				if r.Header.Get("Idempotency-Key") != "order:1" || r.Header.Get("Authorization") != "Bearer bearer" {
					t.Errorf("headers %v", r.Header)
				}
			}
		})
	}
}

func TestARefusalIsAnAnswer(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 409, 410, 422} {
		c, seen := clientOf(t, status(code, `{"title":"no","detail":"because"}`))
		err := c.do(t.Context(), request{method: http.MethodPost, path: "/orders", key: "k", body: struct{}{}})
		var refused *Refused
		if !errors.As(err, &refused) || refused.Status != code || refused.Detail != "because" || len(seen.seen) != 1 {
			t.Errorf("%d: %v after %d requests", code, err, len(seen.seen))
		}
	}
}

func TestAnAnswerThatIsMarkedAsReplayedIsCounted(t *testing.T) {
	c, _ := clientOf(t, status(201, `{}`, "Idempotency-Replayed", "true"), status(201, `{}`))
	for range 2 {
		if err := c.do(t.Context(), request{method: http.MethodPost, path: "/orders", key: "k", body: struct{}{}}); err != nil {
			t.Fatal(err)
		}
	}
	if c.Replayed.Load() != 1 {
		t.Errorf("%d replayed", c.Replayed.Load())
	}
}

func TestAClientGivesUpWithItsContextAndSaysOnWhat(t *testing.T) {
	c, _ := clientOf(t, status(503, ""))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.do(ctx, request{method: http.MethodGet, path: "/orders/O-1"})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "GET /orders/O-1") || !strings.Contains(err.Error(), "503") {
		t.Errorf("%v", err)
	}
}

func TestOnlyPoisonIsDiscardedAndEverythingElseIsTold(t *testing.T) {
	var mu sync.Mutex
	var discarded []string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ops/{service}/dead-letters", func(w http.ResponseWriter, r *http.Request) {
		type event struct {
			Key       string `json:"key"`
			Aggregate string `json:"aggregate"`
		}
		type letter struct {
			ID    string `json:"id"`
			Error string `json:"error"`
			Event event  `json:"event"`
		}
		dead := []letter{}
		switch r.PathValue("service") {
		case "points":
			dead = append(dead, letter{"1", "not JSON", event{"OrderPaid:POISON-1", "order/POISON-1"}}, letter{"2", "no account", event{"OrderPaid:O-1", "order/O-1"}})
		case "ledger":
			dead = append(dead, letter{"3", "not JSON", event{"OrderPaid:POISON-1", "order/POISON-1"}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"dead": dead})
	})
	mux.HandleFunc("POST /ops/{service}/dead-letters/{id}/discard", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		discarded = append(discarded, r.PathValue("service")+"/"+r.PathValue("id"))
		if r.Header.Get("Authorization") != "Bearer op" || r.Header.Get("Idempotency-Key") == "" {
			t.Errorf("%v", r.Header)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := &Client{URL: server.URL, OperatorKey: "op", HTTP: server.Client()}
	n, err := c.DiscardPoison(t.Context())
	slices.Sort(discarded)
	if n != 2 || !slices.Equal(discarded, []string{"ledger/3", "points/1"}) {
		t.Errorf("%d discarded: %v", n, discarded)
	}
	if err == nil || !strings.Contains(err.Error(), "dead letter in points: OrderPaid:O-1: no account") {
		t.Errorf("%v", err)
	}
}
