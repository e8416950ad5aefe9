package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// running is a platform inside this process, on a free port.
type running struct {
	*ranProgram
	t       *testing.T
	url     string
	dir     string
	secrets secrets
	stop    context.CancelFunc
	ended   chan struct{}
	client  *http.Client
}

// quickly are short times, for orders that are done in a moment.
func quickly() []string {
	return []string{"--transit", "300ms", "--track-every", "100ms", "--unknown-grace", "100ms", "--retry-base", "20ms", "--retry-cap", "200ms", "--rate", "0"}
}

// startPlatform starts the program with "serve" and waits until it is ready. It is stopped at the end of the test, cleanly.
func startPlatform(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &running{ranProgram: &ranProgram{code: -1}, t: t, dir: dir, stop: cancel, ended: make(chan struct{}), client: &http.Client{Timeout: 30 * time.Second}}
	all := append([]string{"serve", "--data", dir, "--addr", "127.0.0.1:0", "--log", "debug"}, args...)
	go func() {
		defer close(p.ended)
		p.code = run(ctx, all, streams{out: &p.out, err: &p.err})
	}()
	greeted := regexp.MustCompile(`(?m) on (http://\S+)$`)
	eventually(t, 30*time.Second, "the platform greets", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("the platform ended with %d: %s", p.code, p.err.String())
		default:
		}
		if m := greeted.FindStringSubmatch(p.out.String()); m != nil {
			p.url = m[1]
		}
		return p.url != ""
	})
	t.Cleanup(func() { p.end(0) })
	text, err := os.ReadFile(filepath.Join(dir, secretsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &p.secrets); err != nil {
		t.Fatal(err)
	}
	return p
}

// end stops the platform as SIGTERM does, and fails the test unless it ends with this exit code.
func (p *running) end(code int) {
	p.t.Helper()
	p.client.CloseIdleConnections()
	p.stop()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatal("the platform does not stop")
	}
	if p.code != code {
		p.t.Errorf("the platform ended with %d, want %d: %s", p.code, code, p.err.String())
	}
	keepsSecrets(p.t, p.secrets, p.out.String()+p.err.String())
}

// keepsSecrets fails when a text, such as a log, tells a secret or a token.
func keepsSecrets(t *testing.T, s secrets, text string) {
	t.Helper()
	for what, secret := range map[string]string{
		"the operator key": s.OperatorKey, "the session secret": s.SessionSecret, "the channel secret": strings.TrimPrefix(s.ChannelSecret, "whsec_"),
		"a session": "cs1.", "a client token": "ct1.", "a bearer": "Bearer ",
	} {
		if i := strings.Index(text, secret); i >= 0 && secret != "" {
			t.Errorf("the output tells %s: …%s", what, text[max(0, i-200):i])
		}
	}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem is the answer as application/problem+json; it fails the test when it is none of this status.
func (a answer) problem(t *testing.T, status int) (problem struct {
	Status                       int
	Title, Detail, Field, Remedy string
}) {
	t.Helper()
	if a.status != status || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("answer %d %s, want a problem of status %d: %s", a.status, a.header.Get("Content-Type"), status, a.body)
	}
	if err := json.Unmarshal(a.body, &problem); err != nil || problem.Status != status || problem.Detail == "" {
		t.Errorf("%v: no problem with status and detail: %s", err, a.body)
	}
	return problem
}

// into reads the answer, which must have this status.
func (a answer) into(t *testing.T, status int, v any) {
	t.Helper()
	if a.status != status {
		t.Fatalf("answer %d, want %d: %s", a.status, status, a.body)
	}
	if v != nil {
		if err := json.Unmarshal(a.body, v); err != nil {
			t.Fatalf("%v: %s", err, a.body)
		}
	}
}

// send makes a request as it is told. headers come in pairs of name and value.
func (p *running) send(method, path string, body io.Reader, headers ...string) answer {
	p.t.Helper()
	a, err := p.try(method, path, body, headers...)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// try is send to a platform that may be gone.
func (p *running) try(method, path string, body io.Reader, headers ...string) (answer, error) {
	r, err := http.NewRequest(method, p.url+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	res, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, text}, errors.Join(err, res.Body.Close())
}

// call makes a request with a bearer token, a JSON body and, when it is a POST with a key, an Idempotency-Key.
func (p *running) call(method, path, bearer, key string, body any) answer {
	p.t.Helper()
	var reader io.Reader
	headers := []string{"Authorization", "Bearer " + bearer}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			p.t.Fatal(err)
		}
		reader = bytes.NewReader(text)
		headers = append(headers, "Content-Type", "application/json")
	}
	if key != "" {
		headers = append(headers, "Idempotency-Key", key)
	}
	return p.send(method, path, reader, headers...)
}

// operator makes a request as the operator, which must succeed.
func (p *running) operator(method, path, key string, body, into any) {
	p.t.Helper()
	a := p.call(method, path, p.secrets.OperatorKey, key, body)
	if a.status >= 300 {
		p.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	a.into(p.t, a.status, into)
}

// session is a user's bearer token.
func (p *running) session(user string) string {
	p.t.Helper()
	var s struct{ Token string }
	p.operator(http.MethodPost, "/users/"+user+"/sessions", "session:"+user, struct{}{}, &s)
	return s.Token
}

// stock has a product to sell.
func (p *running) stock(sku string, price, pieces int64) {
	p.t.Helper()
	p.operator(http.MethodPut, "/products/"+sku, "", map[string]any{"currency": "GBP", "unit_price": price}, nil)
	if pieces > 0 {
		p.operator(http.MethodPost, "/stock/receipts", "stock:"+sku, map[string]any{"sku": sku, "quantity": pieces, "key": "stock:" + sku}, nil)
	}
}

// orderView is what tests read of an order.
type orderView struct {
	OrderNo   string `json:"order_no"`
	Status    string `json:"status"`
	Reason    string `json:"reason"`
	IsPayable bool   `json:"is_payable"`
	Payable   int64  `json:"payable"`
}

// orderBody is a valid POST /orders with a new client token.
func (p *running) orderBody(bearer, ref, sku string, quantity int64) map[string]any {
	p.t.Helper()
	var token struct{ Token string }
	p.call(http.MethodPost, "/tokens", bearer, "token:"+ref, map[string]string{"scene": "order"}).into(p.t, http.StatusCreated, &token)
	return map[string]any{
		"client_token": token.Token, "currency": "GBP", "reference": ref,
		"lines": []map[string]any{{"sku": sku, "quantity": quantity}},
	}
}

// place places an order of one line.
func (p *running) place(bearer, ref, sku string, quantity int64) orderView {
	p.t.Helper()
	var o orderView
	p.call(http.MethodPost, "/orders", bearer, "order:"+ref, p.orderBody(bearer, ref, sku, quantity)).into(p.t, http.StatusCreated, &o)
	return o
}

// wait waits until the order has got there.
func (p *running) wait(bearer, no, where string) orderView {
	p.t.Helper()
	var o orderView
	p.call(http.MethodGet, "/orders/"+no+"?wait="+where+"&timeout=20s", bearer, "", nil).into(p.t, http.StatusOK, &o)
	return o
}

// pay opens an intent and pays it at the simulated channel.
func (p *running) pay(bearer, no string) {
	p.t.Helper()
	var i struct {
		Link string `json:"cashier_url"`
	}
	tried := 0
	eventually(p.t, 10*time.Second, "the payment service knows the order", func() bool {
		tried++ // with a new key each time: that it is not known is an answer, too
		a := p.call(http.MethodPost, "/payments/intents", bearer, fmt.Sprintf("intent:%s:%d", no, tried), map[string]string{"order_no": no, "channel": channelName})
		if a.status == http.StatusNotFound {
			return false
		}
		a.into(p.t, a.status, &i)
		return a.status < 300
	})
	path, ok := strings.CutPrefix(i.Link, p.url)
	if !ok {
		p.t.Fatalf("the cashier is at %s, not at %s", i.Link, p.url)
	}
	a := p.send(http.MethodPost, path, strings.NewReader("{}"), "Content-Type", "application/json")
	if a.status >= 300 {
		p.t.Fatalf("pay: %d %s", a.status, a.body)
	}
}

// buy takes an order through to its end.
func (p *running) buy(user, ref, sku string, quantity int64) orderView {
	p.t.Helper()
	bearer := p.session(user)
	o := p.place(bearer, ref, sku, quantity)
	if o = p.wait(bearer, o.OrderNo, "payable"); !o.IsPayable {
		p.t.Fatalf("order %s: %s %s", o.OrderNo, o.Status, o.Reason)
	}
	p.pay(bearer, o.OrderNo)
	if o = p.wait(bearer, o.OrderNo, "completed"); o.Status != "COMPLETED" {
		p.t.Fatalf("order %s: %s %s", o.OrderNo, o.Status, o.Reason)
	}
	return o
}

// settled waits until no service has anything left to do.
func (p *running) settled(services ...string) {
	p.t.Helper()
	calm := 0
	eventually(p.t, 30*time.Second, "nothing is left to do", func() bool {
		for _, service := range services {
			var b struct{ Unfinished int64 }
			p.operator(http.MethodGet, "/ops/"+service+"/backlog", "", nil, &b)
			if b.Unfinished > 0 {
				calm = 0
				return false
			}
		}
		calm++
		return calm == 3
	})
}

// converged fails unless every equation holds, a moment after now at the latest.
func (p *running) converged() {
	p.t.Helper()
	r := runProgram(p.t.Context(), "check", "--data", p.dir, "--settle", "10s")
	if r.code != 0 {
		p.t.Errorf("check: %d %s\n%s", r.code, r.err.String(), r.out.String())
	}
}

// describe is the request in a failure's text.
func describe(method, path string) string { return fmt.Sprintf("%s %s", method, path) }
