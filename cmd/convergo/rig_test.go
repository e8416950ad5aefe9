package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

func TestMain(m *testing.M) {
	dir, err := testserver.Folder("program")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built := program
	built.path = filepath.Join(dir, "convergo")
	code := servers.Run(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// program is convergo as a program of its own, built when a test first needs it. Without the race detector: what runs in
// this process has it, what runs as a child is there to be killed.
var program = &struct {
	once sync.Once
	path string
	err  error
}{}

func programFile(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		text, err := os.ReadFile("../../deploy/Containerfile")
		if err != nil {
			program.err = err
			return
		}
		line := regexp.MustCompile(`RUN (\w+=\S+) go build (.+) -o /convergo \./cmd/convergo`).FindStringSubmatch(string(text))
		if line == nil {
			program.err = errors.New("the Containerfile does not build ./cmd/convergo")
			return
		}
		build := exec.Command("sh", "-c", line[1]+" exec go build -buildvcs=false -o '"+program.path+"' "+line[2]+" .") // as in the container
		text, err = build.CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("go build: %w: %s", err, text)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// eventually polls until the condition holds, and fails the test when it does not within the time.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", within, what)
		case <-poll.C:
		}
	}
}

// ranProgram is a run of the whole program inside this process.
type ranProgram struct {
	out, err testlog.Lines
	code     int
}

// runProgram runs the program to its end.
func runProgram(ctx context.Context, args ...string) *ranProgram {
	r := &ranProgram{}
	r.code = run(ctx, args, streams{out: &r.out, err: &r.err})
	return r
}

// refused runs a command that must fail with this exit code and say all of that.
func refused(t *testing.T, code int, says []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := runProgram(ctx, args...)
	if r.code != code {
		t.Errorf("%v: exit code %d, want %d; %s", args, r.code, code, r.err.String())
	}
	for _, words := range says {
		if !strings.Contains(r.err.String(), words) {
			t.Errorf("%v: %q does not say %q", args, r.err.String(), words)
		}
	}
	if lines := strings.Count(r.err.String(), "\n"); lines > 3 {
		t.Errorf("%v: says too much:\n%s", args, r.err.String())
	}
}

// finished is a run of the program as a child.
type finished struct {
	out, err string
	code     int
}

func runChild(ctx context.Context, t *testing.T, args ...string) *finished {
	t.Helper()
	cmd := exec.CommandContext(ctx, programFile(t), args...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return &finished{out.String(), text.String(), cmd.ProcessState.ExitCode()}
}

func textOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
