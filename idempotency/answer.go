package idempotency

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"
)

var errTooLong = errors.New("answer too long for an idempotent request")

// answer is the http.ResponseWriter of the handler. It keeps everything back until the transaction has committed: no
// byte of a 2xx leaves before what it tells of is true.
type answer struct {
	to       http.ResponseWriter // for deadlines only
	header   http.Header
	sent     http.Header // the header as it was at the first WriteHeader
	status   int         // 0 until the first WriteHeader or Write
	body     []byte
	most     int64
	overflow bool
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status != 0 || status < 200 { // informational answers are not kept
		return
	}
	a.status = status
	a.sent = a.header.Clone()
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if int64(len(a.body)+len(p)) > a.most {
		a.overflow = true
		return 0, errTooLong
	}
	a.body = append(a.body, p...)
	return len(p), nil
}

// Flush does what a handler may count on, the headers are final; nothing leaves before the commit.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

// SetReadDeadline and SetWriteDeadline reach the connection through http.ResponseController.
func (a *answer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(a.to).SetReadDeadline(t)
}

// SetWriteDeadline is like SetReadDeadline.
func (a *answer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(a.to).SetWriteDeadline(t)
}

// kept are the headers that a replay repeats; the others belong to the one connection or moment.
var kept = [...]string{"Content-Type", "Location"}

func (a *answer) record() map[string]string {
	h := map[string]string{}
	for _, name := range kept {
		if v := a.sent.Get(name); v != "" {
			h[name] = v
		}
	}
	return h
}

// send writes the kept answer to the client.
func (a *answer) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.sent)
	write(w, a.status, a.body)
}

func (r Record) replay(w http.ResponseWriter) {
	for name, value := range r.Header {
		w.Header().Set(name, value)
	}
	w.Header().Set(HeaderReplayed, "true")
	write(w, r.Status, r.Body)
}

func write(w http.ResponseWriter, status int, body []byte) {
	if status != http.StatusNoContent && status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // the client is gone: it will ask again and get a replay
	}
}
