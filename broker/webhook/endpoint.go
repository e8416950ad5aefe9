package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// endpoint is a subscriber and how it is doing.
type endpoint struct {
	Endpoint
	mu    sync.Mutex
	gone  bool      // it answered 410
	until time.Time // it is left alone before
	fails int       // in a row, by which it was not reached
	since time.Time // the first of them
	why   error     // of until

	slots  chan struct{} // one for each request on its way
	flying int           // requests on their way
	last   time.Time     // when it last answered, by the system's clock
	hushed bool          // it has answered nothing for as long as a call waits: no call waits until one of the requests has ended
}

// Closed is the error for an endpoint that is left alone for a while: it could not be reached, or asked for time. It says nothing
// about the event.
type Closed struct {
	Endpoint string
	Until    time.Time
	Cause    error
	underway bool // see Underway
}

func (c *Closed) Error() string {
	return fmt.Sprintf("endpoint %s is left alone until %s: %v", c.Endpoint, c.Until.UTC().Format(time.RFC3339), c.Cause)
}

func (c *Closed) Unwrap() error { return c.Cause }

// RetryAt is when another attempt may succeed.
func (c *Closed) RetryAt() time.Time { return c.Until }

// Underway tells that this event was sent and is not answered yet: another attempt sends nothing, it asks what has become of that.
func (c *Closed) Underway() bool { return c.underway }

// state tells why the endpoint is not to be called now; nil when it is.
func (e *endpoint) state(now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stateNow(now)
}

func (e *endpoint) stateNow(now time.Time) error {
	switch {
	case e.gone:
		return convergo.Permanent(fmt.Errorf("endpoint %s is disabled: it answered 410 Gone", e.Name))
	case now.Before(e.until):
		return &Closed{Endpoint: e.Name, Until: e.until, Cause: e.why}
	case e.fails > 0 && e.flying > 0:
		return &Closed{Endpoint: e.Name, Until: now.Add(time.Second), Cause: errHushed}
	}
	return nil
}

var errHushed = errors.New("it has not answered yet what is on its way")

// admit is state, and when that is nil notes a request on its way. One that was down gets a single request, a probe, until it has
// answered.
func (e *endpoint) admit(now time.Time) (probe bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err = e.stateNow(now); err == nil {
		e.flying++
	}
	return e.fails > 0, err
}

// quiet tells whether the endpoint has answered nothing for as long as a call waits: what it gets is not waited for.
func (e *endpoint) quiet() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hushed
}

// landed notes that a request has ended, however.
func (e *endpoint) landed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flying--
	e.hushed = false
}

// onItsWay is the error for an event whose request goes on, or, when f is nil, waits for others to end. The longer a request takes the
// less often it is worth asking for.
func (e *endpoint) onItsWay(now time.Time, f *flight) error {
	if f == nil {
		return &Closed{Endpoint: e.Name, Until: now.Add(time.Second), Cause: errHushed}
	}
	return &Closed{Endpoint: e.Name, Until: now.Add(max(time.Since(f.began)/2, time.Second)), Cause: errHushed, underway: true}
}

// hush notes that a call has waited since began, and tells whether the endpoint has answered nothing in that time.
func (e *endpoint) hush(began time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last.After(began) {
		return false
	}
	e.hushed = e.flying > 0
	return true
}

// unreachable tells whether nothing can be said to the endpoint now.
func (e *endpoint) unreachable(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone || now.Before(e.until) || e.fails > 0 && e.flying > 0
}

// down leaves the endpoint alone for the time, or, without one, for as long as its failures in a row say.
func (b *Broker) down(e *endpoint, wait time.Duration, why error) error {
	now := b.cfg.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
	if e.fails == 0 {
		e.since = now
		b.cfg.Log.Error("a webhook endpoint is down: its events wait and spend no attempts, for as long as the relay has patience",
			"endpoint", e.Name, "error", why)
		if b.cfg.OnDown != nil {
			b.cfg.OnDown(e.Name, why)
		}
	}
	if now.After(e.until) || e.fails == 0 { // several requests that fail together are one failure
		e.fails++
	}
	if wait <= 0 {
		wait = b.cfg.Closed.Delay(e.fails)
	}
	if until := now.Add(wait); until.After(e.until) {
		e.until, e.why = until, why
	}
	return &Closed{Endpoint: e.Name, Until: e.until, Cause: e.why}
}

func (b *Broker) reached(e *endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
	if e.fails > 0 {
		b.cfg.Log.Info("a webhook endpoint answers again", "endpoint", e.Name, "was down for", b.cfg.Now().Sub(e.since))
	}
	e.fails = 0
}

// request makes one attempt at one endpoint, and notes whether it was settled: ctx ends when nobody wants its answer any more.
func (b *Broker) request(ctx context.Context, e *endpoint, event convergo.Event) error {
	timed, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	var written atomic.Bool
	traced := httptrace.WithClientTrace(timed, &httptrace.ClientTrace{WroteHeaders: func() { written.Store(true) }})
	r, err := http.NewRequestWithContext(traced, http.MethodPost, e.URL, bytes.NewReader(event.Payload))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, inner(err))
	}
	before, _ := b.unsettled.of(event, e.Name)
	sign(r.Header, event, b.cfg.Now(), e.Secrets, before+1)
	answer, err := b.client.Do(r)
	if err != nil {
		if written.Load() {
			b.count(event, e)
		}
		if ctx.Err() != nil {
			return convergo.Unreachable(fmt.Errorf("endpoint %s: no answer: %w", e.Name, context.Cause(ctx)))
		}
		return b.down(e, 0, noDeadline(inner(err)))
	}
	// A little is read so that the connection can be used again; nobody's answer is worth more.
	_, _ = io.CopyN(io.Discard, answer.Body, 16<<10)
	_ = answer.Body.Close()
	b.cfg.Probe.At("broker.sent")
	if code := answer.StatusCode; code >= http.StatusBadGateway && code <= http.StatusGatewayTimeout {
		b.count(event, e) // a gateway answers so for a process that died
	} else {
		b.unsettled.drop(event, e.Name)
	}
	return b.judge(e, answer)
}

// count notes that the endpoint was told of the event and has not settled it: its process may have died of it.
func (b *Broker) count(event convergo.Event, e *endpoint) {
	b.unsettled.put(event, e.Name, func(n int) int { return n + 1 })
}

// inner takes the URL, which may hold a token, out of an error of the client.
func inner(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// noDeadline tells a timeout of ours in words: the relay would take the context's error for its own.
func noDeadline(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

// judge makes an error of an answer.
func (b *Broker) judge(e *endpoint, answer *http.Response) error {
	wait := retryAfter(answer.Header.Get("Retry-After"), b.cfg.Now(), b.cfg.MostRetryAfter)
	failed := fmt.Errorf("endpoint %s answered %d", e.Name, answer.StatusCode)
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		b.reached(e)
		return nil
	case code == http.StatusGone:
		b.disable(e)
		return convergo.Permanent(fmt.Errorf("endpoint %s answered 410 Gone and is disabled now", e.Name))
	case code == http.StatusTooManyRequests, code >= http.StatusBadGateway && code <= http.StatusGatewayTimeout,
		wait > 0 && (code == http.StatusRequestTimeout || code >= 500):
		return b.down(e, wait, failed)
	default: // a redirect is not followed
		b.reached(e)
		return failed
	}
}

func (b *Broker) disable(e *endpoint) {
	e.mu.Lock()
	first := !e.gone
	e.gone = true
	e.mu.Unlock()
	if !first {
		return
	}
	b.cfg.Log.Error("a webhook endpoint answered 410 Gone and gets nothing more", "endpoint", e.Name)
	if b.cfg.OnGone != nil {
		b.cfg.OnGone(e.Name)
	}
}

// retryAfter reads both forms of the header; 0 when there is none that can be read.
func retryAfter(text string, now time.Time, most time.Duration) time.Duration {
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		if seconds > int64(most/time.Second) {
			return most
		}
		return max(time.Duration(seconds)*time.Second, 0)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), most)
	}
	return 0
}
