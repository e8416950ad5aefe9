package embedded

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

// filled is the folder of a broker that was closed cleanly: 2,000 events, of which the consumer "payment" had 1,500.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	b := open(t, Config{Dir: dir})
	var events []convergo.Event
	for v := int64(1); v <= 2000; v++ {
		events = append(events, event("order", "OrderPaid", "O-1", v))
	}
	for i := 0; i < len(events); i += 500 {
		for _, err := range b.Publish(t.Context(), events[i:i+500]) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 1500; {
		got, err := s.Fetch(t.Context(), 500)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if err := d.Ack(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n += len(got)
	}
	b.Close()
	return dir
}

func TestADamagedFolderIsRefusedOrItsLossIsTold(t *testing.T) {
	const (
		stream = "jetstream/$G/streams/" + streamName
		block  = stream + "/msgs/1.blk"
		index  = stream + "/msgs/index.db"
	)
	for _, c := range []struct {
		name    string
		damage  func(t *testing.T, dir string)
		lost    int    // events told to be lost
		refused string // part of the error, when the folder is refused
	}{
		{"nothing", func(*testing.T, string) {}, 0, ""},
		{"its last part is cut off", func(t *testing.T, dir string) { cut(t, dir, block) }, 796, ""},
		{"cut off and without its index", func(t *testing.T, dir string) { cut(t, dir, block); remove(t, dir, index) }, 796, ""},
		{"a bit has flipped in an event, no index", func(t *testing.T, dir string) { flip(t, dir, block, 200_000); remove(t, dir, index) }, 1450, ""},
		{"its events are gone", func(t *testing.T, dir string) { remove(t, dir, block) }, 2000, ""},
		{"its events and the index are gone", func(t *testing.T, dir string) { remove(t, dir, block); remove(t, dir, index) }, 2000, ""},
		{"a bit has flipped in the index", func(t *testing.T, dir string) { flip(t, dir, index, 30) }, 0, ""},
		{"the stream's description is damaged", func(t *testing.T, dir string) { flip(t, dir, stream+"/meta.inf", 30) }, 0, "stream cannot be read"},
		{"the stream's description is gone", func(t *testing.T, dir string) { remove(t, dir, stream+"/meta.inf") }, 0, "stream cannot be read"},
		{"the stream is gone", func(t *testing.T, dir string) { remove(t, dir, stream) }, 0, "stream cannot be read"},
		{"a consumer's description is damaged", func(t *testing.T, dir string) { flip(t, dir, stream+"/obs/payment/meta.inf", 30) }, 0, "payment"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := filled(t)
			c.damage(t, dir)
			b, err := Open(t.Context(), Config{Dir: dir})
			if c.refused != "" {
				if err == nil {
					b.Close()
				}
				if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), dir) {
					t.Fatalf("error %v, want one that names %s and says %q", err, dir, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Recovery().Events; got != c.lost {
				t.Errorf("told %d lost events, want %d", got, c.lost)
			}
			publishAndFetch(t, b)
			b.Close()
			if again := open(t, Config{Dir: dir}); again.Recovery().Lost() {
				t.Errorf("the loss is told twice: %s", again.Recovery())
			}
		})
	}
}

// publishAndFetch checks that a recovered broker works for an old consumer: whatever was lost, new events reach it.
func publishAndFetch(t *testing.T, b *Broker) {
	t.Helper()
	s, err := b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order"}})
	if err != nil {
		t.Fatal(err)
	}
	fresh := event("order", "OrderPaid", "O-2", 1)
	if err := b.Publish(t.Context(), []convergo.Event{fresh})[0]; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		got, err := s.Fetch(ctx, 500)
		if err != nil {
			t.Fatal("the new event does not come: ", err)
		}
		if got[len(got)-1].Event.Key == fresh.Key {
			return
		}
	}
}

func flip(t *testing.T, dir, file string, at int) {
	t.Helper()
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 0xff
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// cut leaves six tenths of a file.
func cut(t *testing.T, dir, file string) {
	t.Helper()
	path := filepath.Join(dir, file)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()*6/10); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, file string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
}
