package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testlog"
)

func TestAPanicOfAHandlerIsLoggedAndAnswered(t *testing.T) {
	for path, started := range map[string]bool{"/before": false, "/after": true} {
		var log testlog.Lines
		server := httptest.NewServer(recovered(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})),
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if started {
					_, _ = io.WriteString(w, strings.Repeat("half ", 10_000))
				}
				panic("no year")
			})))
		answer, err := http.Get(server.URL + path)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		server.Close()
		if !strings.Contains(log.String(), "no year") || !strings.Contains(log.String(), path) {
			t.Errorf("%s: the log is %q", path, log.String())
		}
		if started && err == nil {
			t.Errorf("%s: half an answer looks whole", path)
		}
		if !started && (err != nil || answer.StatusCode != http.StatusInternalServerError) {
			t.Errorf("%s: %v, %v", path, answer, err)
		}
	}
}

func TestADeadEventInNanosecondsCanBeListed(t *testing.T) {
	e := convergo.Event{CreatedAt: convergo.FromMicros(time.Now().UnixNano())}
	for name, v := range map[string]any{"line": lineOf(deadItem{event: e}), "view": viewEvent(e)} {
		if text, err := json.Marshal(v); err != nil || !strings.Contains(string(text), `"9999-12-31T`) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}
