package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade/channel"
)

// shop is the merchant's side of a world: it verifies and keeps every notice, and answers as it is told.
type shop struct {
	t      *testing.T
	world  *World
	client *channel.Client
	server *httptest.Server // the world's
	secret channel.Secret
	path   string // of the world's database

	mu      sync.Mutex
	now     time.Time
	status  int // of the answer to a verified notice
	notices []channel.Notice
	ids     map[string]int // verified deliveries by webhook-id
	forged  int
}

func (s *shop) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *shop) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id, err := channel.Verify(r.Header, body, s.clock(), s.secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.forged++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	n, err := channel.ParseNotice(body)
	if err != nil {
		s.t.Errorf("notice %s: %v", body, err)
	}
	s.notices = append(s.notices, n)
	s.ids[id]++
	w.WriteHeader(s.status)
}

// open makes a world on the database at s.path; a second time it is a restart.
func (s *shop) open(f Faults, notifyURL string) {
	s.t.Helper()
	store, err := sqlite.Open(context.Background(), s.path, sqlite.Options{Relaxed: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(context.Background(), "simulate", Migrations()); err != nil {
		s.t.Fatal(err)
	}
	s.world, err = New(store, Config{
		Merchant: "m-1", Secrets: []channel.Secret{s.secret}, NotifyURL: notifyURL, Faults: f, Now: s.clock, Transit: 10 * time.Minute,
		Backoff: convergo.Backoff{Base: time.Second, Jitter: convergo.NoJitter},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.server = httptest.NewServer(s.world.Handler())
	s.t.Cleanup(s.server.Close)
	s.client = &channel.Client{BaseURL: s.server.URL, Secret: s.secret, Now: s.clock}
}

func newShop(t *testing.T, f Faults) *shop {
	t.Helper()
	s := &shop{
		t: t, secret: channel.NewSecret(), path: filepath.Join(t.TempDir(), "simulate.db"), status: http.StatusNoContent,
		now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), ids: map[string]int{},
	}
	receiver := httptest.NewServer(s)
	t.Cleanup(receiver.Close)
	s.open(f, receiver.URL)
	return s
}

func (s *shop) link(tradeNo string, amount int64) string {
	link := channel.Link{Merchant: "m-1", TradeNo: tradeNo, Amount: amount, Currency: "CNY", Expires: s.clock().Add(time.Hour)}
	return link.URL(s.server.URL, s.secret)
}

func (s *shop) pay(tradeNo string, amount int64, o PayOptions) Payment {
	s.t.Helper()
	p, err := s.world.Pay(s.t.Context(), s.link(tradeNo, amount), o)
	if err != nil {
		s.t.Fatalf("pay %s: %v", tradeNo, err)
	}
	return p
}

// deliver delivers all that is due now.
func (s *shop) deliver() (attempts int) {
	s.t.Helper()
	for {
		n, _, err := s.world.Deliver(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		if attempts += n; n == 0 {
			return attempts
		}
	}
}

func (s *shop) stats() Stats {
	s.t.Helper()
	stats, err := s.world.Stats(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return stats
}

// post sends JSON without a signature.
func (s *shop) post(path string, body any) (status int, answer []byte, err error) {
	s.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.Post(s.server.URL+path, "application/json", bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func (s *shop) get(path string, into any) (status int) {
	s.t.Helper()
	response, err := http.Get(s.server.URL + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(into); err != nil {
			s.t.Fatal(err)
		}
	}
	return response.StatusCode
}
