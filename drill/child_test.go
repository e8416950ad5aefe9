package drill

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// readyServer answers /readyz for children that cannot: it is not ready before a start, and then it is.
func readyServer(t *testing.T) string {
	t.Helper()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAPlatformThatDoesNotStartSaysWhy(t *testing.T) {
	var log bytes.Buffer
	c := &Child{Program: "/bin/sh", Args: []string{"-c", "echo the data folder is held by process 7 >&2; exit 3"}, URL: "http://127.0.0.1:1", Output: &log}
	err := c.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "held by process 7") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(log.String(), "held by process 7") {
		t.Errorf("the log says %q", log.String())
	}
	c = &Child{Program: "/no/such/program"}
	if err := c.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("%v", err)
	}
	if err := (&Child{}).Kill(); err == nil {
		t.Error("killed what was never started")
	}
	if err := (&Child{}).Stop(time.Second); err != nil {
		t.Errorf("stopped what was never started: %v", err)
	}
}

func TestAChildGetsOfTheEnvironmentWhatItIsMeantToGet(t *testing.T) {
	t.Setenv("CONVERGO_DRILL_TEST_SERVICES", "order")
	t.Setenv("OTHER_DRILL_TEST", "kept")
	var said bytes.Buffer
	c := &Child{Program: "/usr/bin/env", URL: "http://127.0.0.1:1", Output: &said, Without: "CONVERGO_", Env: []string{"CONVERGO_BROKER=nats://b"}}
	_ = c.Start(t.Context()) // it prints its environment and ends
	for words, want := range map[string]bool{"CONVERGO_DRILL_TEST_SERVICES": false, "OTHER_DRILL_TEST=kept": true, "CONVERGO_BROKER=nats://b": true} {
		if strings.Contains(said.String(), words) != want {
			t.Errorf("%q in the environment: want %t", words, want)
		}
	}
	said.Reset()
	c = &Child{Program: "/usr/bin/env", URL: "http://127.0.0.1:1", Output: &said}
	_ = c.Start(t.Context())
	if !strings.Contains(said.String(), "CONVERGO_DRILL_TEST_SERVICES=order") {
		t.Error("without an exception not all is passed on")
	}
}

func TestAPlatformThatIsNotReadyInTimeIsAnError(t *testing.T) {
	c := &Child{Program: "/bin/sleep", Args: []string{"60"}, URL: "http://127.0.0.1:1", StartTimeout: 100 * time.Millisecond}
	err := c.Start(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := c.Kill(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestAKilledPlatformIsGoneAndCanBeStartedAgain(t *testing.T) {
	c := &Child{Program: "/bin/sleep", Args: []string{"60"}, URL: readyServer(t)}
	for range 2 {
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.Died():
			t.Fatal("it died")
		default:
		}
		if err := c.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.Died()
	}
}

func TestAPlatformThatEndsByItselfIsAnErrorThatSaysHow(t *testing.T) {
	for name, end := range map[string]func(*Child) error{"killed": (*Child).Kill, "stopped": func(c *Child) error { return c.Stop(time.Second) }} {
		c := &Child{Program: "/bin/sh", Args: []string{"-c", "echo the lease is gone >&2; exit 3"}, URL: readyServer(t)}
		err := c.Start(t.Context())
		if err == nil { // it was seen ready before it ended
			<-c.Died()
			err = end(c)
		}
		if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "the lease is gone") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAnswerOfSomebodyElseIsNotTakenForThePlatforms(t *testing.T) {
	server := httptest.NewServer(status(200, ""))
	defer server.Close()
	err := (&Child{Program: "/bin/sleep", Args: []string{"60"}, URL: server.URL}).Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "somebody else answers") || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("%v", err)
	}
}

func TestStoppingTellsACleanEndFromAnother(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"clean":      {"trap 'exit 0' TERM; touch $0; while :; do sleep 0.05; done", ""},
		"with error": {"trap 'exit 4' TERM; touch $0; while :; do sleep 0.05; done", "exit status 4"},
		"never":      {"trap '' TERM; touch $0; while :; do sleep 0.05; done", "did not stop within"},
	} {
		t.Run(name, func(t *testing.T) {
			armed := t.TempDir() + "/armed" // there when the trap is set
			child := &Child{Program: "/bin/sh", Args: []string{"-c", c.script, armed}, URL: readyServer(t)}
			if err := child.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { _, err := os.Stat(armed); return err == nil })
			err := child.Stop(2 * time.Second)
			if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			<-child.Died()
		})
	}
}

// eventually polls until the condition holds.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("did not happen in time")
		}
		<-time.After(5 * time.Millisecond)
	}
}

const parentEnv = "CONVERGO_DRILL_TEST_PARENT"

// TestMain is also the drill that is killed by the test of it: a parent that starts a child, says its number and waits.
func TestMain(m *testing.M) {
	url := os.Getenv(parentEnv)
	if url == "" {
		os.Exit(m.Run())
	}
	c := &Child{Program: "/bin/sleep", Args: []string{"600"}, URL: url}
	if err := c.Start(context.Background()); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(strconv.Itoa(c.cmd.Process.Pid) + "\n")
	<-c.Died()
}
