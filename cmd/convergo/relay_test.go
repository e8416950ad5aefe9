package main

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/webhook"
	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/outbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/testlog"
)

func outboxIn(t *testing.T, path string) (*sqlite.Store, func(ids ...string)) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	box := outbox.New[convergo.Tx](store, outbox.Config{})
	return store, func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			err := store.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				return box.Add(ctx, tx, convergo.Event{Topic: "order", Type: "OrderPaid", Aggregate: convergo.Aggregate{Type: "order", ID: id}, Version: 1, Payload: []byte(`{"id":"` + id + `"}`)})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestARelayAlonePostsSignedEventsToTheEndpointsOfAFile(t *testing.T) {
	t.Setenv("SHOP_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	var mu sync.Mutex
	var bodies []string
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := webhook.NewReceiver(webhook.ReceiverConfig{Secrets: []webhook.Secret{secret}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(receiver)
	t.Cleanup(server.Close)
	go func() {
		for t.Context().Err() == nil {
			deliveries, err := receiver.Fetch(t.Context(), 10)
			if err != nil {
				return
			}
			for _, d := range deliveries {
				mu.Lock()
				bodies = append(bodies, string(d.Event.Payload))
				mu.Unlock()
				_ = d.Ack(t.Context()) // the test looks at the bodies
			}
		}
	}()
	file := configOf(t, "endpoints:\n  - name: shop\n    url: "+server.URL+"\n    secrets: [\"${SHOP_SECRET}\"]\n    subjects: [order.*]\nallow: [127.0.0.0/8]\nplain-http: true\n")
	path := filepath.Join(t.TempDir(), "shop.db")
	_, add := outboxIn(t, path)
	add("O-1")
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	r := &drill.Child{Program: programFile(t), URL: "http://" + address, Output: &testlog.Lines{},
		Args: []string{"relay", "--database", "sqlite:" + path, "--broker", "webhook:" + file, "--addr", address, "--ready-lag", "1s"}}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Kill() })
	add("O-2")
	eventually(t, 20*time.Second, "both events arrive", func() bool { mu.Lock(); defer mu.Unlock(); return len(bodies) >= 2 })
	server.Close()
	add("O-3")
	eventually(t, 30*time.Second, "a relay whose events do not flow is not ready", func() bool {
		answer, err := http.Get("http://" + address + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusServiceUnavailable
	})
	if err := r.Stop(20 * time.Second); err != nil {
		t.Error(err)
	}
}

func TestARelayIsRefusedWhatItCannotDoWithTheReason(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	outboxIn(t, path)
	for _, c := range []struct {
		says string
		args []string
	}{
		{"embedded", []string{"--broker", "embedded:"}},
		{"no broker", []string{"--broker", "pigeon://loft"}},
		{"write amqp://HOST?tls=true", []string{"--broker", "amqps://u:hunter2@h:5671"}},
		{"no such file", []string{"--broker", "webhook:/no/such/file"}},
		{"not understood", []string{"--broker", "redis://127.0.0.1:1/?colour=red"}},
		{"is not a number", []string{"--broker", "nats://127.0.0.1:1/?partitions=many"}},
		{"--lease", []string{"--broker", "redis://127.0.0.1:1", "--lease=-1s"}},
	} {
		code := 1
		if c.says == "--lease" || slices.Contains(c.args, "embedded:") {
			code = 2
		}
		refused(t, code, []string{c.says}, append([]string{"relay", "--database", "sqlite:" + path, "--addr", "127.0.0.1:0"}, c.args...)...)
	}
	refused(t, 1, []string{"does not begin with one of sqlite, postgres, mysql"}, "relay", "--database", "oracle://u:hunter2@h/x", "--broker", "redis://127.0.0.1:1")
	refused(t, 2, []string{"{service} means nothing", "?schema=order"}, "relay", "--database", "postgres://h/x?schema={service}", "--broker", "redis://127.0.0.1:1")
	refused(t, 2, []string{"is one database for all services", "--outbox"}, "replay", "--database", "postgres://h/shop", "--since", "2h")
}

func TestReplayTakesATimeOrADurationAndNothingElse(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2h": now.Add(-2 * time.Hour), "2026-11-29T08:00:00Z": now.Add(-4 * time.Hour), "2026-11-29T08:00:00+08:00": now.Add(-12 * time.Hour),
	} {
		if at, err := since(text, now); err != nil || !at.Equal(want) {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
	for _, text := range []string{"", "yesterday", "-2h", "2026-11-29", "2027-01-01T00:00:00Z"} {
		if _, err := since(text, now); err == nil || !strings.Contains(err.Error(), "--since") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReplaySendsAnApplicationsEventsAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	store, add := outboxIn(t, path)
	add("O-1", "O-2")
	leases, err := store.Lease(t.Context(), relay.LeaseRequest{Owner: "test", Term: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := store.Claim(t.Context(), leases, 10, time.Now())
	if err == nil {
		err = store.Settle(t.Context(), relay.Settlement{Leases: leases, Sent: claim.Events, Now: time.Now()})
	}
	if err != nil || len(claim.Events) != 2 {
		t.Fatalf("%d events, %v", len(claim.Events), err)
	}
	for range 2 { // pending already: nothing more to send
		r := runProgram(t.Context(), "replay", "--outbox", "sqlite:"+path, "--since", "1h")
		if r.code != 0 || !strings.HasSuffix(r.out.String(), "events are sent again\n") {
			t.Fatalf("%d: %s%s", r.code, r.out.String(), r.err.String())
		}
	}
	// The guide has it in the environment and in the relay's file, as the database of that one application.
	r := runProgram(t.Context(), "replay", "--outbox", "sqlite:"+path, "--database", "sqlite:"+path, "--since", "1h")
	if r.code != 0 {
		t.Errorf("with --database: %d %s", r.code, r.err.String())
	}
	if claim, err = store.Claim(t.Context(), leases, 10, time.Now()); err != nil || len(claim.Events) != 2 {
		t.Errorf("%d events are pending, %v; want both, once each", len(claim.Events), err)
	}
}

// A replay is no first start and no migration: where there is nothing to send again, a mistyped address is told, and nothing is made.
func TestReplayMakesNothingWhereThereIsNoOutbox(t *testing.T) {
	dir := t.TempDir()
	refused(t, 1, []string{"does not exist"}, "replay", "--outbox", "sqlite:"+filepath.Join(dir, "typo.db"), "--since", "1h")
	refused(t, 1, []string{"service order", "does not exist"}, "replay", "--data", dir, "--since", "1h")
	outboxIn(t, filepath.Join(dir, "order.db"))
	refused(t, 1, []string{"service risk", "does not exist"}, "replay", "--data", dir, "--services", "order,risk", "--since", "1h")
	if r := runProgram(t.Context(), "replay", "--data", dir, "--services", "order", "--since", "1h"); r.code != 0 {
		t.Errorf("what is there is refused: %s", r.err.String())
	}
	other := filepath.Join(dir, "other.db")
	atDatabase(t, "sqlite:"+other, func(db *sql.DB, _ string) {
		must[sql.Result](t)(db.ExecContext(t.Context(), "CREATE TABLE other (id INTEGER)"))
	})
	refused(t, 1, []string{"no tables of this version"}, "replay", "--outbox", "sqlite:"+other, "--since", "1h")
	for _, name := range []string{"typo.db", "risk.db"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", name, err)
		}
	}
	server := databasePatients()["postgres"](t)
	before := server.things()
	refused(t, 1, []string{"no tables of this version"}, "replay", "--outbox", server.address, "--since", "1h")
	if after := server.things(); !slices.Equal(before, after) {
		t.Errorf("it made %v of %v", after, before)
	}
}
