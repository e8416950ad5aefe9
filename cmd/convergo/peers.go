package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo/trade"
)

// validatePeers tells whether every peer is a service and has a base URL.
func (c serveCommand) validatePeers() error {
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		if !slices.Contains(serviceNames(), name) {
			return fmt.Errorf("--peers: there is no service %q; there are %s", name, strings.Join(serviceNames(), ", "))
		}
		u, err := url.Parse(c.Peers[name])
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return fmt.Errorf("--peers: %s is not reached at %q: a base URL is http://HOST:PORT or https://HOST", name, redacted(c.Peers[name]))
		}
	}
	return nil
}

// peers are the base URLs of all services that are known here; the story of an order is collected from them over HTTP.
func (p *platform) peers() map[string]string {
	peers := maps.Clone(p.cfg.Peers)
	if peers == nil {
		peers = map[string]string{}
	}
	for _, name := range p.cfg.Services {
		peers[name] = p.cfg.local()
	}
	return peers
}

// passOn adds to the mux the paths of services that run in other processes. Requests for them go there as they came: the process
// that serves them checks who asks, limits the body, and counts the request for the client that this process names. What that process
// does not answer is a 502 that may be tried again.
func (p *platform) passOn(mux *http.ServeMux, clients clients) {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 45 * time.Second}
	for name, base := range p.cfg.Peers {
		if slices.Contains(p.cfg.Services, name) {
			continue
		}
		target, err := url.Parse(base)
		if err != nil {
			continue // validatePeers has refused it
		}
		once := p.once(name, &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.URL.RawQuery = r.In.URL.RawQuery // what this process cannot read is not dropped: the other one refuses it
				r.SetXForwarded()
				client := clients.of(r.In)
				if client.IsValid() {
					r.Out.Header.Set("X-Forwarded-For", client.String())
				}
				r.Out.Header.Set(passedOn, clients.vouchOf(client))
			},
			Transport: transport, ModifyResponse: holdBack, ErrorHandler: p.unanswered(name),
			ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		})
		for _, prefix := range append(prefixesOf(name), "/ops/"+name) {
			mux.Handle(prefix, once)
			mux.Handle(prefix+"/", once)
		}
	}
}

const (
	// passOnWithin is how long a peer may take for a whole answer: less than the server allows for writing it, so that the client is told.
	passOnWithin = 55 * time.Second
	// heldBack is how much of a peer's answer is here before any of it is sent on.
	heldBack = 256 << 10
)

// once passes a request on to a peer, unless a peer has passed it on already.
func (p *platform) once(name string, to http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(passedOn) != "" { // two processes that take each other for the one
			trade.WriteProblem(w, trade.NewProblem(http.StatusLoopDetected, "", "the service "+name+" runs neither here nor where the request came from",
				"tell the operator: --peers of two processes point at each other"))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), passOnWithin)
		defer cancel()
		to.ServeHTTP(w, r.WithContext(ctx))
	})
}

// holdBack waits for the beginning of an answer, which of nearly every one is the whole, before any of it is sent: one that is cut short
// there is a failure that the client is told of. A longer one that is cut short later ends the client's connection, because it has
// begun; the client sees that it is not whole.
func holdBack(answer *http.Response) error {
	beginning, err := io.ReadAll(io.LimitReader(answer.Body, heldBack))
	if err != nil {
		return fmt.Errorf("the answer is cut short: %w", err)
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(beginning), answer.Body), answer.Body}
	return nil
}

// unanswered answers for a peer that does not.
func (p *platform) unanswered(name string) func(http.ResponseWriter, *http.Request, error) {
	return func(w http.ResponseWriter, r *http.Request, err error) {
		level := slog.LevelWarn
		if errors.Is(r.Context().Err(), context.Canceled) { // the client has gone
			level = slog.LevelDebug
		}
		p.log.Log(r.Context(), level, "a peer does not answer", "service", name, "error", err)
		trade.WriteProblem(w, trade.NewProblem(http.StatusBadGateway, "", "the service "+name+" does not answer", "send it again with the same Idempotency-Key"))
	}
}
