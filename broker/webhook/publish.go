package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Broker posts events to endpoints. It is a relay.Publisher; its methods are safe for concurrent use.
type Broker struct {
	cfg       Config
	endpoints []*endpoint
	client    *http.Client
	transport *http.Transport
	enabled   int // endpoints
	partial   partial
	flights   shelf[*flight] // requests that nobody waits for
	unsettled shelf[int]     // how often an endpoint was told of an event and did not settle it
	life      context.Context
	end       context.CancelCauseFunc
	flying    sync.WaitGroup
}

// Open checks the configuration. It calls no endpoint.
func Open(_ context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	b := &Broker{cfg: cfg, partial: partial{most: cfg.Remember, have: map[convergo.Digest]map[string]bool{}}}
	b.flights.most, b.unsettled.most = cfg.Remember, cfg.Remember
	b.life, b.end = context.WithCancelCause(context.Background())
	for _, e := range cfg.Endpoints {
		b.endpoints = append(b.endpoints, &endpoint{Endpoint: e, slots: make(chan struct{}, cfg.Concurrency)})
		if !e.Disabled {
			b.enabled++
		}
	}
	dialer := &net.Dialer{Timeout: cfg.Timeout, Control: newGuard(cfg.Allow).control}
	b.transport = &http.Transport{
		// No Proxy: one from the environment would be called instead of the address that was checked.
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: cfg.Timeout, ResponseHeaderTimeout: cfg.Timeout, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: cfg.Concurrency, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
	b.client = &http.Client{
		Transport:     b.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return b, nil
}

// Close ends requests that are on their way, and idle connections. No Publish may be under way or follow.
func (b *Broker) Close() {
	b.end(errClosed)
	b.flying.Wait()
	b.transport.CloseIdleConnections()
}

// Publish implements relay.Publisher. Aggregates go side by side, Config.Concurrency requests to an endpoint at most; an aggregate's
// events one after another, each to all its endpoints before the next. No endpoint is waited for longer than Config.Patience: a
// request that is not answered by then goes on, its event fails with *Closed, and when it is tried again the answer counts.
//
// Verdicts: 2xx is success. An endpoint that cannot be reached, does not answer in time, answers 429, 502, 503 or 504, or asks for time
// with Retry-After is down: it is left alone for a while, its events fail at once with *Closed and wait (convergo.Unavailable),
// and the others go on. While no endpoint at all can be reached that is an outage (convergo.Unreachable). Any other answer, 4xx and
// 5xx and redirects, is about the event and spends an attempt. After a 410 the endpoint gets nothing more: its events are
// permanent failures (they can be redriven once the endpoint is configured anew).
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	errs := make([]error, len(events))
	queues := map[convergo.Aggregate][]int{}
	var order []convergo.Aggregate
	for i, e := range events {
		if queues[e.Aggregate] == nil {
			order = append(order, e.Aggregate)
		}
		queues[e.Aggregate] = append(queues[e.Aggregate], i)
	}
	patient, cancel := b.patience(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, a := range order {
		all.Go(func() { b.inOrder(ctx, patient, events, queues[a], errs) })
	}
	all.Wait()
	return errs
}

// inOrder publishes one aggregate's events until one fails. The later ones share an outage; another verdict is not theirs.
func (b *Broker) inOrder(ctx, patient context.Context, events []convergo.Event, queue []int, errs []error) {
	for n, i := range queue {
		e := events[i]
		err := b.publish(ctx, patient, e)
		if err == nil {
			continue
		}
		errs[i] = fmt.Errorf("publish %s: %w", e.Key, err)
		for _, j := range queue[n+1:] {
			errs[j] = fmt.Errorf("publish %s: not sent, because %s before it failed", events[j].Key, e.Key)
			if convergo.VerdictOf(err) == convergo.Outage {
				errs[j] = convergo.Unreachable(errs[j])
			}
		}
		return
	}
}

func (b *Broker) publish(ctx, patient context.Context, e convergo.Event) error {
	if err := ctx.Err(); err != nil {
		return convergo.Unreachable(fmt.Errorf("not sent: %w", err))
	}
	if n := len(e.Payload); n > convergo.MaxPayloadBytes {
		return convergo.Permanent(fmt.Errorf("payload too large for the broker: %d > %d bytes", n, convergo.MaxPayloadBytes))
	}
	if err := e.Validate(); err != nil {
		return convergo.Permanent(err)
	}
	wanted := false
	var targets []*endpoint
	for _, p := range b.endpoints {
		if p.wants(e) {
			wanted = true
			if !p.Disabled {
				targets = append(targets, p)
			}
		}
	}
	if !wanted && !b.cfg.unclaimed(e) {
		return convergo.Unavailable(fmt.Errorf("unroutable: no endpoint wants %s: add one, or name the subject in --unclaimed (Config.Unclaimed)",
			convergo.Subject{Topic: e.Topic, Type: e.Type}))
	}
	return b.toAll(ctx, patient, targets, e)
}

// toAll delivers to the endpoints that are not known to have the event, side by side.
func (b *Broker) toAll(ctx, patient context.Context, targets []*endpoint, e convergo.Event) error {
	have := b.partial.of(e)
	errs := make([]error, len(targets))
	if len(targets) == 1 {
		if !have[targets[0].Name] {
			errs[0] = b.deliver(ctx, patient, targets[0], e)
		}
	} else {
		var all sync.WaitGroup
		for i, p := range targets {
			if !have[p.Name] {
				all.Go(func() { errs[i] = b.deliver(ctx, patient, p, e) })
			}
		}
		all.Wait()
	}
	done := map[string]bool{}
	for i, p := range targets {
		if errs[i] == nil {
			done[p.Name] = true
		}
	}
	if len(done) == len(targets) {
		b.partial.forget(e)
		return nil
	}
	b.partial.note(e, done)
	return b.verdict(errs)
}

// verdict of an event that some endpoints have not. While any of them may still take it, it is not permanent.
func (b *Broker) verdict(errs []error) error {
	all := errors.Join(errs...)
	permanent, closed, refused, underway := true, false, false, true
	for _, err := range errs {
		if err == nil {
			continue
		}
		if convergo.VerdictOf(err) == convergo.Outage {
			return convergo.Unreachable(all) // the call's own time was over
		}
		var c *Closed
		down, gone := errors.As(err, &c), convergo.VerdictOf(err) == convergo.Park
		permanent, closed, refused = permanent && gone, closed || down, refused || !down && !gone
		underway = underway && down && c.underway
	}
	switch {
	case permanent:
		return convergo.Permanent(all)
	case closed && b.allUnreachable():
		return convergo.Unreachable(all)
	case closed && !refused:
		return convergo.Unavailable(again{all, underway})
	default:
		return again{cause: all}
	}
}

// again hides verdicts of single endpoints inside a joined error: together they have none.
type again struct {
	cause    error
	underway bool // at each endpoint that has not answered
}

func (a again) Error() string { return a.cause.Error() }

// Underway is that of Closed, for all endpoints that do not have the event yet.
func (a again) Underway() bool { return a.underway }

// RetryAt is the time that the first of the endpoints which are left alone is left alone until: the others refuse by themselves. Zero: none is.
func (a again) RetryAt() time.Time {
	var c *Closed
	if errors.As(a.cause, &c) {
		return c.Until
	}
	return time.Time{}
}

func (b *Broker) allUnreachable() bool {
	now := b.cfg.Now()
	for _, p := range b.endpoints {
		if !p.Disabled && !p.unreachable(now) {
			return false
		}
	}
	return true
}

// Gone are the endpoints that answered 410 since Open.
func (b *Broker) Gone() []string {
	var names []string
	for _, p := range b.endpoints {
		p.mu.Lock()
		if p.gone {
			names = append(names, p.Name)
		}
		p.mu.Unlock()
	}
	return names
}

// Check tells settings under which something is not delivered although it counts as sent.
func (b *Broker) Check(context.Context) ([]relay.Warning, error) {
	var all []relay.Warning
	for _, p := range b.endpoints {
		if p.Disabled {
			all = append(all, relay.Warning{
				Setting: "endpoint " + p.Name, Value: "disabled", Want: "enabled", Loses: "its events: they count as sent",
			})
		}
	}
	for _, s := range b.cfg.Unclaimed {
		all = append(all, relay.Warning{
			Setting: "unclaimed (Config.Unclaimed) " + s.String(), Value: "needs no endpoint", Want: "an endpoint",
			Loses: "events of " + s.String() + " that no endpoint wants",
		})
	}
	return all, nil
}

// Durability says what a 2xx answer is worth.
func (b *Broker) Durability() string {
	return "An event is sent when every endpoint has answered 2xx: what that is worth is each subscriber's affair."
}
