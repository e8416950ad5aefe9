package main

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// servers are those that the tests of this package share.
var servers testserver.Pool

// converges runs the demo on a platform of many processes and fails unless it converged.
func converges(t *testing.T, args ...string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	r := runChild(ctx, t, append([]string{"demo", "--keep", dir + "/data", "--json", "--timeout", "7m"}, args...)...)
	var report struct {
		Verdict string
		Reasons []string
		Faults  map[string]int
		Orders  map[string]int
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.Verdict != "CONVERGED" || r.code != 0 {
		text, _ := os.ReadFile(dir + "/data/platform.log")
		t.Fatalf("exit code %d, %v\n%s\n%s\n%s", r.code, err, r.out, r.err, text[max(0, len(text)-12000):])
	}
	t.Logf("orders %v, faults %v", report.Orders, report.Faults)
}

func TestADayOnManyProcessesConvergesOnSQLiteAndNATS(t *testing.T) {
	s := testserver.Own(t, testserver.OpenNATS)
	converges(t, "--count", "60", "--buyers", "16", "--kills", "3", "--broker", s.URL)
}
