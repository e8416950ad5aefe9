package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var clientSecret = []byte("a secret of 26 characters!")

func clientsBehind(t *testing.T, trusted ...string) clients {
	t.Helper()
	networks, err := parseNetworks(trusted)
	if err != nil {
		t.Fatal(err)
	}
	return clients{trusted: networks, secret: clientSecret, now: time.Now}
}

func from(remote string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func TestTheClientsAddressIsWhatTrustedProxiesSay(t *testing.T) {
	c := clientsBehind(t, "10.0.0.0/8", "2001:db8:1::/48", "192.0.2.7")
	const list, standard = "X-Forwarded-For", "Forwarded"
	for name, want := range map[string]struct {
		client  string
		request *http.Request
	}{
		"nobody says anything":               {"203.0.113.1", from("203.0.113.1:9")},
		"a stranger says he is another":      {"203.0.113.1", from("203.0.113.1:9", list, "198.51.100.1", standard, "for=198.51.100.1")},
		"a proxy without a header":           {"10.1.1.1", from("10.1.1.1:9")},
		"a proxy tells":                      {"198.51.100.1", from("10.1.1.1:9", list, "198.51.100.1")},
		"a proxy in IPv6 notation":           {"198.51.100.1", from("[::ffff:10.1.1.1]:9", list, "::ffff:198.51.100.1")},
		"a proxy that is a single address":   {"198.51.100.1", from("192.0.2.7:9", list, "198.51.100.1")},
		"its neighbour is none":              {"192.0.2.8", from("192.0.2.8:9", list, "198.51.100.1")},
		"two proxies":                        {"198.51.100.1", from("10.1.1.1:9", list, "198.51.100.1, 10.2.2.2")},
		"two headers are one list":           {"198.51.100.1", from("10.1.1.1:9", list, "9.9.9.9, 198.51.100.1", list, "10.2.2.2")},
		"what is left of the client is his":  {"198.51.100.1", from("10.1.1.1:9", list, "10.9.9.9, 127.0.0.1, 8.8.8.8, 198.51.100.1, 10.2.2.2")},
		"all are proxies":                    {"10.3.3.3", from("10.1.1.1:9", list, "10.3.3.3,10.2.2.2")},
		"a port":                             {"198.51.100.1", from("10.1.1.1:9", list, "198.51.100.1:4711")},
		"IPv6 with a port":                   {"2001:db8:2::1", from("10.1.1.1:9", list, "[2001:db8:2::1]:4711")},
		"IPv6 in brackets":                   {"2001:db8:2::1", from("[2001:db8:1::1]:9", list, "[2001:db8:2::1]")},
		"an interface is no part of it":      {"fe80::1", from("10.1.1.1:9", list, "fe80::1%eth0")},
		"not an address":                     {"10.1.1.1", from("10.1.1.1:9", list, "198.51.100.1, unknown")},
		"not an address behind a proxy":      {"10.2.2.2", from("10.1.1.1:9", list, "198.51.100.1, me, 10.2.2.2")},
		"an empty header":                    {"10.1.1.1", from("10.1.1.1:9", list, "")},
		"an empty place":                     {"10.1.1.1", from("10.1.1.1:9", list, "198.51.100.1,")},
		"IPv4 in brackets":                   {"10.1.1.1", from("10.1.1.1:9", list, "[198.51.100.1]")},
		"standard":                           {"198.51.100.1", from("10.1.1.1:9", standard, "for=198.51.100.1;proto=https;by=10.1.1.1")},
		"standard, quoted, any case":         {"2001:db8:2::1", from("10.1.1.1:9", standard, `proto=http; FOR="[2001:db8:2::1]:4711"`)},
		"standard, two proxies":              {"198.51.100.1", from("10.1.1.1:9", standard, `for=8.8.8.8, for=198.51.100.1`, standard, `for=10.2.2.2`)},
		"standard, hidden":                   {"10.2.2.2", from("10.1.1.1:9", standard, `for=198.51.100.1, for=_gazonk, for=10.2.2.2`)},
		"standard, nobody named":             {"10.1.1.1", from("10.1.1.1:9", standard, `for=198.51.100.1, proto=http`)},
		"standard, two in one":               {"10.1.1.1", from("10.1.1.1:9", standard, `for=198.51.100.1;for=198.51.100.2`)},
		"a quotation mark swallows a proxy":  {"10.1.1.1", from("10.1.1.1:9", standard, `for="8.8.8.8, for=198.51.100.1`)},
		"a quotation that hides a comma":     {"198.51.100.1", from("10.1.1.1:9", standard, `for="8.8.8.8, for=9.9.9.9", for=198.51.100.1`)},
		"a backslash before the mark":        {"10.1.1.1", from("10.1.1.1:9", standard, `for="8.8.8.8\", for=198.51.100.1`)},
		"both, and they agree":               {"198.51.100.1", from("10.1.1.1:9", list, "198.51.100.1", standard, "for=198.51.100.1")},
		"both, and one is the client's own":  {"10.1.1.1", from("10.1.1.1:9", list, "198.51.100.1", standard, "for=8.8.8.8")},
		"a connection that has no address":   {"invalid IP", from("@", list, "198.51.100.1")},
		"passed on by nobody of ours":        {"203.0.113.1", from("203.0.113.1:9", passedOn, "1")},
		"passed on, with a claim of his own": {"203.0.113.1", from("203.0.113.1:9", passedOn, "cp1.eyJjIjoiOC44LjguOCIsInQiOjB9.AAAA")},
	} {
		if got := c.of(want.request).String(); got != want.client {
			t.Errorf("%s: %s, want %s", name, got, want.client)
		}
	}
}

func TestAPeerIsBelievedByItsSignatureAndNoLongerThanMinutes(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	ours := clients{secret: clientSecret, now: func() time.Time { return now }}
	value := ours.vouchOf(ours.of(from("[2001:db8::5]:9")))
	at := func(d time.Duration, secret string, headers ...string) string {
		c := clients{secret: []byte(secret), now: func() time.Time { return now.Add(d) }}
		return c.of(from("10.0.0.2:9", headers...)).String()
	}
	for name, c := range map[string]struct{ got, want string }{
		"a peer":               {at(time.Second, string(clientSecret), passedOn, value), "2001:db8::5"},
		"its clock is ahead":   {at(-time.Minute, string(clientSecret), passedOn, value), "2001:db8::5"},
		"long ago":             {at(time.Hour, string(clientSecret), passedOn, value), "10.0.0.2"},
		"long before":          {at(-time.Hour, string(clientSecret), passedOn, value), "10.0.0.2"},
		"another platform":     {at(0, "another secret, as long as that", passedOn, value), "10.0.0.2"},
		"changed":              {at(0, string(clientSecret), passedOn, strings.Replace(value, ".", ".A", 1)), "10.0.0.2"},
		"two of them":          {at(0, string(clientSecret), passedOn, value, passedOn, value), "10.0.0.2"},
		"and a list beside it": {at(0, string(clientSecret), passedOn, value, "X-Forwarded-For", "8.8.8.8"), "2001:db8::5"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
	if none := (clients{now: time.Now}); none.vouchOf(none.of(from("10.0.0.1:9"))) != "1" {
		t.Error("a process without secrets vouches")
	}
	if v := ours.vouchOf(ours.of(from("@"))); v != "1" {
		t.Errorf("a client without an address is vouched for: %s", v)
	}
}

func TestNetworksOfProxiesAreReadOrRefused(t *testing.T) {
	for _, bad := range []string{"10.0.0.0/33", "proxy", "10.0.0", "", "::ffff:10.0.0.0/104", "10.0.0.1:80"} {
		if _, err := parseNetworks([]string{"10.0.0.0/8", bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	refused(t, 2, []string{"--trusted-proxies", `"proxy"`}, "serve", "--trusted-proxies", "10.0.0.0/8,proxy", "--data", t.TempDir())
	t.Setenv("CONVERGO_TRUSTED_PROXIES", "10.0.0.0/8,::1")
	if got := effective(t)["trusted-proxies"]; len(got.([]any)) != 2 || got.([]any)[1] != "::1" {
		t.Errorf("%v", got)
	}
	got := effective(t, "--config", configOf(t, "lease: 15s\n"), "--trusted-proxies", "192.0.2.1")["trusted-proxies"]
	if len(got.([]any)) != 1 || got.([]any)[0] != "192.0.2.1" {
		t.Errorf("%v", got)
	}
}

// Behind an entry all clients come from one address: each has an allowance of his own all the same, also where a peer serves him.
func TestTheLimitCountsTheClientAndNotTheProxy(t *testing.T) {
	c := clientsBehind(t, "10.0.0.0/8")
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	limited := newLimiter(0.0001, 1).byAddress(c, ok) // ten requests each, and no more
	ask := func(r *http.Request) int {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, r)
		return w.Code
	}
	for range 10 {
		if code := ask(from("10.0.0.1:9", "X-Forwarded-For", "198.51.100.1")); code != http.StatusNoContent {
			t.Fatalf("%d", code)
		}
	}
	peers := clients{secret: clientSecret, now: time.Now}
	for name, want := range map[string]struct {
		code    int
		request *http.Request
	}{
		"he again":                 {http.StatusTooManyRequests, from("10.0.0.1:9", "X-Forwarded-For", "198.51.100.1")},
		"he by another proxy":      {http.StatusTooManyRequests, from("10.0.0.2:9", "X-Forwarded-For", "198.51.100.1")},
		"he by inventing a client": {http.StatusTooManyRequests, from("10.0.0.1:9", "X-Forwarded-For", "8.8.8.8, 198.51.100.1")},
		"he past the proxy":        {http.StatusTooManyRequests, from("198.51.100.1:9", "X-Forwarded-For", "8.8.8.8")},
		"he by a peer":             {http.StatusTooManyRequests, from("172.16.0.1:9", passedOn, peers.vouchOf(c.of(from("198.51.100.1:9"))))},
		"another client":           {http.StatusNoContent, from("10.0.0.1:9", "X-Forwarded-For", "198.51.100.2")},
		"a peer's other client":    {http.StatusNoContent, from("172.16.0.1:9", passedOn, peers.vouchOf(c.of(from("198.51.100.2:9"))))},
		"the proxy itself":         {http.StatusNoContent, from("10.0.0.1:9")},
	} {
		if code := ask(want.request); code != want.code {
			t.Errorf("%s: %d, want %d", name, code, want.code)
		}
	}
	for i := range 20 { // one network of IPv6
		code := ask(from("[2001:db8::" + string(rune('a'+i%6)) + "]:9"))
		if want := map[bool]int{true: http.StatusNoContent, false: http.StatusTooManyRequests}[i < 10]; code != want {
			t.Errorf("request %d of a network: %d", i, code)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/flowz"} {
		probe := from("198.51.100.1:9")
		probe.URL.Path = path
		if code := ask(probe); code != http.StatusNoContent {
			t.Errorf("%s is not told to who was hasty: %d", path, code)
		}
	}
}
