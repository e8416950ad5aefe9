package testserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo/internal/freeport"
)

// Redis is a Redis server that syncs every write to disk before it answers.
type Redis struct {
	*Process
	Addr string // "127.0.0.1:port"
	dir  string
}

// OpenRedis starts a server: append-only file, synced always, no eviction, no password.
func OpenRedis() (*Redis, error) { return openRedis(nil) }

// OpenRedisWith is OpenRedis with more options, which come last and so win: {"--appendonly", "no"}. A server that asks for a
// password or for TLS on its only port cannot be waited for; add a user, or a TLS port beside the plain one.
func OpenRedisWith(options ...string) func() (*Redis, error) {
	return func() (*Redis, error) { return openRedis(options) }
}

func openRedis(options []string) (*Redis, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", ErrMissing)
	}
	var failures []error
	for range 3 { // the port may be taken between the look and the start
		r, err := startRedis(program, options)
		if err == nil {
			return r, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func startRedis(program string, options []string) (*Redis, error) {
	dir, err := Folder("redis")
	if err != nil {
		return nil, err
	}
	port, err := freeport.Next()
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--daemonize", "no", "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
	}, options...)
	p, err := start(dir, "redis", Command{Path: program, Args: args})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r := &Redis{Process: p, Addr: fmt.Sprint("127.0.0.1:", port), dir: dir}
	if err := r.Ready(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Ready waits until the server answers and is the one that was started here.
func (r *Redis) Ready() error {
	client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }() // what counts is known by then
	return r.Await(30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		dir, err := client.ConfigGet(ctx, "dir").Result()
		if err != nil {
			return err
		}
		if dir["dir"] != r.dir {
			return fmt.Errorf("%s is another server, with its data in %s", r.Addr, dir["dir"])
		}
		return client.Ping(ctx).Err()
	})
}

// Restart starts the server again after it was stopped or killed, on the same data and port.
func (r *Redis) Restart() error {
	if err := r.Start(); err != nil {
		return err
	}
	return r.Ready()
}

// Close ends the server and removes its data.
func (r *Redis) Close() error {
	return errors.Join(r.Stop(syscall.SIGTERM, 5*time.Second), os.RemoveAll(r.dir))
}

// Sentinel is a Redis Sentinel.
type Sentinel struct {
	*Process
	Addr string // "127.0.0.1:port"
	dir  string
}

// SentinelOptions say what a Sentinel watches, and how it is reached.
type SentinelOptions struct {
	Watch          map[string]string // host:port of each primary, by the name that it goes by
	Password       string            // that the Sentinel asks its own clients for; default none
	ServerPassword string            // that the servers ask for; default none
	// TLS has it listen, and reach the servers, under TLS only. It is asked with it whether it is up; what it shows itself is in Lines.
	TLS   *tls.Config
	Lines []string // more of its configuration
}

// OpenSentinel starts a Sentinel on 127.0.0.1.
func OpenSentinel(options SentinelOptions) (*Sentinel, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", ErrMissing)
	}
	dir, err := Folder("sentinel")
	if err != nil {
		return nil, err
	}
	port, err := freeport.Next()
	if err != nil {
		return nil, err
	}
	lines, err := options.configuration(dir, port)
	file := filepath.Join(dir, "sentinel.conf") // the Sentinel rewrites it
	if err = errors.Join(err, writeLines(file, lines...)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Sentinel{Addr: fmt.Sprint("127.0.0.1:", port), dir: dir}
	if s.Process, err = start(dir, "sentinel", Command{Path: program, Args: []string{file, "--sentinel"}}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	client := redis.NewSentinelClient(&redis.Options{
		Addr: s.Addr, Password: options.Password, TLSConfig: options.TLS, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	})
	defer func() { _ = client.Close() }() // what counts is known by then
	err = s.Await(30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return client.Ping(ctx).Err()
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o SentinelOptions) configuration(dir string, port int) ([]string, error) {
	lines := []string{"bind 127.0.0.1", "dir " + dir, fmt.Sprint("port ", port)}
	if o.TLS != nil {
		lines = []string{"bind 127.0.0.1", "dir " + dir, "port 0", fmt.Sprint("tls-port ", port), "tls-replication yes"}
	}
	if o.Password != "" {
		lines = append(lines, "requirepass "+o.Password)
	}
	for name, addr := range o.Watch {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("sentinel monitor %s %s %s 1", name, host, port))
		if o.ServerPassword != "" {
			lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", name, o.ServerPassword))
		}
	}
	return append(lines, o.Lines...), nil
}

// Close ends the Sentinel and removes its folder.
func (s *Sentinel) Close() error {
	return errors.Join(s.Kill(), os.RemoveAll(s.dir))
}
