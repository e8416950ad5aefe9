package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

// shopDatabase is a database as the relay, the programs and the test reach it.
type shopDatabase struct {
	url, jdbc   string
	driver, dsn string
	refusal     string // is in the database's words for a key that was used
}

func postgresShop(t *testing.T) shopDatabase {
	t.Helper()
	server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
	name, err := server.Database("shop")
	if err != nil {
		t.Fatal(err)
	}
	url := server.TCP(name, "disable")
	return shopDatabase{
		url: url, driver: "pgx", dsn: url, refusal: "outbox_event_key_digest_key",
		jdbc: fmt.Sprintf("jdbc:postgresql://127.0.0.1:%d/%s?user=postgres&password=%s", server.Port, name, testserver.PostgresPassword),
	}
}

func mariaShop(t *testing.T) shopDatabase {
	t.Helper()
	return mysqlShop(t, testserver.Shared(t, &servers, "mariadb", testserver.OpenMariaDB))
}

func realMySQLShop(t *testing.T) shopDatabase {
	t.Helper()
	return mysqlShop(t, testserver.Shared(t, &servers, "mysql", testserver.OpenMySQL))
}

func mysqlShop(t *testing.T, server *testserver.MySQL) shopDatabase {
	t.Helper()
	name, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	return shopDatabase{
		url: "mysql://root@" + server.Addr + "/" + name, driver: "mysql", dsn: server.TCP(name), refusal: "outbox_event_key",
		jdbc: "jdbc:mysql://" + server.Addr + "/" + name + "?user=root",
	}
}

// python and java are the examples in those languages, writing the events of so many orders.
func python(t *testing.T, db shopDatabase, prefix string, orders int) *exec.Cmd {
	t.Helper()
	program, err := testserver.Installed("languages", "python", "bin", "python")
	testserver.Must(t, err)
	return exec.CommandContext(t.Context(), program, filepath.FromSlash("../../examples/python/shop.py"), db.url, prefix, fmt.Sprint(orders))
}

func java(t *testing.T, db shopDatabase, prefix string, orders int) *exec.Cmd {
	t.Helper()
	jars, err := testserver.Installed("languages", "java")
	testserver.Must(t, err)
	return exec.CommandContext(t.Context(), "java", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(jars, "*"),
		filepath.FromSlash("../../examples/java/Shop.java"), db.jdbc, prefix, fmt.Sprint(orders))
}

// ends runs a program to its end, which must have that exit code.
func ends(t *testing.T, cmd *exec.Cmd, code int) (said string) {
	t.Helper()
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("%s: %v, want exit code %d\n%s", filepath.Base(cmd.Path), err, code, text)
	}
	return string(text)
}

// startRelay runs `convergo relay` as a process of its own.
func startRelay(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), programFile(t), append([]string{"relay", "--addr", "127.0.0.1:0", "--lease", "2s"}, args...)...)
	said := &testlog.Lines{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kill(t, cmd)
		if t.Failed() {
			t.Logf("relay %d said:\n%s", cmd.Process.Pid, said.String())
		}
	})
	eventually(t, time.Minute, "the relay is there", func() bool { return strings.Contains(said.String(), "probes on") })
	return cmd
}

// kill ends a process with SIGKILL and waits until it is gone.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
}

// arrivals are the events that came out of the broker.
type arrivals struct {
	mu      sync.Mutex
	all     []convergo.Event
	repeats int
	keys    map[convergo.Key]convergo.Event
	broken  []error
}

func (a *arrivals) collect(ctx context.Context, source inbox.Source) {
	for ctx.Err() == nil {
		got, err := source.Fetch(ctx, 100)
		if err != nil {
			continue
		}
		a.mu.Lock()
		for _, d := range got {
			a.take(d)
			_ = d.Ack(ctx) // it is delivered again
		}
		a.mu.Unlock()
	}
}

// take keeps the first of equal copies.
func (a *arrivals) take(d inbox.Delivery) {
	first, again := a.keys[d.Event.Key]
	switch {
	case d.Malformed != nil:
		a.broken = append(a.broken, d.Malformed)
	case again:
		a.repeats++
		if !bytes.Equal(first.Payload, d.Event.Payload) || first.MessageID != d.Event.MessageID {
			a.broken = append(a.broken, fmt.Errorf("%s arrived twice, as two events", d.Event.Key))
		}
	default:
		a.keys[d.Event.Key] = d.Event
		a.all = append(a.all, d.Event)
	}
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.all) + len(a.broken)
}

// told is what the examples tell of so many orders.
func told(prefix string, orders int) map[convergo.Key]convergo.Event {
	all := map[convergo.Key]convergo.Event{}
	tell := func(kind, aggregate, id string, version int64, payload []byte, headers map[string]string) {
		e := convergo.Event{
			Key: convergo.Key(fmt.Sprintf("%s:%s:v%d", kind, id, version)), Type: kind, Topic: "shop", Version: version,
			Aggregate: convergo.Aggregate{Type: aggregate, ID: id}, Payload: payload, Headers: headers,
		}
		all[e.Key] = e
	}
	tell("ShopOpened", "shop", prefix, 0, fmt.Appendf(nil, `{"no":%q}`, prefix), nil)
	everyByte := make([]byte, 256)
	for i := range everyByte {
		everyByte[i] = byte(i)
	}
	headers := map[string]string{"Content-Type": "application/json", "Shop": `Köln "Süd" 北京`}
	for n := range orders {
		no := fmt.Sprintf("%s-%d/Zürich", prefix, n+1)
		tell("OrderPlaced", "order", no, 1, []byte(`{"no":"`+no+`","total":1200}`), headers)
		tell("OrderPaid", "order", no, 2, []byte(`{"no":"`+no+`","paid":1200}`), headers)
		tell("OrderPacked", "order", no, 3, everyByte, headers)
	}
	return all
}

// match compares what arrived with what was told: all of it, nothing else, byte for byte, and each aggregate's in its order.
func (a *arrivals) match(t *testing.T, want map[convergo.Key]convergo.Event) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, err := range a.broken {
		t.Error(err)
	}
	versions := map[convergo.Aggregate]int64{}
	for _, e := range a.all {
		w, known := want[e.Key]
		if !known {
			t.Errorf("%s arrived and was never told", e.Key)
			continue
		}
		if e.Type != w.Type || e.Topic != w.Topic || e.Aggregate != w.Aggregate || e.Version != w.Version {
			t.Errorf("arrived %+v, want %+v", e, w)
		}
		if !bytes.Equal(e.Payload, w.Payload) {
			t.Errorf("%s: payload %q, want %q", e.Key, e.Payload, w.Payload)
		}
		if !maps.Equal(e.Headers, w.Headers) {
			t.Errorf("%s: headers %q, want %q", e.Key, e.Headers, w.Headers)
		}
		if age := time.Since(e.CreatedAt); age < -time.Minute || age > time.Hour || len(e.MessageID) != 36 {
			t.Errorf("%s: message id %q, created %v", e.Key, e.MessageID, e.CreatedAt)
		}
		if e.Version < versions[e.Aggregate] {
			t.Errorf("%s arrived after version %d", e.Key, versions[e.Aggregate])
		}
		versions[e.Aggregate] = e.Version
	}
	for key := range want {
		if _, there := a.keys[key]; !there {
			t.Errorf("%s never arrived", key)
		}
	}
}

// events are the keys that stand in the outbox, and how many of them are not sent yet.
func (s shopDatabase) events(t *testing.T) (keys []string, unsent int) {
	t.Helper()
	db, err := sql.Open(s.driver, s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT event_key FROM outbox_event")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	err = db.QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM outbox_pending) + (SELECT COUNT(*) FROM outbox_waiting)").Scan(&unsent)
	if err != nil {
		t.Fatal(err)
	}
	return keys, unsent
}

func TestARelayServesProgramsInPythonAndJavaThatWritePlainSQL(t *testing.T) {
	for name, open := range map[string]func(*testing.T) shopDatabase{"postgres": postgresShop, "mariadb": mariaShop, "mysql": realMySQLShop} {
		t.Run(name, func(t *testing.T) { serveOtherLanguages(t, open(t), name) })
	}
}

func serveOtherLanguages(t *testing.T, db shopDatabase, name string) {
	const orders = 25
	_, _ = python(t, db, "", 0), java(t, db, "", 0) // both are installed
	broker := testserver.Shared(t, &servers, "nats", testserver.OpenNATS)
	relay := []string{"--database", db.url, "--broker", broker.URL + "/?stream=" + name + "&prefix=" + name}
	b, err := nats.Open(t.Context(), nats.Config{URL: broker.URL, Stream: name, Prefix: name})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	source, err := b.Subscribe(t.Context(), "witness", []convergo.Subject{{Topic: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	got := &arrivals{keys: map[convergo.Key]convergo.Event{}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); got.collect(ctx, source) }()
	defer func() { stop(); <-done }()

	// The relay is killed while the first program writes; the second one writes while there is none.
	first := startRelay(t, relay...)
	writer := python(t, db, "py", orders)
	said := &testlog.Lines{}
	writer.Stdout, writer.Stderr = said, said
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the first events arrive", func() bool { return got.count() >= 5 })
	kill(t, first)
	if err := writer.Wait(); err != nil {
		t.Fatalf("python: %v\n%s", err, said.String())
	}
	ends(t, java(t, db, "java", orders), 0)
	want := told("py", orders)
	maps.Copy(want, told("java", orders))
	if keys, unsent := db.events(t); len(keys) != len(want) || unsent < orders {
		t.Errorf("%d events, want %d; %d of them unsent, want the second program's at least", len(keys), len(want), unsent)
	}
	startRelay(t, relay...)
	eventually(t, time.Minute, "all events arrive", func() bool { return got.count() >= len(want) })

	// The same again: the fact that may be told twice is passed over, the order that was told before is refused.
	for _, again := range []*exec.Cmd{python(t, db, "py", orders), java(t, db, "java", orders)} {
		said := ends(t, again, 1)
		for _, words := range []string{"-1/Z", "refused", db.refusal} {
			if !strings.Contains(said, words) {
				t.Errorf("a second run said %q, not %q", said, words)
			}
		}
	}
	// What comes last has come: nothing else is on its way.
	ends(t, java(t, db, "last", 1), 0)
	maps.Copy(want, told("last", 1))
	eventually(t, time.Minute, "the last events arrive", func() bool { return got.count() >= len(want) })
	eventually(t, time.Minute, "the outbox is empty", func() bool { _, unsent := db.events(t); return unsent == 0 })
	got.match(t, want)
	keys, _ := db.events(t)
	slices.Sort(keys)
	var wanted []string
	for key := range want {
		wanted = append(wanted, string(key))
	}
	slices.Sort(wanted)
	if !slices.Equal(keys, wanted) {
		t.Errorf("the outbox has %d events, want %d: %v", len(keys), len(wanted), keys)
	}
	t.Logf("%d events, %d repeats", len(want), got.repeats)
}
