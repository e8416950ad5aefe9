package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/trade"
)

// document is /openapi.json.
type document struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Ref        string `json:"$ref"`
	Type       any    // a name, or a list of them with "null"
	Format     string
	Enum       []any
	Minimum    float64
	MinLength  int
	Required   []string
	Properties map[string]schema
	Items      *schema
}

// example is a value that the schema allows, with what is required only.
func (d document) example(s schema) any {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return d.example(d.Components.Schemas[name])
	}
	kind, ok := s.Type.(string)
	if list, several := s.Type.([]any); !ok && several {
		kind, _ = list[0].(string)
	}
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case kind == "string" && s.Format == "date-time":
		return "2026-01-02T03:04:05Z"
	case kind == "string":
		return strings.Repeat("X", max(s.MinLength, 3))
	case kind == "integer" || kind == "number":
		return max(s.Minimum, 1)
	case kind == "boolean":
		return true
	case kind == "array":
		return []any{d.example(*s.Items)}
	}
	object := map[string]any{}
	for _, name := range s.Required {
		object[name] = d.example(s.Properties[name])
	}
	return object
}

type operation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Security    *[]map[string][]string
	RequestBody struct {
		Content map[string]struct{ Schema schema }
	}
	Parameters []struct {
		Name, In string
		Required bool
	}
}

func (p *running) document() document {
	p.t.Helper()
	var d document
	p.send(http.MethodGet, "/openapi.json", nil).into(p.t, http.StatusOK, &d)
	return d
}

// each runs f for every operation, in the order of the paths, with something valid in place of the parameters.
func (d document) each(f func(method, path string, op operation)) {
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			filled := regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllString(strings.ReplaceAll(path, "{channel}", channelName), "x1")
			f(strings.ToUpper(method), filled, d.Paths[path][method])
		}
	}
}

func (o operation) signed() bool { return o.Security != nil && len(*o.Security) == 0 }

func TestEveryOperationIsDocumented(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	d := p.document()
	if !strings.HasPrefix(d.OpenAPI, "3.") {
		t.Errorf("openapi is %q", d.OpenAPI)
	}
	ids := map[string]bool{}
	d.each(func(method, path string, op operation) {
		if op.Summary == "" || op.OperationID == "" {
			t.Errorf("%s has no summary or no id", describe(method, path))
		}
		if ids[op.OperationID] {
			t.Errorf("the id %s stands there twice", op.OperationID)
		}
		ids[op.OperationID] = true
		documented := false
		for _, parameter := range op.Parameters {
			documented = documented || parameter.In == "header" && parameter.Name == "Idempotency-Key" && parameter.Required
		}
		if want := method == http.MethodPost && !op.signed(); documented != want {
			t.Errorf("%s: the Idempotency-Key is documented: %t, want %t", describe(method, path), documented, want)
		}
	})
	for _, id := range []string{"place-order", "create-payment-intent", "payment-notice", "whole-story", "ask-refund", "backlog-ledger", "replay-order"} {
		if !ids[id] {
			t.Errorf("there is no operation %s", id)
		}
	}
}

func TestTheDocumentationNeedsNoScriptAndNoOtherHost(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	a := p.send(http.MethodGet, "/docs", nil)
	page := string(a.body)
	if a.status != http.StatusOK || !strings.Contains(page, "/orders/{no}/refunds") || !strings.Contains(page, "Idempotency-Key") {
		t.Errorf("status %d, %d bytes", a.status, len(page))
	}
	for _, foreign := range []string{"<script", "javascript:", "http://", "https://", "src=", "@import", "<link"} {
		if strings.Contains(strings.ToLower(page), foreign) {
			t.Errorf("the page has %q", foreign)
		}
	}
	if policy := a.header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("policy %q", policy)
	}
	p.document().each(func(method, _ string, op operation) {
		if !strings.Contains(page, `id="`+op.OperationID+`"`) {
			t.Errorf("%s %s is not on the page", method, op.OperationID)
		}
	})
}

func TestNobodyGetsAnythingButThePublicPages(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0")
	user := p.session("u-1")
	expired, err := trade.MintSession([]byte(p.secrets.SessionSecret), "u-1", time.Now().Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := trade.MintSession([]byte("another shop's secret"), "u-1", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string][]string{
		"nobody": nil, "basic": {"Authorization", "Basic dTpw"}, "empty": {"Authorization", "Bearer "},
		"wrong key": {"Authorization", "Bearer op_wrong"}, "expired": {"Authorization", "Bearer " + expired},
		"foreign": {"Authorization", "Bearer " + foreign}, "forged": {"Authorization", "Bearer " + user + "x"},
		"twice": {"Authorization", "Bearer " + user, "Authorization", "Bearer " + user},
	}
	paths := 0
	p.document().each(func(method, path string, op operation) {
		paths++
		for who, headers := range bad {
			a := p.send(method, path, strings.NewReader("{}"), append(headers, "Content-Type", "application/json", "Idempotency-Key", "k")...)
			if problem := a.problem(t, http.StatusUnauthorized); !op.signed() && (problem.Field != "header.Authorization" || problem.Remedy == "") {
				t.Errorf("%s by %s: field %q, remedy %q", describe(method, path), who, problem.Field, problem.Remedy)
			}
		}
	})
	if paths < 80 {
		t.Errorf("only %d operations", paths)
	}
	for _, path := range []string{"/nothing", "/orders/", "/ops/", "/ops/order", "/simulate/stats", "/order/", "/docs/x", "/openapi.json/x", "//orders"} {
		p.send(http.MethodGet, path, nil).problem(t, http.StatusUnauthorized)
	}
	for _, path := range []string{"/", "/docs", "/openapi.json", "/healthz", "/readyz"} {
		if a := p.send(http.MethodGet, path, nil); a.status != http.StatusOK {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

// The operations of the operator are all but those that a user has.
func TestAUserIsNoOperator(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0")
	user := p.session("u-1")
	users := []string{
		"issue-token", "place-order", "get-order", "list-orders", "cancel-order", "ask-refund", "list-refunds", "whole-story",
		"create-payment-intent", "get-payment-intent", "get-payment", "get-product", "list-notifications", "get-shipment", "get-points",
		"get-coupon", "get-stock", "payment-notice",
	}
	d := p.document()
	tried := 0
	d.each(func(method, path string, op operation) {
		if slices.Contains(users, op.OperationID) {
			return
		}
		headers := []string{"Authorization", "Bearer " + user, "Idempotency-Key", "k-" + op.OperationID}
		var body io.Reader
		if content, ok := op.RequestBody.Content["application/json"]; ok {
			text, err := json.Marshal(d.example(content.Schema))
			if err != nil {
				t.Fatal(err)
			}
			body, headers = bytes.NewReader(text), append(headers, "Content-Type", "application/json")
		}
		a := p.send(method, path, body, headers...)
		if a.status != http.StatusForbidden {
			t.Errorf("%s (%s): %d %s", describe(method, path), op.OperationID, a.status, a.body)
			return
		}
		a.problem(t, http.StatusForbidden)
		tried++
	})
	if tried < 60 {
		t.Errorf("only %d operations are the operator's", tried)
	}
}

func TestWhatIsNotThereIsAProblem(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	key := p.secrets.OperatorKey
	for _, path := range []string{"/nothing", "/orders/../x", "/orders/a/b/c", "/ops/nobody/backlog", "/%2e%2e/secrets.json"} {
		p.call(http.MethodGet, path, key, "", nil).problem(t, http.StatusNotFound)
	}
	p.call(http.MethodDelete, "/orders", key, "", nil).problem(t, http.StatusMethodNotAllowed)
}

func TestTooManyRequestsAreToldWhenToComeAgain(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0.5", "--burst", "4")
	key := p.secrets.OperatorKey
	refused := 0
	for range 8 {
		a := p.call(http.MethodGet, "/ops/order/backlog", key, "", nil)
		if a.status == http.StatusOK {
			continue
		}
		refused++
		if a.problem(t, http.StatusTooManyRequests); a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if refused < 3 {
		t.Errorf("%d of 8 were refused with 4 at once and one in two seconds", refused)
	}
	if a := p.send(http.MethodGet, "/healthz", nil); a.status != http.StatusOK {
		t.Errorf("one principal's haste costs the others: %d", a.status)
	}
	// Whoever is nobody is limited by his address.
	refused = 0
	for range 60 {
		if p.send(http.MethodGet, "/ops/order/backlog", nil).status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("an address may guess keys as fast as it likes")
	}
}

func TestBadBodiesWriteNothing(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	bearer, key := p.session("u-1"), p.secrets.OperatorKey
	p.stock("CUP", 500, 10)
	auth := func(bearer, key string, more ...string) []string {
		return append([]string{"Authorization", "Bearer " + bearer, "Content-Type", "application/json", "Idempotency-Key", key}, more...)
	}
	large := append([]byte(`{"scene":"`), bytes.Repeat([]byte("a"), trade.MaxBody)...)
	p.send(http.MethodPost, "/tokens", bytes.NewReader(append(large, `"}`...)), auth(bearer, "k-1")...).problem(t, http.StatusRequestEntityTooLarge)
	p.send(http.MethodPost, "/payments/notify/standard", bytes.NewReader(large)).problem(t, http.StatusRequestEntityTooLarge)
	p.send(http.MethodPut, "/products/BIG", bytes.NewReader(large), auth(key, "k-2")...).problem(t, http.StatusRequestEntityTooLarge)
	n := 0
	order := func(change func(map[string]any)) string {
		n++
		body := p.orderBody(bearer, fmt.Sprintf("ref-%d", n), "CUP", 1)
		change(body)
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	line := func(sku any, quantity any) func(map[string]any) {
		return func(b map[string]any) { b["lines"] = []map[string]any{{"sku": sku, "quantity": quantity}} }
	}
	for name, c := range map[string]struct {
		body  string
		field string
	}{
		"not JSON":       {"{", "body"},
		"not UTF-8":      {"{\"client_token\":\"\xff\"}", "body"},
		"two values":     {order(func(map[string]any) {}) + "{}", "body"},
		"unknown field":  {order(func(b map[string]any) { b["price"] = 1 }), "body.price"},
		"no quantity":    {order(line("CUP", 0)), "body.lines[0].quantity"},
		"negative":       {order(line("CUP", -1)), "body.lines[0].quantity"},
		"overflow":       {order(line("CUP", json.Number("9223372036854775808"))), "body.lines"},
		"a fraction":     {order(line("CUP", 1.5)), "body.lines[0].quantity"},
		"unknown SKU":    {order(line("NOTHING", 1)), "body.lines[0].sku"},
		"no lines":       {order(func(b map[string]any) { b["lines"] = []any{} }), "body.lines"},
		"forged token":   {order(func(b map[string]any) { b["client_token"] = "ct1.e30.AAAA" }), "body.client_token"},
		"other currency": {order(func(b map[string]any) { b["currency"] = "USD" }), "body"},
	} {
		a := p.send(http.MethodPost, "/orders", strings.NewReader(c.body), auth(bearer, "bad-"+strings.ReplaceAll(name, " ", "-"))...)
		if a.status < 400 || a.status >= 500 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
			continue
		}
		if problem := a.problem(t, a.status); !strings.HasPrefix(problem.Field, c.field) || problem.Remedy == "" {
			t.Errorf("%s: field %q (want %q), remedy %q: %s", name, problem.Field, c.field, problem.Remedy, a.body)
		}
	}
	var orders struct{ Orders []orderView }
	p.call(http.MethodGet, "/orders", bearer, "", nil).into(t, http.StatusOK, &orders)
	if len(orders.Orders) > 0 {
		t.Errorf("%d orders were written", len(orders.Orders))
	}
	p.settled(serviceNames()...)
	p.converged()
}

func TestASlowClientHoldsUpNobody(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir())
	bearer := p.session("u-1")
	address := strings.TrimPrefix(p.url, "http://")
	var slow []net.Conn
	for range 20 { // headers without an end, and bodies without an end
		for _, text := range []string{
			"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
			"POST /tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + bearer + "\r\nIdempotency-Key: slow\r\n" +
				"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
		} {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			slow = append(slow, conn)
		}
	}
	p.call(http.MethodPost, "/tokens", bearer, "quick", map[string]string{"scene": "order"}).into(t, http.StatusCreated, nil)
	// The server gives up on headers after a few seconds, without being asked.
	if err := slow[0].SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(slow[0]).ReadString('\n'); err != nil {
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("headers may take for ever")
		}
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
}

// TestEveryPostWantsAnIdempotencyKey: without a key 400, with another content 422, and a repeat gets the first answer, unless
// that was 404.
func TestEveryPostWantsAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0")
	p.stock("CUP", 500, 10)
	bearer, posts := p.session("u-1"), 0
	p.document().each(func(method, path string, op operation) {
		if method != http.MethodPost || op.signed() {
			return
		}
		posts++
		who := p.secrets.OperatorKey
		if op.OperationID == "issue-token" || op.OperationID == "place-order" {
			who = bearer
		}
		a := p.call(method, path, who, "", struct{}{})
		if problem := a.problem(t, http.StatusBadRequest); problem.Field != "header.Idempotency-Key" {
			t.Errorf("%s: field %q: %s", describe(method, path), problem.Field, a.body)
		}
		first := p.call(method, path, who, "key-1", map[string]any{"nonsense": 1}) // a 4xx is an answer as well
		again := p.call(method, path, who, "key-1", map[string]any{"nonsense": 1})
		if first.status == http.StatusNotFound { // keeps no key: what is not there may come
			again.problem(t, http.StatusNotFound)
			return
		}
		if again.status != first.status || !bytes.Equal(again.body, first.body) || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: first %d %s, then %d %s", describe(method, path), first.status, first.body, again.status, again.body)
		}
		other := p.call(method, path, who, "key-1", map[string]any{"nonsense": 2})
		const remedy = "a new Idempotency-Key for a new request, or send the same body"
		if problem := other.problem(t, http.StatusUnprocessableEntity); !strings.Contains(problem.Remedy, remedy) {
			t.Errorf("%s: another content: %s", describe(method, path), other.body)
		}
	})
	if posts < 30 {
		t.Errorf("only %d POSTs", posts)
	}
	body := p.orderBody(bearer, "r-1", "CUP", 1)
	first, again := p.call(http.MethodPost, "/orders", bearer, "order", body), p.call(http.MethodPost, "/orders", bearer, `"order"`, body)
	if first.status != http.StatusCreated || !bytes.Equal(first.body, again.body) ||
		first.header.Get("Idempotency-Replayed") != "" || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("first %d %s, then %d %s", first.status, first.body, again.status, again.body)
	}
	other := p.session("u-2") // one user's key is nothing to another user
	p.call(http.MethodPost, "/orders", other, "order", p.orderBody(other, "r-2", "CUP", 1)).into(t, http.StatusCreated, nil)
}

// Of many requests with one key that come at once one runs; the others are told that it is running, or get its answer.
func TestConcurrentPostsWithOneKeyRunOnce(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), "--rate", "0")
	p.stock("CUP", 500, 10)
	bearer := p.session("u-1")
	body := p.orderBody(bearer, "r-1", "CUP", 1)
	answers := make([]answer, 32)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = p.call(http.MethodPost, "/orders", bearer, "one", body) })
	}
	all.Wait()
	numbers := map[string]int{}
	for _, a := range answers {
		switch a.status {
		case http.StatusCreated:
			var o orderView
			a.into(t, http.StatusCreated, &o)
			numbers[o.OrderNo]++
		case http.StatusConflict:
			if problem := a.problem(t, http.StatusConflict); a.header.Get("Retry-After") == "" || !strings.Contains(problem.Remedy, "wait") {
				t.Errorf("a 409 without Retry-After or what to do: %s", a.body)
			}
		default:
			t.Errorf("answer %d %s", a.status, a.body)
		}
	}
	if len(numbers) != 1 {
		t.Errorf("orders and how often they were answered: %v", numbers)
	}
}

// uncountable is a database that answers, with a backlog that takes for ever to count.
type uncountable struct{ database }

func (uncountable) Backlog(ctx context.Context, _ time.Time) (ops.Backlog, error) {
	<-ctx.Done()
	return ops.Backlog{}, ctx.Err()
}

func TestReadinessDoesNotDependOnTheSizeOfABacklog(t *testing.T) {
	for name, open := range databasePatients() {
		t.Run(name, func(t *testing.T) {
			store := must[*opened](t)(openStore(t.Context(), "order", open(t).address, nil, discarded()))
			p := &platform{units: []*unit{{service: serviceNamed("order"), store: &opened{database: uncountable{store}}}}}
			ask := func() string {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				return p.unready(ctx)
			}
			if why := ask(); why != "" {
				t.Errorf("a database that answers: %s", why)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			if why := ask(); !strings.Contains(why, "order") {
				t.Errorf("one that does not: %q", why)
			}
		})
	}
}
