// Package freeport names ports of 127.0.0.1 for processes that are told where to listen and come back there after a kill.
//
// A port that a system has just given out for ":0" is a bad one for that: from the moment at which it is let go until the process
// listens, and whenever the process is down, the same system may give it to somebody else, be it as the local end of a connection. The ports
// here are below the range of which systems do that by themselves (Linux from 32,768, IANA from 49,152), and a process shares none with
// another that asks this package.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	first, last = 11_000, 31_000
	// block is how many ports a process takes at a time.
	block = 50
)

// ports are the blocks that a process has taken.
type ports struct {
	mu        sync.Mutex
	next, end int            // the rest of the block that was taken last
	claims    []net.Listener // on the first port of each block; what was given out of the earlier ones is in use, too
}

// own are this process's.
var own = sync.OnceValue(func() *ports { return &ports{} })

// Next is a port that nobody listens on and that this process has not been given before.
func Next() (int, error) { return own().take() }

// Address is 127.0.0.1 with a port of Next.
func Address() (string, error) {
	port, err := Next()
	return address(port), err
}

func (p *ports) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.next == p.end {
			if err := p.claim(); err != nil {
				return 0, err
			}
		}
		port := p.next
		p.next++
		if free(port) {
			return port, nil
		}
	}
}

// claim takes a block: it listens on the first port of it until this process ends, however that comes. Another process finds it taken.
func (p *ports) claim() error {
	for _, b := range rand.Perm((last - first) / block) {
		at := first + b*block
		l, err := net.Listen("tcp", address(at))
		if err != nil {
			continue
		}
		p.claims = append(p.claims, l)
		p.next, p.end = at+1, at+block
		return nil
	}
	return fmt.Errorf("every block of ports of 127.0.0.1 from %d to %d is taken", first, last-1)
}

// free tells whether one can listen there.
func free(port int) bool {
	l, err := net.Listen("tcp", address(port))
	return err == nil && l.Close() == nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
