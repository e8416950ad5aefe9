package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
)

// buried makes events of these aggregates dead, in their order, without holding anything; no relay runs afterwards.
func buried(t *testing.T, address string, aggregates ...string) *opened {
	t.Helper()
	store := must[*opened](t)(openStore(t.Context(), "shop", address, nil, discarded()))
	t.Cleanup(func() { _ = store.Close() })
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	versions := map[string]int64{}
	err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		clear(versions)
		for _, id := range aggregates {
			versions[id]++
			e := convergo.Event{Topic: "order", Type: "OrderPaid", Version: versions[id], Payload: []byte("{}"), Aggregate: convergo.Aggregate{Type: "order", ID: id}}
			if versions[id] > 1 {
				e.Type = "OrderShipped"
			}
			if err := box.Add(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	to := &carrier{}
	to.shut.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	r := relay.New(store, to, relay.Config{Poll: 50 * time.Millisecond, Topics: map[string]relay.TopicPolicy{"order": {OnDead: relay.SkipEvent}}})
	running.Go(func() { _ = r.Run(ctx) })
	eventually(t, 20*time.Second, "the events are dead", func() bool {
		b, err := store.Backlog(t.Context(), time.Now())
		return err == nil && int(b.Dead.Count) == len(aggregates)
	})
	stop()
	running.Wait()
	return store
}

// outcome is what redrive or discard says with --json.
type outcome struct {
	Redriven, Discarded []string
	DryRun              bool `json:"dry_run"`
	Refused             map[string]string
}

// asked runs `convergo dead … --json` and returns what it says.
func asked(t *testing.T, args ...string) (o outcome, log string) {
	t.Helper()
	r := runProgram(t.Context(), slices.Concat([]string{"dead"}, args, []string{"--json"})...)
	if err := json.Unmarshal([]byte(r.out.String()), &o); err != nil {
		t.Fatalf("%v: %v: %s%s", args, err, r.out.String(), r.err.String())
	}
	if want := min(len(o.Refused), 1); r.code != want {
		t.Fatalf("%v: exit code %d with %d refused", args, r.code, want)
	}
	return o, r.err.String()
}

// foreseen asks for a dry run and then for the real one, which have to answer the same, and the dry one has to leave everything as it is.
func foreseen(t *testing.T, store *opened, args ...string) outcome {
	t.Helper()
	before := must[string](t)(tables(t, store))
	dry, log := asked(t, append(args, "--dry-run")...)
	if strings.Contains(log, "a person acted") {
		t.Errorf("%v: a dry run is logged as an act: %s", args, log)
	}
	if after := must[string](t)(tables(t, store)); after != before {
		t.Errorf("%v: a dry run made %s of %s", args, after, before)
	}
	o, _ := asked(t, args...)
	if !slices.Equal(dry.Redriven, o.Redriven) || !slices.Equal(dry.Discarded, o.Discarded) || !maps.Equal(dry.Refused, o.Refused) || !dry.DryRun || o.DryRun {
		t.Errorf("%v: foreseen %+v, done %+v", args, dry, o)
	}
	return o
}

// tables are what a dry run must not change.
func tables(t *testing.T, store *opened) (string, error) {
	t.Helper()
	backlog, err := store.Backlog(t.Context(), time.Now())
	if err != nil {
		return "", err
	}
	acts, err := store.Acts(t.Context(), 100, 0)
	return fmt.Sprint(backlog, acts), err
}

func TestADryRunForeseesWhatIsRefused(t *testing.T) {
	for name, open := range databasePatients() {
		t.Run(name, func(t *testing.T) {
			address := open(t).address
			store := buried(t, address, "O-1", "O-1", "O-2", "O-1", "O-3")
			var ids []string
			for _, e := range must[[]deadItem](t)(graves{store, false}.page(t.Context(), "", 10)) {
				ids = append(ids, e.id)
			}
			at := []string{"--database", address}
			with := func(args ...string) []string { return append(args, at...) }
			if o := foreseen(t, store, with("redrive", "--all", "--type", "OrderShipped")...); len(o.Redriven) != 0 || len(o.Refused) != 2 ||
				!strings.Contains(o.Refused[ids[1]], "earlier one of the same aggregate") {
				t.Errorf("those behind an earlier one: %+v", o)
			}
			o := foreseen(t, store, with("redrive", ids[3], ids[0], ids[1], ids[2], ids[2], "99999")...)
			if !slices.Equal(o.Redriven, []string{ids[0], ids[1], ids[2]}) || o.Refused[ids[2]] != "no dead event has this id" || len(o.Refused) != 3 {
				t.Errorf("one too early, one twice, one unknown: %+v", o)
			}
			if o := foreseen(t, store, with("discard", "--all", "--reason", "test data", "--expect", "2")...); !slices.Equal(o.Discarded, []string{ids[3], ids[4]}) {
				t.Errorf("the rest: %+v", o)
			}

			var letters []string // without a key and alike: only one of them can wait
			for range 2 {
				err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
					_, err := store.Bury(ctx, tx, "labels", inbox.Failure{Attempts: 1, Error: "malformed", Place: "decode", Event: convergo.Event{
						Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: "O-9"}, Payload: []byte("{"),
					}}, true, time.Now())
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range must[[]deadItem](t)(graves{store, true}.page(t.Context(), "", 10)) {
				letters = append(letters, l.id)
			}
			if o := foreseen(t, store, with("redrive", "--all", "--letters")...); len(o.Redriven) != 1 || len(o.Refused) != 1 ||
				!strings.Contains(o.Refused[letters[1]], "another message without a key") {
				t.Errorf("two letters %v without a key: %+v", letters, o)
			}
		})
	}
}

func TestDiscardingAllWantsTheirNumber(t *testing.T) {
	address := "sqlite:" + t.TempDir() + "/shop.db"
	store := buried(t, address, "O-1", "O-2", "O-3")
	all := []string{"dead", "discard", "--all", "--reason", "test data", "--database", address}
	refused(t, 2, []string{"3 would be discarded for good", "--expect 3"}, all...)
	refused(t, 2, []string{"3 would be discarded for good"}, append(all, "--json")...)
	refused(t, 2, []string{"1 would be discarded for good"}, append(all, "--key", "OrderPaid:O-2:v1")...)
	refused(t, 1, []string{"--expect 2, but they are 3", "nothing was discarded"}, append(all, "--expect", "2")...)
	refused(t, 1, []string{"--expect 0, but they are 3"}, append(all, "--expect", "0", "--json")...)
	refused(t, 2, []string{"--expect is for --all"}, "dead", "discard", "1", "--reason", "test data", "--expect", "1", "--database", address)
	refused(t, 1, []string{"--expect 2, but they are 3", "nothing was redriven"}, "dead", "redrive", "--all", "--expect", "2", "--database", address)
	if b, err := store.Backlog(t.Context(), time.Now()); err != nil || b.Dead.Count != 3 {
		t.Fatalf("%d of 3 are left, %v", b.Dead.Count, err)
	}
	if o, _ := asked(t, append(all[1:], "--dry-run")...); len(o.Discarded) != 3 {
		t.Errorf("a dry run needs no number: %+v", o)
	}
	if o, _ := asked(t, append(all[1:], "--expect", "3")...); len(o.Discarded) != 3 {
		t.Errorf("with their number: %+v", o)
	}
}

func TestWhoActedAndWhyIsOnRecordAndInTheLog(t *testing.T) {
	address := "sqlite:" + t.TempDir() + "/shop.db"
	buried(t, address, "O-1", "O-2", "O-3")
	at := []string{"--database", address}
	_, redriven := asked(t, append([]string{"redrive", "--all", "--key", "OrderPaid:O-1:v1", "--by", "ann", "--reason", "the broker is back"}, at...)...)
	_, discarded := asked(t, append([]string{"discard", "--all", "--key", "OrderPaid:O-2:v1", "--expect", "1", "--by", "bob", "--reason", "test data"}, at...)...)
	asked(t, append([]string{"redrive", "--all"}, at...)...)
	r := runProgram(t.Context(), "replay", "--outbox", address, "--since", "2026-11-29T08:00:00Z", "--by", "eve", "--reason", "a lost disk")
	if r.code != 0 {
		t.Fatalf("replay: %s", r.err.String())
	}
	for log, says := range map[string][]string{
		redriven:       {"a person acted", "did=redrive", "key=OrderPaid:O-1:v1", "by=ann", `reason="the broker is back"`},
		discarded:      {"did=discard", "key=OrderPaid:O-2:v1", "by=bob", `reason="test data"`},
		r.err.String(): {"did=replay", "id=2026-11-29T08:00:00Z", "by=eve", `reason="a lost disk"`},
	} {
		for _, words := range says {
			if !strings.Contains(log, words) {
				t.Errorf("the log does not say %q: %s", words, log)
			}
		}
	}
	var answer struct{ Acts []actLine }
	text := dead(t, 0, append([]string{"log", "--json"}, at...)...)
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var told []string
	for _, a := range answer.Acts {
		if time.Since(a.At).Abs() > time.Hour {
			t.Errorf("at %v", a.At)
		}
		told = append(told, fmt.Sprintf("%s %s %s by %s: %s", a.Did, a.Target, a.Key, a.By, a.Reason))
	}
	want := []string{"redrive ops.event OrderPaid:O-1:v1 by ann: the broker is back", "discard ops.event OrderPaid:O-2:v1 by bob: test data",
		"redrive ops.event OrderPaid:O-3:v1 by " + me() + ": ", "replay ops.sent  by eve: a lost disk"}
	if !slices.Equal(told, want) {
		t.Errorf("on record are %q, want %q", told, want)
	}
	page := append([]string{"log", "--limit", "1", "--after", fmt.Sprint(answer.Acts[0].Seq)}, at...)
	if text := dead(t, 0, page...); !strings.Contains(text, "bob") || strings.Contains(text, "ann") || strings.Contains(text, "lost disk") ||
		!strings.Contains(text, fmt.Sprintf("there are more: --after %d\n", answer.Acts[1].Seq)) {
		t.Errorf("the second page is %s", text)
	}
	last := append([]string{"log", "--limit", "1", "--after", fmt.Sprint(answer.Acts[2].Seq)}, at...)
	if text := dead(t, 0, last...); !strings.Contains(text, "lost disk") || strings.Contains(text, "there are more") {
		t.Errorf("the last page is %s", text)
	}
	if text := dead(t, 0, append(page, "--json")...); !strings.Contains(text, `"more": true`) {
		t.Errorf("the second page is %s", text)
	}
	refused(t, 2, []string{"--reason has at most 255 bytes"}, append([]string{"dead", "redrive", "--all", "--reason", strings.Repeat("x", 256)}, at...)...)
	refused(t, 2, []string{"--by has at most 255 bytes"}, append([]string{"dead", "redrive", "--all", "--by", strings.Repeat("x", 256)}, at...)...)
}

func TestWhoActedOverHTTPIsOnRecordAndInTheLog(t *testing.T) {
	t.Parallel()
	p := startPlatform(t, t.TempDir(), quickly()...)
	if err := poison(t.Context(), "sqlite:"+filepath.Join(p.dir, "risk.db"), 1); err != nil {
		t.Fatal(err)
	}
	var letters map[string]string
	eventually(t, 20*time.Second, "the poison is parked", func() bool { letters = p.deadLetters("inventory"); return len(letters) == 1 })
	id := slices.Collect(maps.Keys(letters))[0]
	path := "/ops/inventory/dead-letters/" + id + "/redrive"
	p.call(http.MethodPost, path, p.secrets.OperatorKey, "r-0", map[string]string{"reason": strings.Repeat("x", 256)}).problem(t, http.StatusUnprocessableEntity)
	// What is 255 characters may be more bytes, and only a part of it would be on record.
	for i, path := range []string{path, strings.Replace(path, "redrive", "discard", 1), "/ops/inventory/replay", "/ops/inventory/dead-events/1/redrive"} {
		long := map[string]string{"reason": strings.Repeat("é", 200)}
		if strings.HasSuffix(path, "replay") {
			long["since"] = "2026-11-29T08:00:00Z"
		}
		wrong := p.call(http.MethodPost, path, p.secrets.OperatorKey, fmt.Sprint("long-", i), long).problem(t, http.StatusUnprocessableEntity)
		if wrong.Field != "body.reason" || !strings.Contains(wrong.Detail, "400 bytes") {
			t.Errorf("%s: %+v", path, wrong)
		}
	}
	p.operator(http.MethodPost, path, "r-1", map[string]string{"reason": "a fix is there"}, nil)
	p.operator(http.MethodPost, "/ops/inventory/replay", "r-2", map[string]string{"since": "2026-11-29T08:00:00Z", "reason": "a lost disk"}, nil)
	var answer struct{ Acts []actLine }
	p.operator(http.MethodGet, "/ops/inventory/acts", "", nil, &answer)
	var told []string
	for _, a := range answer.Acts {
		told = append(told, fmt.Sprintf("%s %s %s %s by %s: %s", a.Did, a.Target, a.ID, a.Key, a.By, a.Reason))
	}
	want := []string{"redrive ops.letter " + id + " OrderPaid:POISON-1 by operator:operator: a fix is there", "replay ops.sent 2026-11-29T08:00:00Z  by operator:operator: a lost disk"}
	if !slices.Equal(told, want) {
		t.Errorf("on record are %q, want %q", told, want)
	}
	for _, words := range []string{"did=redrive target=ops.letter id=" + id, `by=operator:operator reason="a fix is there"`, "did=replay target=ops.sent"} {
		if !strings.Contains(p.err.String(), words) {
			t.Errorf("the log does not say %q", words)
		}
	}
	p.operator(http.MethodGet, "/ops/inventory/acts?after="+fmt.Sprint(answer.Acts[len(answer.Acts)-1].Seq), "", nil, &answer)
	if len(answer.Acts) > 0 {
		t.Errorf("behind the last one are %v", answer.Acts)
	}
	p.call(http.MethodGet, "/ops/inventory/acts", p.session("u-1"), "", nil).problem(t, http.StatusForbidden)
}
