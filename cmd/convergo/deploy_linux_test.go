package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/convergo/convergo/testlog"
)

// emptyRoot is the container's file system: the program, built with the Containerfile's flags, and the folders that it gives to nobody.
type emptyRoot struct {
	t    *testing.T
	path string
}

const nobody = 65532

func newEmptyRoot(t *testing.T) emptyRoot {
	t.Helper()
	r := emptyRoot{t, t.TempDir()}
	text, err := os.ReadFile(programFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.path, "convergo"), text, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for _, folder := range []string{"data", "tmp"} {
		path := filepath.Join(r.path, folder)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			continue
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// command is the program as the container runs it: its root is the empty one and it is nobody. Only root can arrange that; another user
// runs it where it is.
func (r emptyRoot) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/convergo", args...)
	cmd.Env = []string{"CONVERGO_DATA=/data", "CONVERGO_ADDR=127.0.0.1:0"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.path, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if os.Geteuid() != 0 {
		cmd.Path, cmd.SysProcAttr, cmd.Dir = filepath.Join(r.path, "convergo"), nil, r.path
		cmd.Env[0] = "CONVERGO_DATA=" + filepath.Join(r.path, "data")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second // what Kubernetes, compose and systemd wait
	return cmd
}

// From the container: static, nobody, without a shell, a library, a certificate or a time zone beside it.
func TestTheProgramRunsAloneInAnEmptyRootAsNobody(t *testing.T) {
	t.Parallel()
	root := newEmptyRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, log testlog.Lines
	serve := root.command(ctx, "serve")
	serve.Stdout, serve.Stderr = &out, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	address := regexp.MustCompile(`on http://(127\.0\.0\.1:\d+)`)
	eventually(t, 50*time.Second, "it says where it serves: "+log.String(), func() bool { return address.MatchString(out.String()) })
	at := address.FindStringSubmatch(out.String())[1]
	for _, path := range []string{"/readyz", "/healthz", "/flowz"} {
		probe := root.command(ctx, "probe", "--addr", at, path)
		if text, err := probe.CombinedOutput(); err != nil || !strings.Contains(string(text), "status") {
			t.Errorf("%s: %v: %s", path, err, text)
		}
	}
	cancel() // SIGTERM
	if err := <-ended; serve.ProcessState.ExitCode() != 0 || !strings.Contains(log.String(), "stopped cleanly") {
		t.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
	entries, err := os.ReadDir(root.path)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v: it wrote elsewhere than to /data and /tmp", entries, err)
	}
	if text, err := root.command(t.Context(), "probe", "--addr", at).CombinedOutput(); err == nil {
		t.Errorf("what has stopped is ready: %s", text)
	}
}

func TestAProbeSaysNoWhenTheProcessDoes(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 20\r\nConnection: close\r\n\r\nthe broker is silent")
			_ = conn.Close()
		}
	}()
	refused(t, 1, []string{"503", "the broker is silent"}, "probe", "--addr", listener.Addr().String())
	refused(t, 1, []string{"begin with a '/'"}, "probe", "--addr", listener.Addr().String(), "readyz")
	refused(t, 1, nil, "probe", "--addr", "not an address")
}

func TestAProbeAsksTheProcessItselfAndNotAProxyOrWhomItNames(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "well")
	}))
	t.Cleanup(other.Close)
	here := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	t.Cleanup(here.Close)
	refused(t, 1, []string{"302"}, "probe", "--addr", here.Listener.Addr().String())
	t.Setenv("HTTP_PROXY", other.URL)
	proxied := runChild(t.Context(), t, "probe", "--addr", "nobody.invalid:8080") // a process of its own: Go reads the variable once
	if asked.Load() != 0 || proxied.code != 1 || !strings.Contains(proxied.err, "--addr") {
		t.Errorf("somebody else was asked %d times: %d %s", asked.Load(), proxied.code, proxied.err)
	}
}

func TestSecretsAreMadeOnceForAllProcesses(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	file := filepath.Join(dir, secretsFile)
	for range 2 {
		if r := runProgram(t.Context(), "secrets", "--data", dir); r.code != 0 || r.out.String() != file+"\n" || r.err.String() != "" {
			t.Fatalf("%d: %s%s", r.code, r.out.String(), r.err.String())
		}
	}
	first := textOf(t, file)
	if r := runProgram(t.Context(), "secrets", "--data", dir); r.code != 0 || textOf(t, file) != first {
		t.Error("secrets that are there are changed")
	}
	if _, err := readSecrets(file); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// systemd's own opinion, where it is installed: the units are valid, and what they may do is little.
func TestSystemdTakesTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "" {
		return // it is no part of every Linux; TestTheUnitsRunCommandsThatExist reads them everywhere
	} else if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, instance := range map[string]string{"convergo@.service": "convergo@order.service", "convergo-relay@.service": "convergo-relay@shop.service"} {
		text := strings.ReplaceAll(textOf(t, filepath.Join("../../deploy/systemd", name)), "/usr/local/bin/convergo", programFile(t))
		unit := filepath.Join(dir, instance)
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", unit).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
