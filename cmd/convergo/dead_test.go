package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
)

// carrier is a broker that refuses everything for good while it is shut.
type carrier struct {
	shut atomic.Bool
	mu   sync.Mutex
	sent []string
}

func (c *carrier) Publish(_ context.Context, events []convergo.Event) []error {
	errs := make([]error, len(events))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range events {
		if c.shut.Load() {
			errs[i] = convergo.Permanent(errors.New("the gate is shut \x1b[31m"))
			continue
		}
		c.sent = append(c.sent, string(e.Key))
	}
	return errs
}

func (c *carrier) arrived(keys ...string) func() bool {
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Equal(slices.Compact(slices.Sorted(slices.Values(c.sent))), keys)
	}
}

// withDead is an outbox in which n events are dead, and behind that of O-1 a second one waits; the relay goes on running.
func withDead(t *testing.T, address string, n int) (*opened, *carrier) {
	t.Helper()
	store := must[*opened](t)(openStore(t.Context(), "shop", address, nil, discarded()))
	t.Cleanup(func() { _ = store.Close() })
	to := &carrier{}
	to.shut.Store(true)
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	var events []convergo.Event
	for i := range n {
		e := convergo.Event{
			Topic: "order", Type: []string{"OrderPaid", "OrderShipped"}[i%2], Version: 1, Payload: []byte(strings.Repeat("secret payload ", 400)),
			Aggregate: convergo.Aggregate{Type: "order", ID: fmt.Sprint("O-", i+1)}, Headers: map[string]string{"Trace": "t-1"},
		}
		events = append(events, e)
	}
	second := events[0]
	second.Version = 2
	err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return box.Add(ctx, tx, append(slices.Clone(events), second)...)
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	r := relay.New(store, to, relay.Config{Poll: 50 * time.Millisecond})
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	eventually(t, 20*time.Second, "the events are dead", func() bool {
		b, err := store.Backlog(t.Context(), time.Now())
		return err == nil && int(b.Dead.Count) == n
	})
	return store, to
}

// dead runs `convergo dead` and returns what it prints.
func dead(t *testing.T, code int, args ...string) string {
	t.Helper()
	r := runProgram(t.Context(), append([]string{"dead"}, args...)...)
	if r.code != code {
		t.Fatalf("%v: exit code %d, want %d\n%s%s", args, r.code, code, r.out.String(), r.err.String())
	}
	return r.out.String() + r.err.String()
}

// listed are the ids, by aggregate.
func listed(t *testing.T, args ...string) (byAggregate map[string]string, more bool) {
	t.Helper()
	var answer struct {
		Dead []struct{ ID, Aggregate, Error string }
		More bool
	}
	text := dead(t, 0, append([]string{"list", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if strings.Contains(text, "secret payload") {
		t.Errorf("a list shows payloads: %.200s", text)
	}
	byAggregate = map[string]string{}
	for _, d := range answer.Dead {
		byAggregate[d.Aggregate] = d.ID
	}
	return byAggregate, answer.More
}

func TestDeadEventsOfAnApplicationAreSeenAndRepairedWithoutTheAPI(t *testing.T) {
	for name, open := range databasePatients() {
		t.Run(name, func(t *testing.T) {
			address := open(t).address
			store, to := withDead(t, address, 5)
			at := []string{"--database", address}
			with := func(args ...string) []string { return append(args, at...) }
			all, more := listed(t, at...)
			if len(all) != 5 || more {
				t.Fatalf("listed %v, more %t", all, more)
			}
			if page, more := listed(t, with("--limit", "2", "--after", all["order/O-1"])...); len(page) != 2 || !more || page["order/O-2"] == "" {
				t.Errorf("the second page is %v, more %t", page, more)
			}
			if some, _ := listed(t, with("--type", "OrderShipped", "--error", "gate is shut", "--died-since", "1h")...); len(some) != 2 {
				t.Errorf("filtered: %v", some)
			}
			if text := dead(t, 0, with("list")...); !strings.Contains(text, "order/O-5") || strings.ContainsAny(text, "\x1b") || strings.Contains(text, "secret") {
				t.Errorf("the list is %q", text)
			}
			shown := dead(t, 0, with("show", all["order/O-2"], "--bytes", "20")...)
			for _, words := range []string{"OrderShipped:O-2:v1", "secret payload secre\n", "and 5980 bytes more", "Trace: t-1", "relay.publish"} {
				if !strings.Contains(shown, words) || strings.ContainsAny(shown, "\x1b") {
					t.Errorf("show does not say %q:\n%s", words, shown)
				}
			}
			to.shut.Store(false)
			if text := dead(t, 0, with("redrive", "--all", "--type", "OrderShipped", "--dry-run")...); !strings.Contains(text, "2 would be redriven") {
				t.Errorf("dry run: %s", text)
			}
			if left, _ := listed(t, at...); len(left) != 5 {
				t.Errorf("a dry run left %v", left)
			}
			dead(t, 0, with("redrive", all["order/O-1"])...)
			eventually(t, 20*time.Second, "it arrives, and what it held", to.arrived("OrderPaid:O-1:v1", "OrderPaid:O-1:v2"))
			began := time.Now()
			if text := dead(t, 0, with("redrive", "--all", "--type", "OrderShipped", "--rate", "5")...); !strings.Contains(text, "2 were redriven") {
				t.Errorf("redrive: %s", text)
			}
			if took := time.Since(began); took < 200*time.Millisecond {
				t.Errorf("two at five a second took %v", took)
			}
			eventually(t, 20*time.Second, "they arrive", to.arrived("OrderPaid:O-1:v1", "OrderPaid:O-1:v2", "OrderShipped:O-2:v1", "OrderShipped:O-4:v1"))
			dead(t, 0, with("discard", all["order/O-3"], "--reason", "test data", "--by", "alice")...)
			if by, reason := discardedBy(t, address); by != "alice" || reason != "test data" {
				t.Errorf("on record are %q, %q", by, reason)
			}
			if text := dead(t, 1, with("redrive", all["order/O-3"], "99999", all["order/O-5"])...); !strings.Contains(text, "99999: ") ||
				!strings.Contains(text, "1 was redriven") || !strings.Contains(text, "no dead event has this id") {
				t.Errorf("some cannot be redriven: %s", text)
			}
			eventually(t, 20*time.Second, "nothing is left", func() bool {
				b, err := store.Backlog(t.Context(), time.Now())
				return err == nil && b.Unfinished() == 0
			})
		})
	}
}

func discardedBy(t *testing.T, address string) (by, reason string) {
	t.Helper()
	atDatabase(t, address, func(db *sql.DB, prefix string) {
		if err := db.QueryRowContext(t.Context(), "SELECT discarded_by, reason FROM "+prefix+"outbox_discarded").Scan(&by, &reason); err != nil {
			t.Fatal(err)
		}
	})
	return by, reason
}

func TestDeadLettersOfAServiceAreRepairedFromItsDatabase(t *testing.T) {
	dir := t.TempDir()
	store := must[*opened](t)(openStore(t.Context(), "shipping", "sqlite:"+dir+"/shipping.db", nil, discarded()))
	t.Cleanup(func() { _ = store.Close() })
	bury := func(consumer, id string) {
		err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			_, err := store.Bury(ctx, tx, consumer, inbox.Failure{Attempts: 3, Error: "no such address", Place: "handler", Event: convergo.Event{
				Key: convergo.Key("OrderPaid:" + id + ":v1"), MessageID: "m-" + id, Topic: "order", Type: "OrderPaid", Version: 1,
				Aggregate: convergo.Aggregate{Type: "order", ID: id}, Payload: []byte{0xff, 0x00, 0x01},
			}}, true, time.Now())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	bury("shipping", "O-1")
	bury("shipping", "O-2")
	bury("labels", "O-1")
	at := []string{"--letters", "--service", "shipping", "--data", dir}
	with := func(args ...string) []string { return append(args, at...) }
	if all, _ := listed(t, with("--consumer", "labels")...); len(all) != 1 {
		t.Errorf("of one consumer: %v", all)
	}
	all, _ := listed(t, with("--consumer", "shipping")...)
	if text := dead(t, 0, with("show", all["order/O-1"])...); !strings.Contains(text, "ff0001") || !strings.Contains(text, "no such address") {
		t.Errorf("show: %s", text)
	}
	text := dead(t, 1, with("redrive", "018f", all["order/O-2"], all["order/O-1"], "--dry-run")...)
	if !strings.Contains(text, "2 would be redriven") || !strings.Contains(text, "018f: no open dead letter") || strings.Contains(text, all["order/O-1"]+": ") {
		t.Errorf("two of three that are named: %s", text)
	}
	dead(t, 0, with("redrive", all["order/O-1"])...)
	dead(t, 0, with("discard", all["order/O-2"], "--reason", "a joke")...)
	if left, _ := listed(t, at...); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
	if b, err := store.Backlog(t.Context(), time.Now()); err != nil || b.InboxWait.Count != 1 {
		t.Errorf("%+v, %v: the redriven one waits for its consumer", b.InboxWait, err)
	}
}

func TestDeadIsRefusedWhatItCannotDoWithTheReason(t *testing.T) {
	dir := t.TempDir()
	empty := "sqlite:" + dir + "/empty.db"
	atDatabase(t, empty, func(db *sql.DB, _ string) {
		must[sql.Result](t)(db.ExecContext(t.Context(), "CREATE TABLE other (id INTEGER)"))
	})
	used := "sqlite:" + dir + "/used.db"
	store := must[*opened](t)(openStore(t.Context(), "shop", used, nil, discarded()))
	t.Cleanup(func() { _ = store.Close() })
	for _, c := range []struct {
		says []string
		args []string
	}{
		{[]string{"--service", "--database"}, []string{"list"}},
		{[]string{"--service", "--database"}, []string{"list", "--database", "sqlite:" + dir + "/{service}.db"}},
		{[]string{"no service", "sales"}, []string{"list", "--service", "sales"}},
		{[]string{"no tables of this version"}, []string{"redrive", "1", "--database", empty}},
		{[]string{"does not exist"}, []string{"list", "--database", "sqlite:" + dir + "/missing.db"}},
		{[]string{"which?", "--all"}, []string{"redrive", "--database", used}},
		{[]string{"--all"}, []string{"redrive", "1", "--topic", "order", "--database", used}},
		{[]string{"not the id of a dead event", "--letters"}, []string{"show", "018f", "--database", used}},
		{[]string{"convergo: 7: no dead event has this id"}, []string{"show", "007", "--database", used}},
		{[]string{"convergo: 4711: no dead event has this id\n"}, []string{"discard", "4711", "--reason", "test data", "--database", used}},
		{[]string{"--reason"}, []string{"discard", "1", "--reason", " ", "--database", used}},
		{[]string{"--died-since", "yesterday"}, []string{"list", "--died-since", "yesterday", "--database", used}},
		{[]string{"--rate"}, []string{"redrive", "--all", "--rate=-1", "--database", used}},
		{[]string{"no setting"}, []string{"redrive", "1", "--config", configOf(t, "all: true\n")}},
	} {
		code := 2
		if slices.ContainsFunc(c.says, func(words string) bool {
			return strings.HasPrefix(words, "convergo: ") || words == "does not exist" || words == "no tables of this version"
		}) {
			code = 1
		}
		refused(t, code, c.says, append([]string{"dead"}, c.args...)...)
	}
	t.Setenv("CONVERGO_ALL", "true") // chooses nothing
	refused(t, 2, []string{"which?"}, "dead", "redrive", "--database", used)
	if text := runProgram(t.Context(), "dead", "--help").out.String(); !strings.Contains(text, "convergo dead redrive --all") {
		t.Errorf("the help has no examples: %s", text)
	}
}
