package embedded

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/brokertest"
)

// childDir, when set in the environment, makes this test binary the process that is killed.
const childDir = "CONVERGO_EMBEDDED_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(publishUntilKilled(dir))
	}
	brokertest.Child(process())
	os.Exit(m.Run())
}

// publishUntilKilled prints each key once it is confirmed, in the broker's default settings.
func publishUntilKilled(dir string) int {
	ctx := context.Background()
	b, err := Open(ctx, Config{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for v := int64(1); ; v++ {
		var events []convergo.Event
		for a := range 40 {
			events = append(events, event("order", "OrderPaid", fmt.Sprint("O-", a), v))
		}
		var confirmed bytes.Buffer
		for i, err := range b.Publish(ctx, events) {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			fmt.Fprintln(&confirmed, events[i].Key)
		}
		if _, err := os.Stdout.Write(confirmed.Bytes()); err != nil {
			return 1
		}
	}
}

// A killed process leaves what it wrote with the operating system. The test fails when a confirmation is given before
// that, for example with an asynchronous flush (jetstream.AsyncPersistMode).
func TestAKilledProcessLosesNothingThatWasConfirmed(t *testing.T) {
	dir := t.TempDir()
	confirmed := map[convergo.Key]bool{}
	for round := range 3 {
		for _, key := range runAndKill(t, dir, 3000*(round+1)) {
			confirmed[key] = true
		}
		b := open(t, Config{Dir: dir})
		if b.Recovery().Lost() {
			t.Errorf("round %d: %s", round, b.Recovery())
		}
		if m, err := readMark(dir); err != nil || int(m.Last) < len(confirmed) {
			t.Errorf("round %d: the folder's mark after opening is %+v, %v", round, m, err)
		}
		stored := storedKeys(t, b, fmt.Sprint("reader-", round))
		missing := 0
		for key := range confirmed {
			if !stored[key] {
				missing++
			}
		}
		t.Logf("round %d: %d confirmed, %d stored, %d missing", round, len(confirmed), len(stored), missing)
		if missing > 0 {
			t.Errorf("%d confirmed events are gone", missing)
		}
		b.Close()
	}
}

// runAndKill lets a child publish until it has confirmed so many events, kills it with SIGKILL, and returns all keys that
// it confirmed.
func runAndKill(t *testing.T, dir string, enough int) []convergo.Key {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	var complaints strings.Builder
	child.Stderr = &complaints
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var keys []convergo.Key
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		keys = append(keys, convergo.Key(lines.Text()))
		if len(keys) == enough {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait() // "signal: killed"
	if len(keys) < enough {
		t.Fatalf("the child ended by itself after %d events: %s", len(keys), complaints.String())
	}
	// The kill may have cut the last line; a cut key is not one that the child confirmed in full.
	return keys[:len(keys)-1]
}

func storedKeys(t *testing.T, b *Broker, consumer string) map[convergo.Key]bool {
	t.Helper()
	s, err := b.Subscribe(t.Context(), consumer, []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	stored := map[convergo.Key]bool{}
	for left := pending(t, b, consumer); left > 0; {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got, err := s.Fetch(ctx, 500)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			stored[d.Event.Key] = true
			if err := d.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		left -= int64(len(got))
	}
	return stored
}
