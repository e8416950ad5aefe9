package simulate

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/convergo/convergo/trade/channel"
)

const maxBody = 64 << 10

// answer is what a request gets: a status and a JSON body.
type answer struct {
	status int
	body   any
}

// refusalError is an answer that refuses; nothing was changed.
type refusalError struct {
	status  int
	problem channel.Problem
}

func (e *refusalError) Error() string { return e.problem.Code + ": " + e.problem.Detail }

func refuse(status int, code, detail string) error {
	return &refusalError{status, channel.Problem{Code: code, Detail: detail}}
}

type handler func(r *http.Request, body []byte) (answer, error)

// plain serves without faults.
func (w *World) plain(h handler) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
		if err != nil {
			w.fail(rw, refuse(http.StatusRequestEntityTooLarge, channel.CodeInvalid, "body too long or broken"))
			return
		}
		a, err := h(r, body)
		if err != nil {
			w.fail(rw, err)
			return
		}
		write(rw, a.status, a.body)
	}
}

// unreliable serves with errors before the work and lost answers after it.
func (w *World) unreliable(h handler) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		lost := false
		w.plain(func(r *http.Request, body []byte) (answer, error) {
			if w.dice.roll(w.dice.current().Errors) {
				w.countAlone(r.Context(), faultError)
				return answer{}, refuse(http.StatusServiceUnavailable, channel.CodeUnavailable, "try again later")
			}
			a, err := h(r, body)
			if err == nil && r.Method == http.MethodPost && w.dice.roll(w.dice.current().LostAnswers) {
				w.countAlone(r.Context(), faultLostAnswer)
				lost = true
				hangUp(rw, r, w.dice.current().Hang)
			}
			return a, err
		})(unless{rw, &lost}, r)
	}
}

// known serves who has the token.
func (w *World) known(h handler) http.HandlerFunc {
	want := sha256.Sum256([]byte("Bearer " + w.cfg.Token))
	return w.unreliable(func(r *http.Request, body []byte) (answer, error) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if w.cfg.Token != "" && subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			return answer{}, refuse(http.StatusUnauthorized, channel.CodeUnauthorized, "the bearer token is not known")
		}
		return h(r, body)
	})
}

// signed serves what the merchant signed.
func (w *World) signed(h handler) http.HandlerFunc {
	return w.unreliable(func(r *http.Request, body []byte) (answer, error) {
		if _, err := channel.VerifyRequest(r, body, w.cfg.Now(), w.cfg.Secrets...); err != nil {
			return answer{}, refuse(http.StatusUnauthorized, channel.CodeUnauthorized, err.Error())
		}
		return h(r, body)
	})
}

// unless swallows an answer that was lost on the way.
type unless struct {
	http.ResponseWriter
	lost *bool
}

// Unwrap lets http.ResponseController find the connection.
func (u unless) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u unless) WriteHeader(status int) {
	if !*u.lost {
		u.ResponseWriter.WriteHeader(status)
	}
}

func (u unless) Write(b []byte) (int, error) {
	if *u.lost {
		return len(b), nil
	}
	return u.ResponseWriter.Write(b)
}

// hangUp breaks the connection without an answer; where it cannot be taken over, the caller gets a 504.
func hangUp(rw http.ResponseWriter, r *http.Request, wait time.Duration) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		rw.WriteHeader(http.StatusGatewayTimeout)
		return
	}
	_ = conn.Close()
}

func (w *World) fail(rw http.ResponseWriter, err error) {
	var refused *refusalError
	if errors.As(err, &refused) {
		write(rw, refused.status, refused.problem)
		return
	}
	w.cfg.Log.Error("simulated world: request failed", "error", err)
	write(rw, http.StatusInternalServerError, channel.Problem{Code: channel.CodeUnavailable, Detail: "internal error"})
}

func write(rw http.ResponseWriter, status int, body any) {
	if text, ok := body.(csvText); ok {
		rw.Header().Set("Content-Type", "text/csv; charset=utf-8")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, string(text))
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body) // a caller that is gone cannot be told
}

// read decodes a request strictly.
func read(body []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return refuse(http.StatusBadRequest, channel.CodeInvalid, "body: "+err.Error())
	}
	return nil
}
