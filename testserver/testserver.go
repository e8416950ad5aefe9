// Package testserver starts the real servers that tests need: private folders, free ports, one server per test binary unless a
// test wants its own, and nothing left behind. What must be installed is installed by testserver/install, which `make servers`
// and the gate run; where a server is missing all the same, a test fails in CI and is skipped elsewhere, with the reason.
package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// ErrMissing is wrapped when a server's program is not installed.
var ErrMissing = errors.New("not installed: run `make servers` (Debian, as root)")

// Server is what a started server can do for its end.
type Server interface {
	Close() error // ends the processes and removes the folder
}

// Pool is the servers that the tests of one package share, by name. A package that has one needs
//
//	var servers testserver.Pool
//
//	func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
type Pool struct {
	mu      sync.Mutex
	servers map[string]func() (Server, error)
	order   []Server
}

// Run runs the tests, then ends the shared servers, and returns the exit code.
func (p *Pool) Run(m *testing.M) int {
	code := m.Run()
	if err := p.end(); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		code = max(code, 1)
	}
	return code
}

// Shared returns the pool's one server of that name, started by the first test that asks for it.
func Shared[S Server](t testing.TB, p *Pool, name string, open func() (S, error)) S {
	t.Helper()
	s, err := p.get(name, func() (Server, error) { return open() })()
	Must(t, err)
	return s.(S)
}

func (p *Pool) get(name string, open func() (Server, error)) func() (Server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	get, ok := p.servers[name]
	if ok {
		return get
	}
	get = sync.OnceValues(func() (Server, error) {
		s, err := open()
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.order = append(p.order, s)
		return s, nil
	})
	if p.servers == nil {
		p.servers = map[string]func() (Server, error){}
	}
	p.servers[name] = get
	return get
}

func (p *Pool) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failures []error
	for _, s := range slices.Backward(p.order) {
		failures = append(failures, s.Close())
	}
	return errors.Join(failures...)
}

// Own starts a server that this test may kill, pause or fill; it ends with the test.
func Own[S Server](t testing.TB, open func() (S, error)) S {
	t.Helper()
	s, err := open()
	Must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Must ends the test when a server could not be started. A missing one is a failure in CI and a reason to skip elsewhere.
func Must(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrMissing) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// prefix is what the names of all folders begin with.
const prefix = "cgo-"

// Folder makes a private folder with a short path (a unix socket's path holds 107 bytes only). It removes those that processes have
// left which were killed; their servers were ended with them (Linux).
func Folder(name string) (string, error) {
	sweep()
	dir, err := os.MkdirTemp("", prefix+name+"-")
	if err != nil {
		return "", err
	}
	return dir, errors.Join(own(dir), os.Chmod(dir, 0o755))
}

// Installed is the folder below which testserver/install puts what is no package: $CONVERGO_SERVERS, or convergo/servers in the
// user's cache folder.
func Installed(parts ...string) (string, error) {
	root := os.Getenv("CONVERGO_SERVERS")
	if root == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		root = filepath.Join(cache, "convergo", "servers")
	}
	path := filepath.Join(append([]string{root}, parts...)...)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(parts, "/"), ErrMissing)
	}
	return path, nil
}
