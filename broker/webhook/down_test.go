package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/memory"
	"github.com/convergo/convergo/testlog"
)

// two endpoints: "shop" for the topic order, and "stock" for the topic stock.
func two(t *testing.T, shop, stock http.HandlerFunc, cfg Config) *Broker {
	t.Helper()
	secret, _ := key(t, "a")
	cfg.Endpoints = []Endpoint{
		{Name: "shop", URL: serve(t, shop), Secrets: []Secret{secret}, Subjects: []convergo.Subject{{Topic: "order"}}},
		{Name: "stock", URL: serve(t, stock), Secrets: []Secret{secret}, Subjects: []convergo.Subject{{Topic: "stock"}}},
	}
	return open(t, cfg)
}

func inStock(id string, version int64) convergo.Event {
	e := paid(id, version)
	e.Topic = "stock"
	return e
}

func TestAnEndpointThatIsDownIsItsOwnOutage(t *testing.T) {
	fine := func(http.ResponseWriter, *http.Request) {}
	for name, c := range map[string]struct {
		shop http.HandlerFunc
		want convergo.Verdict
	}{
		"hangs up": {func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, convergo.Wait},
		"429":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, convergo.Wait},
		"502":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, convergo.Wait},
		"503":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, convergo.Wait},
		"504":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(504) }, convergo.Wait},
		"500":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, convergo.Again},
		"404":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, convergo.Again},
		"410":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) }, convergo.Park},
	} {
		t.Run(name, func(t *testing.T) {
			var log testlog.Lines
			var told []string
			b := two(t, c.shop, fine, Config{
				Log: slog.New(slog.NewTextHandler(&log, nil)), OnDown: func(endpoint string, _ error) { told = append(told, endpoint) },
			})
			for range 3 {
				errs := b.Publish(t.Context(), []convergo.Event{paid("A", 1), inStock("B", 1)})
				if errs[0] == nil || errs[1] != nil || convergo.VerdictOf(errs[0]) != c.want {
					t.Errorf("%v with verdict %s, want %s, and nil", errs, convergo.VerdictOf(errs[0]), c.want)
				}
			}
			var when interface{ RetryAt() time.Time }
			if down := c.want == convergo.Wait; down != slices.Equal(told, []string{"shop"}) || down != (strings.Count(log.String(), "is down") == 1) {
				t.Errorf("told %v, log %s", told, log.String())
			} else if down && (!errors.As(b.Publish(t.Context(), []convergo.Event{paid("A", 1)})[0], &when) || when.RetryAt().IsZero()) {
				t.Error("nobody says when to try again")
			}
		})
	}
}

// An endpoint that never answers must not look like a silent broker: a call ends before its time does, and the request goes on.
func TestAnEndpointThatHangsIsToldFromACallThatIsOver(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	hangs, fine := func(http.ResponseWriter, *http.Request) { <-release }, func(http.ResponseWriter, *http.Request) {}
	for name, limit := range map[string]time.Duration{"a long call": 10 * time.Second, "a short one": 500 * time.Millisecond} {
		b := two(t, hangs, fine, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		errs := b.Publish(ctx, []convergo.Event{paid("A", 1), inStock("B", 1)})
		if convergo.VerdictOf(errs[0]) != convergo.Wait || errs[1] != nil || ctx.Err() != nil {
			t.Errorf("%s: errors %v, and the call's context %v", name, errs, ctx.Err())
		}
		cancel()
	}
	b := two(t, hangs, fine, Config{Timeout: 100 * time.Millisecond})
	errs := b.Publish(t.Context(), []convergo.Event{paid("A", 1), inStock("B", 1)})
	if convergo.VerdictOf(errs[0]) != convergo.Wait || !strings.Contains(errs[0].Error(), "no answer in time") || errs[1] != nil {
		t.Errorf("after the time of a request: errors %v", errs)
	}
	b = two(t, hangs, fine, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Publish(ctx, []convergo.Event{paid("A", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("a call that is over: %v", err)
	}
}

// With a single endpoint nobody else waits: a slow one has the time of the call.
func TestASingleEndpointHasTheTimeOfTheCall(t *testing.T) {
	secret, _ := key(t, "a")
	one := Endpoint{Name: "shop", URL: "https://shop.example/hook", Secrets: []Secret{secret}}
	other, off := one, one
	other.Name, off.Name, off.Disabled = "stock", "old", true
	call, end := context.WithTimeout(t.Context(), 10*time.Second)
	defer end()
	for _, c := range []struct {
		endpoints []Endpoint
		ctx       context.Context
		want      time.Duration
	}{
		{[]Endpoint{one, off}, call, 8 * time.Second},
		{[]Endpoint{one, off}, t.Context(), 21 * time.Second},
		{[]Endpoint{one, other}, call, time.Second},
		{[]Endpoint{one, other}, t.Context(), time.Second},
	} {
		patient, cancel := open(t, Config{Endpoints: c.endpoints}).patience(c.ctx)
		until, _ := patient.Deadline()
		if d := time.Until(until); d > c.want || d < c.want-time.Second {
			t.Errorf("%d endpoints are waited for %v, want %v", len(c.endpoints), d, c.want)
		}
		cancel()
	}
}

// The whole way: a store, a relay, and two subscribers of which one is down for longer than sixteen attempts would last.
func TestARelayCarriesTheOthersEventsWhileOneSubscriberIsDown(t *testing.T) {
	var up atomic.Bool
	var mu sync.Mutex
	got := map[string][]string{}
	take := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if name == "shop" && !up.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[name] = append(got[name], r.Header.Get(HeaderID))
		}
	}
	has := func(name string, n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(got[name]) >= n }
	}
	b := two(t, take("shop"), take("stock"), Config{Closed: convergo.Backoff{Base: time.Millisecond, Cap: time.Millisecond}})
	store := memory.New()
	box := outbox.New(store, outbox.Config{})
	add := func(events ...convergo.Event) {
		for i := range events {
			events[i].CreatedAt = time.Time{} // now: how long to leave it alone depends on its age
		}
		err := store.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return box.Add(ctx, tx, events...) })
		must(t, err)
	}
	add(paid("A", 1), paid("A", 2), inStock("B", 1), paid("A", 3))
	ctx, stop := context.WithCancel(t.Context())
	r := relay.New(store, b, relay.Config{MaxAttempts: 2, Poll: 10 * time.Millisecond})
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	defer func() { stop(); running.Wait() }()
	wait := func(what string, holds func() bool) {
		t.Helper()
		deadline, poll := time.NewTimer(20*time.Second), time.NewTicker(5*time.Millisecond)
		defer deadline.Stop()
		defer poll.Stop()
		for !holds() {
			select {
			case <-poll.C:
			case <-deadline.C:
				t.Fatalf("never: %s; %+v, %v", what, r.Stats(), got)
			}
		}
	}
	wait("more tries than attempts", func() bool { return r.Stats().Unavailable >= 3 })
	add(inStock("C", 1))
	wait("the other's events", has("stock", 2))
	if s := r.Stats(); s.Dead != 0 || s.InOutage {
		t.Errorf("%+v", s)
	}
	up.Store(true)
	wait("all events", has("shop", 3))
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"OrderPaid:A:v1", "OrderPaid:A:v2", "OrderPaid:A:v3"}; !slices.Equal(got["shop"], want) {
		t.Errorf("arrived %v, want %v", got["shop"], want)
	}
}
