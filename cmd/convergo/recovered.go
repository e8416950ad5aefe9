package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/convergo/convergo/trade"
)

// headed remembers whether the header of an answer is out.
type headed struct {
	http.ResponseWriter
	out bool
}

func (h *headed) WriteHeader(status int) {
	h.out = h.out || status >= http.StatusOK
	h.ResponseWriter.WriteHeader(status)
}

func (h *headed) Write(b []byte) (int, error) {
	h.out = true
	return h.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (h *headed) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// recovered logs a panic of next at error. It answers 500 when the header is not out, and breaks the connection when it is: the
// client must not take half an answer for a whole one.
func recovered(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := &headed{ResponseWriter: w}
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			err, _ := p.(error)
			aborted := errors.Is(err, http.ErrAbortHandler)
			if !aborted {
				log.Error("a request's handler panicked", "method", r.Method, "path", r.URL.Path,
					"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			if h.out || aborted {
				panic(http.ErrAbortHandler)
			}
			trade.WriteProblem(w, trade.NewProblem(http.StatusInternalServerError, "", "the request failed inside", "see the log"))
		}()
		next.ServeHTTP(h, r)
	})
}
