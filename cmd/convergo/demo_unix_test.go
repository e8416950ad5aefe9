//go:build unix

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestADemoThatWaitsForItsFileCanBeInterrupted(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "orders.csv")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := demoCommand{Orders: pipe}.day(ctx)
	if err == nil || !strings.Contains(err.Error(), "orders.csv: reading was interrupted") {
		t.Errorf("%v, want that it was interrupted", err)
	}
	// Lets the goroutine that opens the pipe go.
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
}
