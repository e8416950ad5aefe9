package retain_test

import (
	"context"
	"fmt"
	"time"

	"github.com/convergo/convergo/retain"
)

// One round over two kinds of rows. A service runs rounds for ever with Run; a command line makes one with RunOnce.
func Example() {
	sent := 1234 // rows older than a week
	jobs := []retain.Job{
		{Name: "outbox.sent", Keep: 7 * 24 * time.Hour, Purge: func(_ context.Context, before time.Time, most int) (int, error) {
			n := min(sent, most) // DELETE … WHERE created_at < before … LIMIT most
			sent -= n
			return n, nil
		}},
		{Name: "outbox.dead", Keep: retain.Forever},
	}
	deleted, err := retain.New(jobs, retain.Config{}).RunOnce(context.Background())
	fmt.Println(deleted, err)
	// Output: map[outbox.dead:0 outbox.sent:1234] <nil>
}

// The inbox's rows are the memory of what was applied. It must reach further back than the broker's.
func ExampleCheckWindow() {
	fmt.Println(retain.CheckWindow(14*24*time.Hour, 7*24*time.Hour))
	fmt.Println(retain.CheckWindow(24*time.Hour, 7*24*time.Hour))
	// Output:
	// <nil>
	// the dedup window is too short: inbox rows are kept for 24h0m0s and messages for 168h0m0s: keep the rows longer, or the messages shorter
}
