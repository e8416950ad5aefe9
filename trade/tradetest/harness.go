// Package tradetest is a bench for testing one service of the platform: an empty database of SQLite, PostgreSQL, MySQL or
// MariaDB with the service's tables, a clock that stands still, deliveries with the inbox's semantics, requests through the service's real
// routes, and a look at what it put into its outbox.
package tradetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/trade"
)

// OperatorKey and Secret of the bench.
const (
	OperatorKey = "operator-key-of-the-bench"
	Secret      = "token-secret-of-the-bench"
)

// Start is the time at which every bench's clock begins.
func Start() time.Time { return time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC) }

// Clock stands still until it is advanced.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// Now is the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Bench is one service under test.
type Bench struct {
	T       testing.TB
	Clock   *Clock
	Store   Store
	Deps    trade.Deps
	Service trade.Service
	// Handler is the service's routes behind Authenticate and the idempotency middleware.
	Handler http.Handler
	build   func(trade.Deps) (trade.Service, error)
	keys    int
	mu      sync.Mutex
	public  []string
}

// Option changes a bench.
type Option func(*Bench)

// Public lets requests below these path prefixes in without a principal and without an Idempotency-Key.
func Public(prefixes ...string) Option {
	return func(b *Bench) { b.public = append(b.public, prefixes...) }
}

// New builds the service on a new SQLite database in a temporary folder. Database.Bench does so on the others too.
func New(t testing.TB, build func(trade.Deps) (trade.Service, error), opts ...Option) *Bench {
	t.Helper()
	return Database{Name: "sqlite", kind: kinds()[0]}.Bench(t, build, opts...)
}

// Bench builds the service on an empty database of this kind, with its tables.
func (db Database) Bench(t testing.TB, build func(trade.Deps) (trade.Service, error), opts ...Option) *Bench {
	t.Helper()
	store, calls, migrate := db.open(t)
	b := &Bench{T: t, Clock: &Clock{now: Start()}, Store: store, build: build}
	for _, o := range opts {
		o(b)
	}
	b.Deps = trade.Deps{
		DB: restarting{store}, Now: b.Clock.Now,
		Outbox: outbox.New[convergo.Tx](store, outbox.Config{Now: b.Clock.Now}),
		Calls:  outside.New[convergo.Tx](calls, outside.Config{Name: "bench", Now: b.Clock.Now}),
	}
	var err error
	if b.Service, err = build(b.Deps); err != nil {
		t.Fatal(err)
	}
	sets := map[string]fs.FS{"trade": trade.Migrations()}
	if own := b.Service.Migrations(); own != nil {
		sets[b.Service.Name()] = own
	}
	migrate(sets)
	for kind, h := range b.Service.Calls() {
		b.Deps.Calls.Handle(kind, h)
	}
	b.Handler = b.handler()
	return b
}

func (b *Bench) handler() http.Handler {
	mux := http.NewServeMux()
	b.Service.Routes(trade.NewAPI(mux, trade.APIConfig("bench", nil)))
	once := idempotency.Middleware[convergo.Tx](restarting{b.Store}, idempotency.Config{
		Scope: trade.ScopeOf, Now: b.Clock.Now, MaxBody: trade.MaxBody,
	})(mux)
	open := func(r *http.Request) bool {
		for _, p := range b.public {
			if strings.HasPrefix(r.URL.Path, p) {
				return true
			}
		}
		return false
	}
	either := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open(r) {
			mux.ServeHTTP(w, r)
			return
		}
		once.ServeHTTP(w, r)
	})
	return trade.Authenticate(trade.AuthConfig{OperatorKey: OperatorKey, Secret: []byte(Secret), Public: open, Now: b.Clock.Now})(either)
}

// Deliver hands an event to the service as its inbox would: the dedup row first, then the handler in a savepoint, both in one
// transaction. ran is false for a duplicate and for an event that the service has no handler for.
func (b *Bench) Deliver(e convergo.Event) (ran bool, err error) {
	if e.MessageID == "" {
		e.MessageID = "m-1"
	}
	if e.Key == "" {
		e.Key = convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)
	}
	if err := e.Validate(); err != nil {
		return false, fmt.Errorf("the test's event: %w", err)
	}
	h := b.Service.Handlers()[e.Type]
	if h == nil {
		return false, nil
	}
	err = restarting{b.Store}.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		ran = false
		marked, err := b.Store.Mark(ctx, tx, b.Service.Name(), e, false, b.Clock.Now())
		if err != nil || marked == inbox.Duplicate {
			return err
		}
		if marked != inbox.Fresh {
			return fmt.Errorf("event %s: the inbox answers %d", e.Key, marked)
		}
		ran = true
		return b.Store.Nested(ctx, tx, func(ctx context.Context, tx convergo.Tx) error { return h(ctx, tx, e) })
	})
	return ran && err == nil, err
}

// Again runs deliver until no other try can help, 20 times at most, as an inbox does after its pauses. A handler asks for it when another
// transaction was there first, a database when it had to begin again too often.
func Again(deliver func() error) (err error) {
	for range 20 {
		if err = deliver(); err == nil || convergo.VerdictOf(err) == convergo.Park {
			return err
		}
	}
	return err
}

// Event makes an event of the platform.
func (b *Bench) Event(eventType, orderNo string, version int64, payload any) convergo.Event {
	b.T.Helper()
	e, err := trade.NewEvent(eventType, "", orderNo, version, payload)
	if err != nil {
		b.T.Fatal(err)
	}
	return e
}

// MustDeliver makes an event and delivers it; the test fails when the handler does.
func (b *Bench) MustDeliver(eventType, orderNo string, version int64, payload any) {
	b.T.Helper()
	if _, err := b.Deliver(b.Event(eventType, orderNo, version, payload)); err != nil {
		b.T.Fatalf("%s for %s: %v", eventType, orderNo, err)
	}
}

// Events are the events of a type in the outbox, oldest first; of all types when it is empty.
func (b *Bench) Events(eventType string) []convergo.Event {
	b.T.Helper()
	return b.events("1 = 1", eventType)
}

// EventsOf are one order's events of a type in the outbox, oldest first; of all types when it is empty.
func (b *Bench) EventsOf(orderNo, eventType string) []convergo.Event {
	b.T.Helper()
	return b.events("aggregate_id = ?", eventType, orderNo)
}

func (b *Bench) events(where, eventType string, args ...any) []convergo.Event {
	b.T.Helper()
	var found []convergo.Event
	err := b.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT message_id, event_key, topic, type, aggregate_type, aggregate_id, aggregate_version, payload,
			deliver_at, created_at FROM outbox_event WHERE `+where+` AND ? IN ('', type) ORDER BY id`, append(args, eventType)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e convergo.Event
			var deliver, created int64
			if err := rows.Scan(&e.MessageID, &e.Key, &e.Topic, &e.Type, &e.Aggregate.Type, &e.Aggregate.ID, &e.Version, &e.Payload,
				&deliver, &created); err != nil {
				return err
			}
			e.DeliverAt, e.CreatedAt = convergo.FromMicros(deliver), convergo.FromMicros(created)
			found = append(found, e)
		}
		return rows.Err()
	})
	if err != nil {
		b.T.Fatal(err)
	}
	return found
}

// Payloads are the payloads of the outbox's events of a type, oldest first.
func Payloads[P any](b *Bench, eventType string) []P {
	b.T.Helper()
	return payloadsOf[P](b, b.Events(eventType))
}

// PayloadsOf are the payloads of one order's events of a type, oldest first.
func PayloadsOf[P any](b *Bench, orderNo, eventType string) []P {
	b.T.Helper()
	return payloadsOf[P](b, b.EventsOf(orderNo, eventType))
}

func payloadsOf[P any](b *Bench, events []convergo.Event) []P {
	b.T.Helper()
	var payloads []P
	for _, e := range events {
		p, err := trade.Decode[P](e)
		if err != nil {
			b.T.Fatal(err)
		}
		payloads = append(payloads, p)
	}
	return payloads
}

// Int is the single number that a query answers.
func (b *Bench) Int(query string, args ...any) (n int64) {
	b.T.Helper()
	err := b.Store.View(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(&n)
	})
	if err != nil {
		b.T.Fatalf("%s: %v", query, err)
	}
	return n
}

// Update runs fn in a write transaction of the service's database.
func (b *Bench) Update(fn func(ctx context.Context, tx convergo.Tx) error) {
	b.T.Helper()
	if err := b.Store.Update(context.Background(), fn); err != nil {
		b.T.Fatal(err)
	}
}

// Operator is the bench's operator.
func Operator() trade.Principal { return trade.Principal{Kind: trade.KindOperator, ID: "operator"} }

// User is a user.
func User(id string) trade.Principal { return trade.Principal{Kind: trade.KindUser, ID: id} }

// Response to a request.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Problem is the response as a problem.
func (r Response) Problem() (p trade.Problem) {
	_ = json.Unmarshal(r.Body, &p) // what is no problem has no fields of one
	return p
}

// Into decodes the body; a test that got something else fails.
func Into[V any](t testing.TB, r Response) (v V) {
	t.Helper()
	if err := json.Unmarshal(r.Body, &v); err != nil {
		t.Fatalf("status %d, body %.300s: %v", r.Status, r.Body, err)
	}
	return v
}

// Post makes a POST with a new Idempotency-Key. body is a value to send as JSON, or []byte or a string to send as it is.
func (b *Bench) Post(who trade.Principal, path string, body any) Response {
	b.T.Helper()
	b.mu.Lock()
	b.keys++
	key := fmt.Sprintf("key-%d", b.keys)
	b.mu.Unlock()
	return b.PostKey(who, path, key, body)
}

// PostKey makes a POST with this Idempotency-Key.
func (b *Bench) PostKey(who trade.Principal, path, key string, body any) Response {
	b.T.Helper()
	return b.Do(who, http.MethodPost, path, map[string]string{"Idempotency-Key": key}, body)
}

// Get makes a GET.
func (b *Bench) Get(who trade.Principal, path string) Response {
	b.T.Helper()
	return b.Do(who, http.MethodGet, path, nil, nil)
}

// Put makes a PUT.
func (b *Bench) Put(who trade.Principal, path string, body any) Response {
	b.T.Helper()
	return b.Do(who, http.MethodPut, path, nil, body)
}

// Do makes a request; the zero Principal is nobody.
func (b *Bench) Do(who trade.Principal, method, path string, header map[string]string, body any) Response {
	b.T.Helper()
	var data []byte
	switch v := body.(type) {
	case nil:
	case []byte:
		data = v
	case string:
		data = []byte(v)
	default:
		var err error
		if data, err = json.Marshal(v); err != nil {
			b.T.Fatal(err)
		}
	}
	r := httptest.NewRequest(method, path, bytes.NewReader(data))
	if data != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	switch who.Kind {
	case trade.KindOperator:
		r.Header.Set("Authorization", "Bearer "+OperatorKey)
	case trade.KindUser:
		token, err := trade.MintSession([]byte(Secret), who.ID, b.Clock.Now().Add(time.Hour))
		if err != nil {
			b.T.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	b.Handler.ServeHTTP(w, r)
	return Response{w.Code, w.Header(), w.Body.Bytes()}
}

// RunCalls makes the service's outgoing calls until none is due at the clock's time.
func (b *Bench) RunCalls() {
	b.T.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Deps.Calls.Run(ctx) }()
	deadline, tick := time.NewTimer(30*time.Second), time.NewTicker(2*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	left := func() int64 {
		return b.Int(`SELECT COUNT(*) FROM outside_call WHERE state = 1 OR (state = 0 AND next_at <= ?)`, convergo.Micros(b.Clock.Now()))
	}
	for n := left(); n > 0; n = left() {
		b.Deps.Calls.Wake()
		select {
		case <-tick.C:
		case <-deadline.C:
			b.T.Errorf("%d outgoing calls are still due after 30 s", n)
			stop()
		}
		if ctx.Err() != nil {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		b.T.Errorf("outgoing calls: %v", err)
	}
}
