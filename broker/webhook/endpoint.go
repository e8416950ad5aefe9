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

// close leaves the endpoint alone for the time, or, without one, for as long as its failures in a row say.
func (e *endpoint) close(now time.Time, wait time.Duration, backoff convergo.Backoff, why error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.After(e.until) || e.fails == 0 { // several requests that fail together are one failure
		e.fails++
	}
	if wait <= 0 {
		wait = backoff.Delay(e.fails)
	}
	if until := now.Add(wait); until.After(e.until) {
		e.until, e.why = until, why
	}
	return &Closed{e.Name, e.until, e.why}
}

func (e *endpoint) reached() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fails = 0
}

// deliver makes one attempt at one endpoint.
func (b *Broker) deliver(ctx context.Context, e *endpoint, event convergo.Event) error {
	if err := e.state(b.cfg.Now()); err != nil {
		return err
	}
	request, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(request, http.MethodPost, e.URL, bytes.NewReader(event.Payload))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Name, inner(err))
	}
	sign(r.Header, event, b.cfg.Now(), e.Secrets)
	answer, err := b.client.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return convergo.Unreachable(fmt.Errorf("endpoint %s: no answer: %w", e.Name, ctx.Err()))
		}
		return e.close(b.cfg.Now(), 0, b.cfg.Closed, noDeadline(inner(err)))
	}
	// A little is read so that the connection can be used again; nobody's answer is worth more.
	_, _ = io.CopyN(io.Discard, answer.Body, 16<<10)
	_ = answer.Body.Close()
	b.cfg.Probe.At("broker.sent")
	return b.judge(e, answer)
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
	now := b.cfg.Now()
	wait := retryAfter(answer.Header.Get("Retry-After"), now, b.cfg.MostRetryAfter)
	failed := fmt.Errorf("endpoint %s answered %d", e.Name, answer.StatusCode)
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		e.reached()
		return nil
	case code == http.StatusGone:
		b.disable(e)
		return convergo.Permanent(fmt.Errorf("endpoint %s answered 410 Gone and is disabled now", e.Name))
	case code == http.StatusTooManyRequests, wait > 0 && (code == http.StatusRequestTimeout || code >= 500):
		return e.close(now, wait, b.cfg.Closed, failed)
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code >= 500, code < 400: // a redirect is not followed
		e.reached()
		return failed
	default:
		e.reached()
		return convergo.Permanent(failed)
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
