package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/convergo/convergo"
)

// crashAt is a probe that kills this process, with SIGKILL, the n-th time that it passes the point, after it has said so.
// text is "point" or "point:n", and a point is "relay.published" for any service's or "payment/relay.published" for one; an
// empty text gives a nil probe.
func crashAt(text string, say io.Writer) (convergo.Probe, error) {
	if text == "" {
		return nil, nil
	}
	point, times, found := strings.Cut(text, ":")
	n := int64(1)
	if found {
		var err error
		if n, err = strconv.ParseInt(times, 10, 64); err != nil || n < 1 {
			return nil, fmt.Errorf("--crash-at %q: want a name, or name:n with n from 1", text)
		}
	}
	if !knownCrashPoint(point) {
		return nil, fmt.Errorf("--crash-at %q: there is no such point; there are %s, each also as SERVICE/POINT, and SERVICE.commit.before and .after",
			text, strings.Join(enginePoints(), ", "))
	}
	var passed atomic.Int64
	return func(at string) {
		if at == point && passed.Add(1) == n {
			// Nothing can be done about a line that is not written or a kill that fails; the test would see it.
			_, _ = fmt.Fprintf(say, "killed at crash point %s, passage %d\n", point, n)
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			select {}
		}
	}, nil
}

// enginePoints are the points that every service's engine passes.
func enginePoints() []string {
	return []string{
		"relay.claimed", "broker.sent", "relay.published", "relay.settled", "inbox.fetched", "inbox.handled", "inbox.committed", "inbox.acked",
		"outside.reserved", "outside.called", "outside.finished", "idempotency.handled", "idempotency.committed",
	}
}

func knownCrashPoint(point string) bool {
	if service, rest, found := strings.Cut(point, "/"); found {
		if !slices.Contains(serviceNames(), service) {
			return false
		}
		point = rest
	}
	if service, ok := strings.CutSuffix(point, ".commit.before"); ok {
		return slices.Contains(serviceNames(), service)
	}
	if service, ok := strings.CutSuffix(point, ".commit.after"); ok {
		return slices.Contains(serviceNames(), service)
	}
	return slices.Contains(enginePoints(), point)
}

// slowDisk makes every commit of a database take so much longer, as on a disk that syncs more slowly than this one. Zero
// changes nothing.
func slowDisk(delay time.Duration, next convergo.Probe) convergo.Probe {
	if delay <= 0 {
		return next
	}
	return func(at string) {
		if strings.HasSuffix(at, ".commit.before") {
			time.Sleep(delay)
		}
		next.At(at)
	}
}

// of is the probe that a service's engine gets: it passes "point" and "service/point".
func of(service string, probe convergo.Probe) convergo.Probe {
	if probe == nil {
		return nil
	}
	return func(at string) {
		probe(at)
		probe(service + "/" + at)
	}
}

// faultSeed gives every handler its own random sequence.
func faultSeed(seed uint64, service, eventType string) uint64 {
	d := convergo.Aggregate{Type: service, ID: eventType}.Digest()
	return seed ^ binary.BigEndian.Uint64(d[:8])
}
