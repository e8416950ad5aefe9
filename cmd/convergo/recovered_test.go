package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
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

// JSON cannot tell a year of five digits. What cannot be told must not keep the rest from being read.
func TestWhatIsInNanosecondsCanBeListed(t *testing.T) {
	at := convergo.FromMicros(time.Now().UnixNano())
	e := convergo.Event{CreatedAt: at}
	for name, v := range map[string]any{"line": lineOf(deadItem{event: e}), "view": viewEvent(e), "backlog": viewQueue(ops.Queue{Count: 1, Since: at})} {
		if text, err := json.Marshal(v); err != nil || !strings.Contains(string(text), `"9999-12-31T`) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

// The first event of the aggregate is dead, the second waits behind it, and it is the oldest that waits.
func TestTheBacklogAndTheStoryOfEventsInNanosecondsCanBeRead(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), quickly()...)
	store := must[*opened](t)(openStore(t.Context(), "risk", "sqlite:"+filepath.Join(p.dir, "risk.db"), nil, discarded()))
	defer func() { _ = store.Close() }()
	if err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		for n := 1; n <= 2; n++ {
			e := convergo.Event{
				Key: convergo.KeyFor("RiskApproved", "O-1", int64(n)), MessageID: fmt.Sprint("m-", n), Topic: "risk", Type: "RiskApproved", Payload: []byte("{}"),
				Aggregate: convergo.Aggregate{Type: "risk", ID: "O-1"}, Version: int64(n), CreatedAt: convergo.FromMicros(time.Now().UnixNano()),
			}
			if _, err := store.Insert(ctx, tx, []convergo.Event{e}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "one is dead and one waits", func() bool {
		b, err := store.Backlog(t.Context(), time.Now())
		return err == nil && b.Dead.Count == 1 && b.Waiting.Count == 1
	})
	var answer json.RawMessage
	for _, path := range []string{"/ops/risk/backlog", "/risk/story/O-1"} {
		p.operator(http.MethodGet, path, "", nil, &answer)
		if !strings.Contains(string(answer), "9999-12-31T") {
			t.Errorf("%s: %s", path, answer)
		}
	}
}
