package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
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
}

// Closed is the error for an endpoint that is left alone for a while: it could not be reached, or asked for time. It says nothing
// about the event.
type Closed struct {
	Endpoint string
	Until    time.Time
	Cause    error
}

func (c *Closed) Error() string {
	return fmt.Sprintf("endpoint %s is left alone until %s: %v", c.Endpoint, c.Until.UTC().Format(time.RFC3339), c.Cause)
}

func (c *Closed) Unwrap() error { return c.Cause }

// RetryAt is when another attempt may succeed.
func (c *Closed) RetryAt() time.Time { return c.Until }

// state tells why the endpoint is not to be called now; nil when it is.
func (e *endpoint) state(now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.gone:
		return convergo.Permanent(fmt.Errorf("endpoint %s is disabled: it answered 410 Gone", e.Name))
	case now.Before(e.until):
		return &Closed{e.Name, e.until, e.why}
	}
	return nil
}

// unreachable tells whether nothing can be said to the endpoint now.
func (e *endpoint) unreachable(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone || now.Before(e.until)
}

// down leaves the endpoint alone for the time, or, without one, for as long as its failures in a row say.
func (b *Broker) down(e *endpoint, wait time.Duration, why error) error {
	now := b.cfg.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
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
	return &Closed{e.Name, e.until, e.why}
}

func (b *Broker) reached(e *endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fails > 0 {
		b.cfg.Log.Info("a webhook endpoint answers again", "endpoint", e.Name, "was down for", b.cfg.Now().Sub(e.since))
	}
	e.fails = 0
}

// deliver makes one attempt at one endpoint.
func (b *Broker) deliver(ctx context.Context, e *endpoint, event convergo.Event) error {
	if err := e.state(b.cfg.Now()); err != nil {
		return err
	}
	limit, fair := b.limit(ctx)
	request, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(request, http.MethodPost, e.URL, bytes.NewReader(event.Payload))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, inner(err))
	}
	sign(r.Header, event, b.cfg.Now(), e.Secrets)
	answer, err := b.client.Do(r)
	if err != nil {
		if ended := request.Err(); ctx.Err() != nil || ended != nil && !fair {
			return convergo.Unreachable(fmt.Errorf("endpoint %s: no answer: %w", e.Name, ended))
		}
		return b.down(e, 0, noDeadline(inner(err)))
	}
	// A little is read so that the connection can be used again; nobody's answer is worth more.
	_, _ = io.CopyN(io.Discard, answer.Body, 16<<10)
	_ = answer.Body.Close()
	b.cfg.Probe.At("broker.sent")
	return b.judge(e, answer)
}

// limit is how long a request may take: it ends before the call does, so that an endpoint which does not answer is told from a
// call that is over. fair tells whether the endpoint then had its time.
func (b *Broker) limit(ctx context.Context) (limit time.Duration, fair bool) {
	limit = b.cfg.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*4/5)
	}
	return limit, limit >= min(b.cfg.Timeout, enough)
}

// enough time for an endpoint that is well.
const enough = 5 * time.Second

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
