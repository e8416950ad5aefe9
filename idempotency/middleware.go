package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// Config of the middleware. Scope is required, the rest has defaults that are fit for production.
type Config struct {
	// Scope names the principal of a request, from what the server knows (its session, its API key) and never from what the
	// client says. Requests for which it is empty are refused with 401.
	Scope       func(*http.Request) string
	MaxBody     int64            // of the request, in bytes; default 1 MiB
	MaxResponse int64            // of the answer, in bytes; default 1 MiB
	Now         func() time.Time // default time.Now
	Log         *slog.Logger     // default: discarded
	// Problem writes the middleware's own refusals. Default: application/problem+json.
	Problem func(w http.ResponseWriter, r *http.Request, status int, title, detail string)
	// Probe points: idempotency.handled (before the commit), idempotency.committed (before the answer leaves).
	Probe convergo.Probe
}

type txKey[TX any] struct{}

// Tx is the transaction that the handler runs in: what is written through it commits together with the recorded answer.
// ok is false outside of the middleware and for requests that it lets pass.
func Tx[TX any](ctx context.Context) (tx TX, ok bool) {
	tx, ok = ctx.Value(txKey[TX]{}).(TX)
	return tx, ok
}

type requestKey struct{}

// KeyOf is the Idempotency-Key of the request that a handler serves: the cause of what it does. ok is false in a handler
// that does not run behind Middleware.
func KeyOf(ctx context.Context) (key convergo.Key, ok bool) {
	key, ok = ctx.Value(requestKey{}).(convergo.Key)
	return key, ok
}

// Middleware makes POST requests idempotent; others pass through untouched. The handler runs inside a transaction (Tx),
// in which it does all its work and schedules its side effects, and its answer is held back until the commit.
//
//   - 400: the key is missing, malformed or doubled (ParseKey). 401: no principal. 413: the body is longer than MaxBody.
//   - 409: a request with this key is running in this process; wait and repeat it unchanged.
//   - 422: the key was used for other content (method, path, query or raw body); a new request needs a new key, a repeat the same content.
//   - Answers below 500 are recorded and given again, byte for byte, with "Idempotency-Replayed: true". Of a 4xx answer
//     everything that the handler wrote is rolled back. 401, 403, 404, 408, 413, 415 and 429 are not recorded: they
//     speak of the moment, or of the media type, and not of the request.
//   - 500 and above, a panic, an answer longer than MaxResponse: nothing is recorded, everything is rolled back, the key
//     may be used again. When the commit fails the client gets 503 (the database cannot be reached) or 500, whatever the
//     handler said.
//
// The same key running in two processes: both do the work, the second to record waits for the first one's commit, is
// told that the record exists, rolls its work back and replays. Streaming is not supported: Flush sends nothing.
//
// When the database aborts the transaction to end a deadlock the handler runs again, on an unread copy of the request: it
// keeps nothing outside of the transaction.
func Middleware[TX any](store Store[TX], cfg Config) func(http.Handler) http.Handler {
	if cfg.Scope == nil {
		panic("idempotency: Config.Scope is required: keys of different principals must not meet")
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 1 << 20
	}
	if cfg.MaxResponse <= 0 {
		cfg.MaxResponse = 1 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Problem == nil {
		cfg.Problem = problem
	}
	m := &middleware[TX]{store: store, cfg: cfg}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				next.ServeHTTP(w, r)
				return
			}
			m.serve(w, r, next)
		})
	}
}

type middleware[TX any] struct {
	store   Store[TX]
	cfg     Config
	running sync.Map // of claim
}

type claim struct {
	scope string
	key   convergo.Key
}

func (m *middleware[TX]) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, err := ParseKey(r.Header)
	if err != nil {
		m.cfg.Problem(w, r, http.StatusBadRequest, "Idempotency-Key missing or malformed", err.Error())
		return
	}
	principal := m.cfg.Scope(r)
	if principal == "" {
		m.cfg.Problem(w, r, http.StatusUnauthorized, "Not signed in", "The request has no principal that its Idempotency-Key could belong to.")
		return
	}
	// Before the transaction: a slow client must not keep a database's writers waiting.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.cfg.MaxBody))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		m.cfg.Problem(w, r, http.StatusRequestEntityTooLarge, "Request too long",
			fmt.Sprintf("The body may have %d bytes at most.", m.cfg.MaxBody))
		return
	case err != nil:
		m.cfg.Problem(w, r, http.StatusBadRequest, "Request incomplete", "The body could not be read to its end.")
		return
	}
	c := claim{scopeOf(principal, r), key}
	if _, taken := m.running.LoadOrStore(c, nil); taken {
		w.Header().Set("Retry-After", "1")
		m.cfg.Problem(w, r, http.StatusConflict, "Still running",
			"A request with this Idempotency-Key is running. Wait, then send it again unchanged.")
		return
	}
	defer m.running.Delete(c)
	m.run(w, r, next, c, body)
}

// Why a transaction was rolled back without an error of the database.
var (
	errLost = errors.New("another process has recorded this request meanwhile")
	errUndo = errors.New("the handler refused")
)

// outcome of one transaction.
type outcome struct {
	found  *Record // recorded earlier
	answer *answer // given now
	spent  bool    // the answer is not recorded, and nothing else either: the key may run again
	panic  any     // what the handler panicked with
	place  string
}

func (m *middleware[TX]) run(w http.ResponseWriter, r *http.Request, next http.Handler, c claim, body []byte) {
	print := fingerprint(r, body)
	var o outcome
	var err error
	for range 3 { // a lost race is decided by the record that won; it can only be lost again if that one was purged
		o = outcome{}
		err = m.store.Update(r.Context(), func(ctx context.Context, tx TX) error {
			o = outcome{} // a store may run this again
			return m.once(ctx, tx, w, r, next, c, body, print, &o)
		})
		if !errors.Is(err, errLost) {
			break
		}
	}
	log := func() *slog.Logger { return m.cfg.Log.With("method", r.Method, "path", r.URL.Path, "key", c.key) }
	switch {
	case o.panic != nil:
		if aborted, ok := o.panic.(error); ok && errors.Is(aborted, http.ErrAbortHandler) {
			panic(http.ErrAbortHandler)
		}
		log().Error("handler panicked", "panic", fmt.Sprint(o.panic), "place", o.place)
		m.cfg.Problem(w, r, http.StatusInternalServerError, "Internal error",
			"Nothing was done. The request may be sent again with the same Idempotency-Key.")
	case err == nil && o.spent && o.answer.overflow:
		log().Error("answer too long", "most", m.cfg.MaxResponse)
		m.cfg.Problem(w, r, http.StatusInternalServerError, "Internal error", "Nothing was done: the answer would have been too long.")
	case err == nil && o.spent:
		o.answer.send(w)
	case err != nil:
		log().Error("request not committed", "error", err)
		status, title := http.StatusInternalServerError, "Internal error"
		if convergo.VerdictOf(err) == convergo.Outage || errors.Is(err, errLost) {
			status, title = http.StatusServiceUnavailable, "Database unavailable"
		}
		m.cfg.Problem(w, r, status, title, "The request could not be recorded. Send it again with the same Idempotency-Key.")
	case o.found != nil && o.found.Fingerprint != print:
		m.cfg.Problem(w, r, http.StatusUnprocessableEntity, "Idempotency-Key used for other content",
			"This Idempotency-Key belongs to a request with another body or query. Use a new key for a new request, or send the same body and query to get "+
				"the first answer.")
	case o.found != nil:
		o.found.replay(w)
	default:
		m.cfg.Probe.At("idempotency.committed")
		o.answer.send(w)
	}
}

// once finds the record, or runs the handler and records its answer, in tx.
func (m *middleware[TX]) once(ctx context.Context, tx TX, w http.ResponseWriter, r *http.Request, next http.Handler,
	c claim, body []byte, print convergo.Digest, o *outcome,
) error {
	found, err := m.store.FindRequest(ctx, tx, c.scope, c.key)
	if err != nil {
		return err
	}
	if o.found = found; found != nil {
		return nil
	}
	o.answer = &answer{to: w, header: http.Header{}, most: m.cfg.MaxResponse}
	// In a savepoint, so that a refusal takes back what the handler wrote and can still be recorded.
	err = m.store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
		m.handle(ctx, tx, r, next, c.key, body, o)
		if o.panic != nil || o.answer.status >= 400 || o.answer.overflow {
			return errUndo
		}
		return nil
	})
	if err != nil && !errors.Is(err, errUndo) {
		return err
	}
	// The savepoint has undone what is not to be kept, so the transaction need not fail for it: others may share it.
	if o.spent = o.panic != nil || o.answer.overflow || !recordable(o.answer.status); o.spent {
		return nil
	}
	fresh, err := m.store.RecordRequest(ctx, tx, Record{
		Scope: c.scope, Key: c.key, Fingerprint: print, Status: o.answer.status, Header: o.answer.record(), Body: o.answer.body, At: m.cfg.Now(),
	})
	switch {
	case err != nil:
		return err
	case !fresh:
		return errLost
	}
	m.cfg.Probe.At("idempotency.handled")
	return nil
}

// handle runs the handler on a copy of the request that carries tx and has its body before it.
func (m *middleware[TX]) handle(ctx context.Context, tx TX, r *http.Request, next http.Handler,
	key convergo.Key, body []byte, o *outcome,
) {
	defer func() {
		if o.panic = recover(); o.panic != nil {
			o.place = panicPlace()
		}
	}()
	r = r.Clone(context.WithValue(context.WithValue(ctx, txKey[TX]{}, tx), requestKey{}, key))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	next.ServeHTTP(o.answer, r)
	o.answer.WriteHeader(http.StatusOK) // as net/http does for a handler that wrote nothing
}

// recordable tells whether an answer speaks of the request; the others speak of the moment (not signed in, not there yet,
// too many) or of what the fingerprint does not cover (the media type), so the same key may run again.
func recordable(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestTimeout,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

func problem(w http.ResponseWriter, _ *http.Request, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	_ = out.Encode(struct { // the client is gone: nobody to tell
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{title, status, detail})
}

// panicPlace is the file and line that panicked, as seen from a deferred function.
func panicPlace() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", frame.File[strings.LastIndex(frame.File, "/")+1:], frame.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}
