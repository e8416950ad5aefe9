package testserver

import (
	"context"
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

// Sentinel is a Redis Sentinel that watches one primary.
type Sentinel struct {
	*Process
	Addr string // "127.0.0.1:port"
	dir  string
}

// OpenSentinel starts a Sentinel that watches the server under this name and asks its own clients for a password. The server may ask for one
// too; the Sentinel is told it then.
func OpenSentinel(primary *Redis, name, password, primaryPassword string) (*Sentinel, error) {
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
	host, primaryPort, err := net.SplitHostPort(primary.Addr)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "sentinel.conf") // the Sentinel rewrites it
	err = writeLines(file, "bind 127.0.0.1", fmt.Sprint("port ", port), "dir "+dir, "requirepass "+password,
		fmt.Sprintf("sentinel monitor %s %s %s 1", name, host, primaryPort), fmt.Sprintf("sentinel auth-pass %s %s", name, primaryPassword))
	if err != nil {
		return nil, err
	}
	s := &Sentinel{Addr: fmt.Sprint("127.0.0.1:", port), dir: dir}
	if s.Process, err = start(dir, "sentinel", Command{Path: program, Args: []string{file, "--sentinel"}}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	client := redis.NewSentinelClient(&redis.Options{Addr: s.Addr, Password: password, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }() // what counts is known by then
	err = s.Await(30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return client.GetMasterAddrByName(ctx, name).Err()
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends the Sentinel and removes its folder.
func (s *Sentinel) Close() error {
	return errors.Join(s.Kill(), os.RemoveAll(s.dir))
}
