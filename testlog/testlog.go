// Package testlog is where tests let logs go: what is read while it is still written.
package testlog

import (
	"bytes"
	"sync"
)

// Lines is a log in memory. A component may still write when the test reads: its goroutines end when they like.
type Lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is everything written so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
