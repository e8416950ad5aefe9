package webhook

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/convergo/convergo"
)

// Endpoint is a subscriber.
type Endpoint struct {
	// Name of the endpoint in errors and logs: the URL is never shown, it may hold a token. Unique.
	Name string
	// URL is absolute, https unless Config.PlainHTTP, without user and password.
	URL string
	// Secrets that sign, the newest first; several during a rotation. At least one.
	Secrets []Secret
	// Subjects that the endpoint gets. Default none named: all events.
	Subjects []convergo.Subject
	// Disabled endpoints get nothing, and what they would get counts as sent: the operator's choice.
	Disabled bool
}

func (e Endpoint) wants(event convergo.Event) bool {
	return len(e.Subjects) == 0 || slices.ContainsFunc(e.Subjects, func(s convergo.Subject) bool { return s.Covers(event.Topic, event.Type) })
}

// Config of the broker. Endpoints is required, the rest has defaults that are fit for production.
type Config struct {
	Endpoints []Endpoint
	// Unclaimed are subjects that need no endpoint: an event of them that no endpoint wants counts as sent. Default none: it is
	// "unroutable" and will be tried again.
	Unclaimed []convergo.Subject
	// Allow are networks that may be called although they are not public, for example 10.1.0.0/16. Default none.
	Allow []netip.Prefix
	// PlainHTTP permits http URLs. Default false: https only.
	PlainHTTP bool
	// RootCAs verify the endpoints' certificates. Default nil: the system's.
	RootCAs *x509.CertPool
	// Concurrency is how many requests one endpoint gets at a time, each for another aggregate. Default 16.
	Concurrency int
	// Patience is how long a call of Publish waits for endpoints that do not answer, when there are others. Default 1 s.
	Patience time.Duration
	// Timeout bounds one request, from connecting to the end of the answer. Default 20 s.
	Timeout time.Duration
	// Closed is how long an endpoint that cannot be reached, or answers 429 without Retry-After, is left alone. Default 1 s
	// doubling up to 1 min.
	Closed convergo.Backoff
	// MostRetryAfter caps what an endpoint can ask for with Retry-After. Default 1 h.
	MostRetryAfter time.Duration
	// Remember is of how many events it is kept in memory which endpoints have them, when others have not, what late answers said, and
	// how often one was not settled. Default 10,000 of each.
	Remember int
	// OnDown is told, once each time, when an endpoint begins to be down. It must not block. Default: the log only.
	OnDown func(endpoint string, why error)
	// OnGone is told when an endpoint has answered 410 and is disabled. It must not block. Default: nobody.
	OnGone func(endpoint string)
	Now    func() time.Time // default time.Now
	Log    *slog.Logger     // default: discarded
	// Probe point: broker.sent (an endpoint has answered, whatever it was). Default none.
	Probe convergo.Probe
}

func (c Config) withDefaults() (Config, error) {
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.Timeout = cmp.Or(c.Timeout, 20*time.Second)
	c.Patience = cmp.Or(c.Patience, time.Second)
	c.MostRetryAfter = cmp.Or(c.MostRetryAfter, time.Hour)
	c.Remember = cmp.Or(c.Remember, 10_000)
	if c.Closed.Base <= 0 && len(c.Closed.Schedule) == 0 {
		c.Closed = convergo.Backoff{Base: time.Second, Cap: time.Minute}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, c.validate()
}

func (c Config) validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("no endpoints (Config.Endpoints): name at least one")
	}
	if c.Concurrency < 1 || c.Timeout < 0 || c.Patience < 0 || c.Remember < 1 {
		return errors.New("concurrency, timeout, patience or remember (Config.Concurrency, Timeout, Patience, Remember) is negative")
	}
	names := map[string]bool{}
	for i, e := range c.Endpoints {
		switch {
		case e.Name == "":
			return fmt.Errorf("endpoint %d has no name", i+1)
		case names[e.Name]:
			return fmt.Errorf("two endpoints are named %q", e.Name)
		case len(e.Secrets) == 0 || slices.ContainsFunc(e.Secrets, Secret.IsZero):
			return fmt.Errorf("endpoint %s: a secret is missing or empty", e.Name)
		}
		names[e.Name] = true
		if err := c.validateURL(e.URL); err != nil {
			return fmt.Errorf("endpoint %s: %w", e.Name, err)
		}
		for _, s := range e.Subjects {
			if err := s.Validate(); err != nil {
				return fmt.Errorf("endpoint %s: %w", e.Name, err)
			}
		}
	}
	return nil
}

// validateURL shows nothing of the URL but its scheme.
func (c Config) validateURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return errors.New("its URL is not absolute: want https://host/path")
	case u.User != nil:
		return errors.New("its URL holds a user or password: they would show in logs; use the signature, or a token in the path")
	case u.Fragment != "":
		return errors.New("its URL has a fragment, which is never sent")
	case u.Scheme == "https" || u.Scheme == "http" && c.PlainHTTP:
		return nil
	case u.Scheme == "http":
		return errors.New("its URL is http: use https, or set plain-http (Config.PlainHTTP)")
	default:
		return fmt.Errorf("its URL has the scheme %q: want https", u.Scheme)
	}
}

func (c Config) unclaimed(e convergo.Event) bool {
	return slices.ContainsFunc(c.Unclaimed, func(s convergo.Subject) bool { return s.Covers(e.Topic, e.Type) })
}
