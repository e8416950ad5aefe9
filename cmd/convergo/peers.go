package main

import (
	"fmt"
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

// passedOn marks a request that a peer has passed on: it is not passed on again.
const passedOn = "Convergo-Passed-On"

// passOn adds to the mux the paths of services that run in other processes. Requests for them go there as they came: the process
// that serves them checks who asks, and limits the body. What that process does not answer is a 502 that may be tried again.
func (p *platform) passOn(mux *http.ServeMux) {
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
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.SetXForwarded()
				r.Out.Header.Set(passedOn, "1")
			},
			Transport: transport,
			ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
				p.log.Warn("a peer does not answer", "service", name, "error", err)
				trade.WriteProblem(w, trade.NewProblem(http.StatusBadGateway, "", "the service "+name+" does not answer", "send it again with the same Idempotency-Key"))
			},
		}
		once := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(passedOn) != "" { // two processes that take each other for the one
				trade.WriteProblem(w, trade.NewProblem(http.StatusLoopDetected, "", "the service "+name+" runs neither here nor where the request came from",
					"tell the operator: --peers of two processes point at each other"))
				return
			}
			proxy.ServeHTTP(w, r)
		})
		for _, prefix := range append(prefixesOf(name), "/ops/"+name) {
			mux.Handle(prefix, once)
			mux.Handle(prefix+"/", once)
		}
	}
}
