package storetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/relay"
)

// LargeKeys are the keys of such rows: each is the first event of its aggregate, which is "order" and the key.
func LargeKeys(rows int) (keys []convergo.Key) {
	for i := range rows {
		keys = append(keys, convergo.Key("large-"+string(rune('a'+i/26))+string(rune('a'+i%26))))
	}
	return keys
}

// BuryLargeRows runs a relay over a store in which another program has written a row for each of LargeKeys(rows), with a payload of
// size bytes, and behind each of them an event that is as it should be. All rows have to die and the others to be sent, and no more memory may be taken, over
// all, than a few of the rows have bytes: a relay that reads them is ended by the system, at every start.
func BuryLargeRows(t *testing.T, store relay.Store, operators ops.Outbox, rows, size int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := &publisher{}
	r := relay.New(store, sent, relay.Config{OnDead: relay.SkipEvent})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	deadline := time.After(2 * time.Minute)
	for r.Stats().Dead < int64(rows) || sent.count() < rows {
		select {
		case <-deadline:
			t.Fatalf("%d of %d rows are dead, %d of the events behind them sent: %+v", r.Stats().Dead, rows, sent.count(), r.Stats())
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > uint64(3*size) {
		t.Errorf("%d bytes of memory were taken for %d rows that nobody needs to read", taken, rows)
	} else {
		t.Logf("%d bytes of memory were taken in all", taken)
	}
	dead, err := operators.DeadEvents(context.WithoutCancel(ctx), 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(dead) != rows {
		t.Errorf("%d dead events are listed, want %d", len(dead), rows)
	}
	for _, d := range dead {
		if d.PayloadBytes != int64(size) || len(d.Event.Payload) > 0 || d.Place != "relay.read" ||
			!strings.Contains(d.Error, "payload") || !strings.Contains(d.Error, fmt.Sprint(size)) || !strings.Contains(d.Error, "524288") {
			t.Errorf("%s is listed with %d of %d bytes, dead at %s: %s", d.Event.Key, len(d.Event.Payload), d.PayloadBytes, d.Place, d.Error)
		}
	}
}

// publisher counts what it is given.
type publisher struct {
	mu sync.Mutex
	n  int
}

func (p *publisher) Publish(_ context.Context, events []convergo.Event) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += len(events)
	return make([]error, len(events))
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// BuryLongText runs a relay over a store with one row, of which one text is far too long.
func BuryLongText(t *testing.T, store relay.Store, operators ops.Outbox, column string, size int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := relay.New(store, &publisher{}, relay.Config{})
	done := make(chan error, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() { done <- r.Run(ctx) }()
	for deadline := time.After(time.Minute); r.Stats().Dead == 0; {
		select {
		case <-deadline:
			t.Fatalf("the row is not dead: %+v", r.Stats())
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	dead, err := operators.DeadEvents(context.WithoutCancel(ctx), 10, 0)
	runtime.ReadMemStats(&after)
	if err != nil || len(dead) != 1 {
		t.Fatalf("%d dead events are listed: %v", len(dead), err)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > uint64(size)/2 {
		t.Errorf("%d bytes of memory were taken for a text of %d that nobody needs to read", taken, size)
	}
	if text := dead[0].Error; !strings.Contains(text, column) || !strings.Contains(text, fmt.Sprint(size)) || !dead[0].Held {
		t.Errorf("held: %v, the error is %q", dead[0].Held, text)
	}
}
