package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// handler is the whole HTTP side: limits, then what is for another process, then who asks, then the service that owns the path.
func (p *platform) handler() http.Handler {
	limits, clients := newLimiter(p.cfg.Rate, p.cfg.Burst), p.clients()
	if len(p.cfg.Peers) == 0 {
		return limits.byAddress(clients, p.here(limits))
	}
	elsewhere := http.NewServeMux()
	elsewhere.Handle("/", p.here(limits))
	p.passOn(elsewhere, clients)
	return limits.byAddress(clients, elsewhere)
}

// here is the HTTP side of the services of this process.
func (p *platform) here(limits *limiter) http.Handler {
	mux := http.NewServeMux()
	for _, u := range p.units {
		for _, prefix := range append(u.service.Prefixes(), "/ops/"+u.service.Name()) {
			mux.Handle(prefix, outages(u.there, u.handler))
			mux.Handle(prefix+"/", outages(u.there, u.handler))
		}
	}
	if p.world != nil {
		for _, prefix := range []string{"/channel/", "/carrier/", "/messenger/", "/simulate/"} {
			mux.Handle(prefix, p.world.Handler())
		}
	}
	mux.HandleFunc("GET /openapi.json", p.openAPI)
	mux.Handle("GET /docs", docsPage(p.api.OpenAPI))
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", probing(time.Now, "ready", "try again soon", p.unready))
	mux.HandleFunc("GET /flowz", probing(time.Now, "flowing", seeLog, flowing(p.cfg.ReadyLag, p.flows()...)))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/docs", http.StatusFound)
			return
		}
		trade.WriteProblem(w, trade.NewProblem(http.StatusNotFound, "path", "there is nothing at "+r.URL.EscapedPath(), "see /docs"))
	})
	authenticate := trade.Authenticate(trade.AuthConfig{
		OperatorKey: p.folder.Secrets.OperatorKey, Secret: []byte(p.folder.Secrets.SessionSecret), Public: p.public,
	})
	return authenticate(limits.byPrincipal(readable(bounded(mux))))
}

// public tells which requests need no session: those that carry an authentication of their own, and what tells nothing.
func (p *platform) public(r *http.Request) bool {
	switch r.URL.Path {
	case "/", "/docs", "/openapi.json", "/healthz", "/readyz", "/flowz":
		return true
	}
	for _, u := range p.units {
		for _, open := range openPaths(u.service) {
			if strings.HasPrefix(r.URL.Path, open) {
				return true
			}
		}
	}
	if p.world == nil {
		return false
	}
	for _, prefix := range []string{"/channel/", "/carrier/", "/messenger/"} {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return true
		}
	}
	return false
}

func (p *platform) openAPI(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, p.api.OpenAPI)
}

func (p *platform) flows() (flows []flow) {
	for _, u := range p.units {
		flows = append(flows, flow{u.service.Name(), u.store.Backlog, u.relay.Stats})
	}
	return flows
}

// unready says which database does not answer, or "". Nothing is counted: a backlog grows while the broker is down, and counting it must
// not be what makes the process look down too.
func (p *platform) unready(ctx context.Context) (why string) {
	for _, u := range p.units {
		if err := u.there(ctx); err != nil {
			return "the database of " + u.service.Name() + " does not answer"
		}
	}
	return ""
}

// there asks the database for next to nothing.
func (u *unit) there(ctx context.Context) error {
	return u.store.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM goose_engine").Scan(new(int64))
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		trade.WriteProblem(w, trade.NewProblem(http.StatusInternalServerError, "", "the answer cannot be written", "tell the operator"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone cannot be told
}

// readable refuses a query that cannot be read whole: what is left of it is not what was asked.
func readable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			trade.WriteProblem(w, trade.NewProblem(http.StatusBadRequest, "query", err.Error(), "write %3B for a ';' and %25 for a '%'"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded keeps every body below trade.MaxBody, whoever reads it.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A copy, because the server looks at its own request's body to find out whether the connection can be used again. With
		// another body in it, it would take what a handler left unread for the next request.
		bounded := r.WithContext(r.Context())
		bounded.Body = http.MaxBytesReader(w, r.Body, trade.MaxBody)
		next.ServeHTTP(w, bounded)
	})
}

// problems answers what the mux has no pattern for with a problem instead of plain text.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refusal, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &refusalOnly{header: http.Header{}}
		refusal.ServeHTTP(answer, r)
		if allow := answer.header.Get("Allow"); answer.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", allow)
			trade.WriteProblem(w, trade.NewProblem(answer.status, "method", r.Method+" is not possible here", "use one of "+allow))
			return
		}
		trade.WriteProblem(w, nothingAt(r))
	})
}

func nothingAt(r *http.Request) *trade.Problem {
	return trade.NewProblem(http.StatusNotFound, "path", "there is nothing at "+r.URL.EscapedPath(), "see /docs")
}

// refusalOnly is an answer of which only the status and the headers matter.
type refusalOnly struct {
	header http.Header
	status int
}

func (r *refusalOnly) Header() http.Header         { return r.header }
func (r *refusalOnly) WriteHeader(status int)      { r.status = status }
func (r *refusalOnly) Write(p []byte) (int, error) { return len(p), nil }

// bypass serves the open paths without the idempotency middleware: they have their own rules for repeats.
func bypass(open []string, plain, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, prefix := range open {
			if strings.HasPrefix(r.URL.Path, prefix) {
				plain.ServeHTTP(w, r)
				return
			}
		}
		rest.ServeHTTP(w, r)
	})
}

// openPaths are the path prefixes of a service that carry their own authentication, such as signed notices.
func openPaths(s trade.Service) []string {
	if o, ok := s.(interface{ Open() []string }); ok {
		return o.Open()
	}
	return nil
}

func idempotencyProblem(w http.ResponseWriter, _ *http.Request, status int, title, detail string) {
	p := trade.NewProblem(status, "header.Idempotency-Key", detail,
		"send 'Idempotency-Key: KEY' with 1 to 255 visible characters of your choice, a new one for each new request")
	switch {
	case status == http.StatusRequestEntityTooLarge:
		p.Field, p.Remedy = "body", "send less in one request"
	case status == http.StatusUnprocessableEntity:
		p.Remedy = "use a new Idempotency-Key for a new request, or send the same body and query as the first time to get its answer"
	case status == http.StatusConflict:
		p.Remedy = "wait for Retry-After, then send the same request again with the same Idempotency-Key"
	case status >= http.StatusInternalServerError:
		p.Field, p.Remedy = "", "send it again with the same Idempotency-Key"
	}
	p.Title = title
	trade.WriteProblem(w, p)
}

// limiter bounds the rate of requests per address before anything is read, and per principal once it is known.
type limiter struct {
	rate  rate.Limit
	burst int
	mu    sync.Mutex
	seen  map[string]*visitor
	swept time.Time
}

type visitor struct {
	*rate.Limiter
	last time.Time
}

func newLimiter(perSecond float64, burst int) *limiter {
	return &limiter{rate: rate.Limit(perSecond), burst: max(burst, 1), seen: map[string]*visitor{}, swept: time.Now()}
}

const (
	forgetAfter = 5 * time.Minute
	mostSeen    = 100_000 // beyond it strangers share one allowance
)

func (l *limiter) allow(who string) bool {
	if l.rate <= 0 {
		return true
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.swept) > forgetAfter {
		l.swept = now
		for name, v := range l.seen {
			if now.Sub(v.last) > forgetAfter {
				delete(l.seen, name)
			}
		}
	}
	v := l.seen[who]
	if v == nil {
		if len(l.seen) >= mostSeen {
			who = "everybody else"
			v = l.seen[who]
		}
		if v == nil {
			v = &visitor{Limiter: rate.NewLimiter(l.rate, l.burst)}
			l.seen[who] = v
		}
	}
	v.last = now
	return v.Allow()
}

// byAddress allows a client's address ten times what a principal may: many principals may share one. What a supervisor asks is not counted.
func (l *limiter) byAddress(c clients, next http.Handler) http.Handler {
	wide := newLimiter(float64(l.rate)*10, l.burst*10)
	counted := wide.by(c.account, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if probed(r) {
			next.ServeHTTP(w, r)
			return
		}
		counted.ServeHTTP(w, r)
	})
}

func (l *limiter) byPrincipal(next http.Handler) http.Handler {
	return l.by(func(r *http.Request) string {
		p, ok := trade.PrincipalOf(r.Context())
		if !ok {
			return ""
		}
		return p.String()
	}, next)
}

func (l *limiter) by(who func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := who(r); name != "" && !l.allow(name) {
			w.Header().Set("Retry-After", "1")
			trade.WriteProblem(w, trade.NewProblem(http.StatusTooManyRequests, "", fmt.Sprintf("more than %v requests a second", l.rate),
				"wait as Retry-After says, then repeat with the same Idempotency-Key"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
