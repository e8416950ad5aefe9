package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

func TestAnswersAndTheirVerdicts(t *testing.T) {
	secret, _ := key(t, "a")
	for _, c := range []struct {
		code       int
		retryAfter string
		want       convergo.Verdict
	}{
		{301, "", convergo.Again}, {307, "", convergo.Again}, {400, "", convergo.Again}, {401, "", convergo.Again}, {404, "", convergo.Again},
		{408, "", convergo.Again}, {410, "", convergo.Park}, {413, "", convergo.Again}, {422, "", convergo.Again}, {425, "", convergo.Again},
		{429, "", convergo.Outage}, {429, "7", convergo.Outage}, {500, "", convergo.Again},
		{502, "", convergo.Outage}, {503, "", convergo.Outage}, {504, "", convergo.Outage}, {501, "", convergo.Again}, {503, "7", convergo.Outage},
	} {
		var elsewhere atomic.Bool
		other := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) })
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if c.retryAfter != "" {
				w.Header().Set("Retry-After", c.retryAfter)
			}
			w.Header().Set("Location", other)
			w.WriteHeader(c.code)
		})
		b := open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}})
		err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]
		if err == nil || convergo.VerdictOf(err) != c.want {
			t.Errorf("%d: error %v with verdict %s, want %s", c.code, err, convergo.VerdictOf(err), c.want)
		}
		if elsewhere.Load() {
			t.Errorf("%d: a redirect was followed", c.code)
		}
	}
}

func TestRetryAfterIsHonoredWithoutARequest(t *testing.T) {
	secret, _ := key(t, "a")
	var calls atomic.Int64
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	now := time.Unix(1_796_000_000, 0)
	b := open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}, Now: func() time.Time { return now }})
	try := func() error { return b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0] }
	_ = try()
	now = now.Add(119 * time.Second)
	var closed *Closed
	if err := try(); !errors.As(err, &closed) || closed.RetryAt().Unix() != 1_796_000_120 || calls.Load() != 1 {
		t.Errorf("before its time: %v, %d calls", err, calls.Load())
	}
	now = now.Add(2 * time.Second)
	if err := try(); err != nil || calls.Load() != 2 {
		t.Errorf("after its time: %v, %d calls", err, calls.Load())
	}
}

func TestRetryAfterHasTwoFormsAndALimit(t *testing.T) {
	now := time.Unix(1_796_000_000, 0)
	for text, want := range map[string]time.Duration{
		"": 0, "30": 30 * time.Second, "-5": 0, "99999999999": time.Hour, "soon": 0,
		now.Add(90 * time.Second).UTC().Format(http.TimeFormat): 90 * time.Second, now.Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(text, now, time.Hour); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestGoneDisablesTheEndpointAndTellsOnce(t *testing.T) {
	secret, _ := key(t, "a")
	var calls atomic.Int64
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); w.WriteHeader(http.StatusGone) })
	var told []string
	b := open(t, Config{
		Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}, OnGone: func(name string) { told = append(told, name) },
	})
	for v := range int64(3) {
		if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", v+1)})[0]; convergo.VerdictOf(err) != convergo.Park {
			t.Errorf("error %v", err)
		}
	}
	if calls.Load() != 1 || !slices.Equal(told, []string{"shop"}) || !slices.Equal(b.Gone(), []string{"shop"}) {
		t.Errorf("%d calls, told %v, gone %v", calls.Load(), told, b.Gone())
	}
}

func TestAnEndpointThatIsDownHoldsBackItsEventsOnlyAndTheOthersAreNotRepeated(t *testing.T) {
	secret, _ := key(t, "a")
	var up atomic.Bool
	got := map[string][]string{}
	var mu sync.Mutex
	receive := func(name string, ok func() bool) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			if !ok() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[name] = append(got[name], r.Header.Get(HeaderID))
		})
	}
	b := open(t, Config{Endpoints: []Endpoint{
		{Name: "one", URL: receive("one", func() bool { return true }), Secrets: []Secret{secret}},
		{Name: "two", URL: receive("two", up.Load), Secrets: []Secret{secret}, Subjects: []convergo.Subject{{Topic: "order"}}},
	}})
	stock := paid("S", 1)
	stock.Topic = "stock"
	events := []convergo.Event{paid("A", 1), stock, paid("A", 2)}
	errs := b.Publish(t.Context(), events)
	if errs[0] == nil || errs[1] != nil || errs[2] == nil || convergo.VerdictOf(errs[0]) != convergo.Again {
		t.Fatalf("errors %v", errs)
	}
	up.Store(true)
	for _, err := range b.Publish(t.Context(), []convergo.Event{events[0], events[2]}) {
		must(t, err)
	}
	if want := "map[one:[OrderPaid:A:v1 OrderPaid:S:v1 OrderPaid:A:v2] two:[OrderPaid:A:v1 OrderPaid:A:v2]]"; fmt.Sprint(got) != want {
		slices.Sort(got["one"][:2]) // the two aggregates go side by side
		if fmt.Sprint(got) != want {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	if len(b.partial.have)+len(b.partial.order) != 0 {
		t.Error("what all have is still remembered")
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	m := partial{most: 2, have: map[convergo.Digest]map[string]bool{}}
	for i := range 5 {
		m.note(paid(fmt.Sprint(i), 1), map[string]bool{"one": true})
	}
	if len(m.have) != 2 || !m.of(paid("4", 1))["one"] || m.of(paid("0", 1)) != nil {
		t.Errorf("%d remembered", len(m.have))
	}
}

// A request that is on its way for long must not be forgotten because many others come and end meanwhile: its event would be sent again.
func TestWhatEndsPushesNothingOutThatGoesOn(t *testing.T) {
	s := shelf[int]{most: 4}
	put := func(e convergo.Event) { s.put(e, "one", func(n int) int { return n + 1 }) }
	put(paid("stays", 1))
	for i := range 100 {
		put(paid(fmt.Sprint(i), 1))
		s.drop(paid(fmt.Sprint(i), 1), "one")
		put(paid("again", 1))
		s.drop(paid("again", 1), "one")
	}
	if n, held := s.of(paid("stays", 1), "one"); n != 1 || !held || len(s.order) > 2*s.most {
		t.Errorf("it is held: %v, %d; the order has %d", held, n, len(s.order))
	}
	for i := range 5 {
		put(paid(fmt.Sprint(i), 1))
	}
	if _, held := s.of(paid("stays", 1), "one"); held || len(s.held) != 4 {
		t.Errorf("the oldest is held: %v, of %d", held, len(s.held))
	}
}

func TestOnlyPublicAddressesAreCalled(t *testing.T) {
	g := newGuard([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	for text, want := range map[string]bool{
		"93.184.216.34": true, "2606:4700::1111": true, "10.9.1.1": true, "::ffff:10.9.1.1": true,
		"10.8.1.1": false, "127.0.0.1": false, "127.9.9.9": false, "0.0.0.0": false, "0.1.2.3": false,
		"169.254.169.254": false, "100.64.0.1": false,
		"100.100.100.200": false, "172.16.5.4": false, "192.168.1.1": false, "192.0.0.192": false, "198.18.0.1": false, "224.0.0.1": false,
		"255.255.255.255": false, "240.0.0.1": false, "168.63.129.16": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::7f00:1": false, "64:ff9b::7f00:1": false,
		"64:ff9b:1::a00:1": false, "2002:7f00:1::": false, "2001:0:7f00:1::": false, "fe80::1": false, "fe80::1%eth0": false, "fc00::1": false,
		"fd00:ec2::254": false, "fec0::1": false, "ff02::1": false, "2001:db8::1": false,
	} {
		if got := g.permits(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: permitted %v, want %v", text, got, want)
		}
	}
}

func TestALoopbackEndpointIsNotCalledUnlessAllowedNorIsAProxy(t *testing.T) {
	secret, _ := key(t, "a")
	var called atomic.Bool
	target := serve(t, func(http.ResponseWriter, *http.Request) { called.Store(true) })
	t.Setenv("HTTP_PROXY", target)
	t.Setenv("HTTPS_PROXY", target)
	port := target[strings.LastIndex(target, ":"):]
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0"} {
		url := "http://" + host + port
		b, err := Open(t.Context(), Config{
			PlainHTTP: true, Timeout: 5 * time.Second, Endpoints: []Endpoint{{Name: "shop", URL: url + "/token-7", Secrets: []Secret{secret}}},
		})
		must(t, err)
		got := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]
		if got == nil || called.Load() {
			t.Errorf("%s was called, error %v", url, got)
		}
		if got != nil && strings.Contains(got.Error(), "token-7") {
			t.Errorf("the error shows the URL: %v", got)
		}
	}
}

func TestCertificatesAreVerified(t *testing.T) {
	secret, _ := key(t, "a")
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	endpoints := []Endpoint{{Name: "shop", URL: server.URL, Secrets: []Secret{secret}}}
	err := open(t, Config{Endpoints: endpoints}).Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	must(t, open(t, Config{Endpoints: endpoints, RootCAs: pool}).Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0])
}

func TestAnEndpointThatDoesNotAnswerCostsItsTimeAndIsLeftAlone(t *testing.T) {
	secret, _ := key(t, "a")
	release := make(chan struct{})
	var calls atomic.Int64
	target := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1); <-release })
	defer close(release)
	b := open(t, Config{Endpoints: []Endpoint{{Name: "shop", URL: target, Secrets: []Secret{secret}}}, Timeout: 100 * time.Millisecond})
	err := b.Publish(t.Context(), []convergo.Event{paid("A", 1), paid("A", 2)})
	if convergo.VerdictOf(err[0]) != convergo.Outage || errors.Is(err[0], context.DeadlineExceeded) || calls.Load() != 1 {
		t.Errorf("errors %v, %d calls", err, calls.Load())
	}
}

func TestAConfigurationThatCannotWorkOrWouldLeakIsRefused(t *testing.T) {
	secret, text := key(t, "a")
	good := Endpoint{Name: "shop", URL: "https://shop.example/hook", Secrets: []Secret{secret}}
	for want, change := range map[string]func(*Endpoint){
		"user or password": func(e *Endpoint) { e.URL = "https://me:hunter2@shop.example/" },
		"https":            func(e *Endpoint) { e.URL = "http://shop.example/" },
		"no name":          func(e *Endpoint) { e.Name = "" }, "secret": func(e *Endpoint) { e.Secrets = nil },
		"not absolute": func(e *Endpoint) { e.URL = "/hook" },
		"scheme":       func(e *Endpoint) { e.URL = "gopher://shop.example/" }, "subject": func(e *Endpoint) { e.Subjects = []convergo.Subject{{}} },
	} {
		e := good
		change(&e)
		_, err := Open(t.Context(), Config{Endpoints: []Endpoint{e}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v", want, err)
		}
	}
	shown := fmt.Sprintf("%v %+v %#v", good, good, good)
	if strings.Contains(shown, strings.TrimPrefix(text, "whsec_")) || strings.Contains(shown, "aaaa") {
		t.Errorf("the secret shows: %s", shown)
	}
}
