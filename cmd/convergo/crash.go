package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/convergo/convergo"
)

// crashAt is a probe that kills this process, with SIGKILL, the n-th time that it passes the point. text is "point" or
// "point:n"; an empty text gives a nil probe.
func crashAt(text string) (convergo.Probe, error) {
	if text == "" {
		return nil, nil
	}
	point, times, found := strings.Cut(text, ":")
	n := int64(1)
	if found {
		var err error
		if n, err = strconv.ParseInt(times, 10, 64); err != nil || n < 1 {
			return nil, fmt.Errorf("crash point %q: want a name, or name:n with n from 1", text)
		}
	}
	var passed atomic.Int64
	return func(at string) {
		if at == point && passed.Add(1) == n {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) // nothing can be done about a kill that fails; the test would see it
			select {}
		}
	}, nil
}

// faultSeed gives every handler its own random sequence.
func faultSeed(seed uint64, service, eventType string) uint64 {
	d := convergo.Aggregate{Type: service, ID: eventType}.Digest()
	return seed ^ binary.BigEndian.Uint64(d[:8])
}
