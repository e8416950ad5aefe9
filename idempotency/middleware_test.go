package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/store/memory"
)

// store is the memory store whose commits can fail.
type store struct {
	*memory.Store
	commit atomic.Pointer[error] // what a commit answers; nothing is kept then
	lose   atomic.Bool           // the next RecordRequest finds that another process was first
	scope  string                // of the last record
}

func (s *store) Update(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	return s.Store.Update(ctx, func(ctx context.Context, tx *memory.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		if p := s.commit.Load(); p != nil {
			return *p
		}
		return nil
	})
}

func (s *store) RecordRequest(ctx context.Context, tx *memory.Tx, r idempotency.Record) (bool, error) {
	if s.lose.Load() {
		return false, nil
	}
	s.scope = r.Scope
	return s.Store.RecordRequest(ctx, tx, r)
}

// shop answers POST requests: it makes order O-n, as the n-th of its life.
type shop struct {
	t       *testing.T
	store   *store
	handler http.Handler
	answer  func(w http.ResponseWriter, r *http.Request, tx *memory.Tx) // after the order was written
	runs    atomic.Int64
}

func newShop(t *testing.T, change func(*idempotency.Config)) *shop {
	s := &shop{t: t, store: &store{Store: memory.New()}}
	cfg := idempotency.Config{Scope: func(r *http.Request) string { return r.Header.Get("Tenant") }, MaxBody: 1000, MaxResponse: 1000}
	if change != nil {
		change(&cfg)
	}
	s.answer = func(w http.ResponseWriter, r *http.Request, tx *memory.Tx) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", fmt.Sprint("/orders/O-", tx.Get("orders")))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"order":"O-%d"}`, tx.Get("orders"))
	}
	s.handler = idempotency.Middleware[*memory.Tx](s.store, cfg)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		tx, ok := idempotency.Tx[*memory.Tx](r.Context())
		if !ok {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		tx.Add("orders", 1)
		s.answer(w, r, tx)
	}))
	return s
}

type request struct{ tenant, path, key, body string }

var first = request{"A", "/orders", "k-1", `{"sku":"S1","qty":1}`}

func (s *shop) post(q request) *http.Response {
	r := httptest.NewRequest(http.MethodPost, q.path, strings.NewReader(q.body))
	r.Header.Set("Tenant", q.tenant)
	if q.key != "" {
		r.Header.Set(idempotency.HeaderKey, q.key)
	}
	return s.send(r)
}

func (s *shop) send(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Result()
}

func (s *shop) orders() (n int) {
	s.t.Helper()
	if err := s.store.View(s.t.Context(), func(_ context.Context, tx *memory.Tx) error { n = tx.Get("orders"); return nil }); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func words(v ...any) string { return strings.TrimSuffix(fmt.Sprintln(v...), "\n") }

func text(r *http.Response) string {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *shop) want(what string, got, want any) {
	s.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestCaseB36AReplayHasTheSameBytesAndIsMarked(t *testing.T) {
	s := newShop(t, nil)
	one, two := s.post(first), s.post(first)
	s.want("status", words(one.StatusCode, two.StatusCode), "201 201")
	a, b := text(one), text(two)
	s.want("first", a, `{"order":"O-1"}`)
	s.want("replay", b, a)
	for _, name := range []string{"Content-Type", "Location", "Content-Length"} {
		if one.Header.Get(name) == "" || one.Header.Get(name) != two.Header.Get(name) {
			t.Errorf("%s: %q, replayed %q", name, one.Header.Get(name), two.Header.Get(name))
		}
	}
	s.want("mark of the first", one.Header.Get(idempotency.HeaderReplayed), "")
	s.want("mark of the replay", two.Header.Get(idempotency.HeaderReplayed), "true")
	s.want("orders", s.orders(), 1)
	s.want("quoted, it is the same key", text(s.post(request{"A", "/orders", `"k-1"`, first.body})), a)
}

func TestCaseB36OtherContentIsRefusedAndMakesNothing(t *testing.T) {
	s := newShop(t, nil)
	s.post(first)
	for _, q := range []request{
		{"A", "/orders", "k-1", `{"sku":"S1","qty":2}`},
		{"A", "/orders?dry=1", "k-1", first.body},
		{"A", "/orders", "k-1", first.body + " "},
	} {
		r := s.post(q)
		s.want("status", r.StatusCode, 422)
		if body := text(r); !strings.Contains(body, "other content") || !strings.Contains(body, "a new key for a new request, or send the same body") || r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("problem: %s", body)
		}
	}
	s.want("orders", s.orders(), 1)
}

func TestCaseB36KeysOfOtherTenantsAndEndpointsAreIndependent(t *testing.T) {
	s := newShop(t, nil)
	for _, q := range []request{
		first,
		{"B", "/orders", "k-1", first.body},
		{"A", "/refunds", "k-1", first.body},
		{"A POST /orders", "/orders", "k-1", first.body}, // a principal that looks like a scope
		{"A", "/orders/1%2Fcancel", "k-1", first.body},
		{"A", "/orders/1/cancel", "k-1", first.body},
		{"A", "/" + strings.Repeat("x", 300) + "1", "k-1", first.body},
		{"A", "/" + strings.Repeat("x", 300) + "2", "k-1", first.body},
	} {
		r := s.post(q)
		s.want(q.tenant+q.path, words(r.StatusCode, r.Header.Get(idempotency.HeaderReplayed)), "201 ")
	}
	s.want("orders", s.orders(), 8)
}

func TestCaseB36AfterA5xxTheKeyRunsAgain(t *testing.T) {
	for name, spoil := range map[string]func(http.ResponseWriter, *http.Request, *memory.Tx){
		"500":       func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) { http.Error(w, "no", 500) },
		"503":       func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) { http.Error(w, "no", 503) },
		"panic":     func(http.ResponseWriter, *http.Request, *memory.Tx) { panic("boom") },
		"too long":  func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) { _, _ = w.Write(make([]byte, 1001)) },
		"too many":  func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) { http.Error(w, "no", 429) },
		"forbidden": func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) { http.Error(w, "no", 403) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, nil)
			good := s.answer
			s.answer = spoil
			r := s.post(first)
			if r.StatusCode < 400 {
				t.Errorf("status %d", r.StatusCode)
			}
			s.want("nothing was done", s.orders(), 0)
			s.answer = good
			r = s.post(first)
			s.want("again", words(r.StatusCode, text(r), r.Header.Get(idempotency.HeaderReplayed)), `201 {"order":"O-1"} `)
		})
	}
}

func TestCaseB36ABadKeyIsRefused(t *testing.T) {
	s := newShop(t, nil)
	for key, want := range map[string]string{
		"":                                   "needs the header",
		strings.Repeat("k", 300):             "too long: 300 > 255",
		`"` + strings.Repeat("k", 256) + `"`: "too long: 256 > 255",
		"k 1":                                "position 2",
		"k,1":                                "position 2",
		"ключ":                               "position 1",
		`"open`:                              "closing double quote",
		`"a"b"`:                              "position 3",
		`""`:                                 "is empty",
	} {
		r := s.post(request{"A", "/orders", key, first.body})
		if body := text(r); r.StatusCode != 400 || !strings.Contains(body, want) {
			t.Errorf("%q: %d %s", key, r.StatusCode, body)
		}
	}
	twice := httptest.NewRequest(http.MethodPost, "/orders", nil)
	twice.Header[idempotency.HeaderKey] = []string{"k-1", "k-1"}
	s.want("two headers", s.send(twice).StatusCode, 400)
	s.want("runs", s.runs.Load(), 0)
	s.want("longest", s.post(request{"A", "/orders", strings.Repeat("k", 255), ""}).StatusCode, 201)
}

func TestCaseB36TheSameKeyWhileItRunsIsAConflictWithoutWaiting(t *testing.T) {
	s := newShop(t, nil)
	good, running, goOn := s.answer, make(chan struct{}), make(chan struct{})
	s.answer = func(w http.ResponseWriter, r *http.Request, tx *memory.Tx) {
		close(running)
		<-goOn
		good(w, r, tx)
	}
	done := make(chan *http.Response)
	go func() { done <- s.post(first) }()
	<-running
	r := s.post(request{"A", "/orders", "k-1", `{"sku":"S1","qty":2}`})
	s.want("status", words(r.StatusCode, r.Header.Get("Retry-After")), "409 1")
	close(goOn)
	s.want("the first", (<-done).StatusCode, 201)
	s.want("then it is told apart from other content", s.post(request{"A", "/orders", "k-1", "other"}).StatusCode, 422)
}

// domain.md row 33: whatever ids the server draws, a repeat of the same bytes is a repeat.
func TestReport33TheFingerprintIsOfWhatTheClientSent(t *testing.T) {
	s := newShop(t, nil)
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(first.body))
	r.Header.Set("Tenant", "A")
	r.Header.Set(idempotency.HeaderKey, "k-1")
	r.Header.Set("X-Request-Id", "one")
	s.want("first", s.send(r).StatusCode, 201)
	r = httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(first.body))
	r.Header.Set("Tenant", "A")
	r.Header.Set(idempotency.HeaderKey, "k-1")
	r.Header.Set("X-Request-Id", "two")
	got := s.send(r)
	s.want("repeat", words(got.StatusCode, got.Header.Get(idempotency.HeaderReplayed)), "201 true")
}

// B21: the handler has said 201, the commit did not happen.
func TestCaseB21AFailedCommitIsNeverA2xx(t *testing.T) {
	failures := map[int]error{500: errors.New("commit answered ROLLBACK"), 503: convergo.Unreachable(errors.New("connection lost"))}
	for want, failure := range failures {
		s := newShop(t, nil)
		s.store.commit.Store(&failure)
		r := s.post(first)
		body := text(r)
		if r.StatusCode != want || strings.Contains(body, "O-1") || strings.Contains(body, failure.Error()) || r.Header.Get("Location") != "" {
			t.Errorf("want %d, got %d %s", want, r.StatusCode, body)
		}
		s.want("orders", s.orders(), 0)
		s.store.commit.Store(nil)
		s.want("again", text(s.post(first)), `{"order":"O-1"}`)
	}
}

func TestARefusalIsRecordedAndItsWritesAreUndone(t *testing.T) {
	s := newShop(t, nil)
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) {
		http.Error(w, "out of stock", http.StatusConflict)
	}
	one, two := s.post(first), s.post(first)
	s.want("status", words(one.StatusCode, two.StatusCode), "409 409")
	s.want("replay", text(two), text(one))
	s.want("marked", two.Header.Get(idempotency.HeaderReplayed), "true")
	s.want("runs", s.runs.Load(), 1)
	s.want("orders", s.orders(), 0)
}

func TestARaceLostToAnotherProcessEndsInItsAnswer(t *testing.T) {
	s := newShop(t, nil)
	good := s.answer
	s.store.lose.Store(true)
	s.answer = func(w http.ResponseWriter, r *http.Request, tx *memory.Tx) {
		good(w, r, tx)
		if s.runs.Load() == 2 { // the other process has committed by now
			s.store.lose.Store(false)
		}
	}
	r := s.post(first)
	s.want("answer", words(r.StatusCode, text(r)), `201 {"order":"O-1"}`)
	s.want("runs", s.runs.Load(), 2)
	s.want("orders", s.orders(), 1)
	s.store.lose.Store(true)
	s.want("for ever", s.post(request{"A", "/orders", "k-2", ""}).StatusCode, 503)
}

func TestNothingLeavesBeforeTheCommit(t *testing.T) {
	w := httptest.NewRecorder()
	s := newShop(t, func(c *idempotency.Config) {
		c.Probe = func(point string) {
			if w.Flushed || w.Body.Len() > 0 {
				t.Errorf("%s: something has left: %s", point, w.Body)
			}
		}
	})
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ *memory.Tx) {
		w.Header().Set("A", "before")
		w.WriteHeader(http.StatusEarlyHints)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		w.Header().Set("A", "after") // too late, as in net/http
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("one "))
		_, _ = w.Write([]byte("two"))
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", nil)
	r.Header.Set("Tenant", "A")
	r.Header.Set(idempotency.HeaderKey, "k-1")
	s.handler.ServeHTTP(w, r)
	s.want("answer", words(w.Code, w.Body, w.Header().Get("A")), "200 one two before")
}

func TestTheHandlerReadsTheBodyAndTheRequestAsSent(t *testing.T) {
	s := newShop(t, nil)
	s.answer = func(w http.ResponseWriter, r *http.Request, _ *memory.Tx) {
		_, _ = io.Copy(w, r.Body)
		fmt.Fprint(w, " ", r.ContentLength, " ", r.URL)
	}
	s.want("echo", text(s.post(request{"A", "/orders?x=1", "k-1", "body"})), "body 4 /orders?x=1")
}

func TestAnOversizedBodyIsRefusedBeforeAnythingElse(t *testing.T) {
	s := newShop(t, nil)
	s.want("too long", s.post(request{"A", "/orders", "k-1", strings.Repeat("x", 1001)}).StatusCode, 413)
	s.want("runs", s.runs.Load(), 0)
	s.want("just right", s.post(request{"A", "/orders", "k-1", strings.Repeat("x", 1000)}).StatusCode, 201)
}

// A slow client must not keep a transaction open: the body is read before the store is asked.
func TestTheBodyIsReadBeforeTheTransaction(t *testing.T) {
	s := newShop(t, nil)
	body, client := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "/orders", body)
	r.Header.Set("Tenant", "A")
	r.Header.Set(idempotency.HeaderKey, "slow")
	var slow sync.WaitGroup
	slow.Go(func() { s.want("slow", s.send(r).StatusCode, 201) })
	if _, err := client.Write([]byte("half")); err != nil { // returns when the middleware has read it
		t.Fatal(err)
	}
	s.want("others meanwhile", s.post(first).StatusCode, 201)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	slow.Wait()
	broken := httptest.NewRequest(http.MethodPost, "/orders", io.MultiReader(bytes.NewReader([]byte("half")), failing{}))
	broken.Header = r.Header.Clone()
	s.want("broken off", s.send(broken).StatusCode, 400)
	s.want("orders", s.orders(), 2)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestOtherMethodsPassThrough(t *testing.T) {
	s := newShop(t, nil)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		s.want(method, s.send(httptest.NewRequest(method, "/orders", nil)).StatusCode, http.StatusNoContent)
	}
}

// A unique index has a longest key.
func TestAScopeFitsAStoreHoweverLongPrincipalAndPathAre(t *testing.T) {
	long := strings.Repeat("x", 400)
	seen := map[string]bool{}
	for _, principal := range []string{"a", long + "a", long + "b"} {
		for _, path := range []string{"/orders", "/" + long + "c", "/" + long + "d"} {
			s := &store{Store: memory.New()}
			h := idempotency.Middleware[*memory.Tx](s, idempotency.Config{Scope: func(*http.Request) string { return principal }})(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
			r := httptest.NewRequest(http.MethodPost, path, nil)
			r.Header.Set(idempotency.HeaderKey, "k")
			h.ServeHTTP(httptest.NewRecorder(), r)
			if len(s.scope) == 0 || len(s.scope) > convergo.MaxKeyBytes || seen[s.scope] {
				t.Errorf("principal %.3s path %.9s: scope of %d bytes, seen before: %v", principal, path, len(s.scope), seen[s.scope])
			}
			seen[s.scope] = true
		}
	}
}

func TestARequestOfNobodyIsRefused(t *testing.T) {
	s := newShop(t, nil)
	s.want("status", s.post(request{"", "/orders", "k-1", ""}).StatusCode, 401)
	s.want("runs", s.runs.Load(), 0)
}

func TestAnAbortedHandlerAbortsTheConnectionAndKeepsNothing(t *testing.T) {
	s := newShop(t, nil)
	s.answer = func(http.ResponseWriter, *http.Request, *memory.Tx) { panic(http.ErrAbortHandler) }
	func() {
		defer func() { s.want("panic", recover(), http.ErrAbortHandler) }()
		s.post(first)
	}()
	s.want("orders", s.orders(), 0)
	s.answer = func(http.ResponseWriter, *http.Request, *memory.Tx) {}
	s.want("the key is free", s.post(first).StatusCode, 200)
}

func TestOfManyRepeatsAtOnceOneDoesTheWork(t *testing.T) {
	s := newShop(t, nil)
	var all sync.WaitGroup
	var ok atomic.Int64
	for range 50 {
		all.Go(func() {
			for {
				r := s.post(first)
				if r.StatusCode == http.StatusConflict {
					continue // told to come again
				}
				if r.StatusCode == 201 && text(r) == `{"order":"O-1"}` {
					ok.Add(1)
				}
				return
			}
		})
	}
	all.Wait()
	s.want("answers", ok.Load(), 50)
	s.want("orders", s.orders(), 1)
}
