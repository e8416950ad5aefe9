package main

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/convergo/convergo/trade"
)

const (
	lookAgain  = 2 * time.Second // how long a database is asked whether it is there
	retryAfter = 2 * time.Second // what a client is told to wait
)

// outages answers a read that failed, a GET of which the answer is 500, with 503 when the database does not answer: there is nothing wrong,
// and it may be asked again soon. A read has no Idempotency-Key to be sent again with. there asks the database.
func outages(there func(ctx context.Context) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		answer := &unlessFailed{ResponseWriter: w}
		next.ServeHTTP(answer, r)
		if !answer.failed {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), lookAgain)
		defer cancel()
		if there(ctx) == nil {
			trade.WriteProblem(w, trade.NewProblem(http.StatusInternalServerError, "", "something went wrong on our side", "try again, or tell the operator"))
			return
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		trade.WriteProblem(w, trade.NewProblem(http.StatusServiceUnavailable, "", "the database does not answer", "wait as Retry-After says, then ask again"))
	})
}

// unlessFailed is an answer of which a 500 is kept back.
type unlessFailed struct {
	http.ResponseWriter
	failed bool
}

// WriteHeader implements http.ResponseWriter.
func (u *unlessFailed) WriteHeader(status int) {
	if u.failed = u.failed || status == http.StatusInternalServerError; !u.failed {
		u.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (u *unlessFailed) Write(p []byte) (int, error) {
	if u.failed {
		return len(p), nil
	}
	return u.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (u *unlessFailed) Unwrap() http.ResponseWriter { return u.ResponseWriter }
