package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

func TestAPoolerIsRecognised(t *testing.T) {
	server := shared(t)
	same(t, "the server itself", open(t, postgres.Options{Notify: -1}).Pooled(), false)
	same(t, "PgBouncer", openOn(t, pooler(t, 40).DSN("postgres"), postgres.Options{Schema: server.Name("pooled"), Notify: -1}).Pooled(), true)
}

// Everything that a service does goes through one server connection that others use between its transactions: a search_path
// of one must not be met by another.
func TestServicesBehindOnePoolerFindTheirOwnTables(t *testing.T) {
	server, bouncer := shared(t), pooler(t, 1)
	var stores []*postgres.Store
	for i := range 3 {
		s := openOn(t, bouncer.DSN("postgres"), postgres.Options{Schema: server.Name("service"), Notify: -1})
		exec(t, s, "CREATE TABLE orders (name TEXT)", fmt.Sprintf("INSERT INTO orders VALUES ('%d')", i))
		stores = append(stores, s)
	}
	for range 3 {
		for i, s := range stores {
			same(t, "name", one[string](t, s, "SELECT name FROM orders WHERE name <> ?", "x"), fmt.Sprint(i))
			insert(t, s, event(fmt.Sprint(one[int](t, s, "SELECT count(*) FROM outbox_event")), 1))
		}
	}
	for _, s := range stores {
		same(t, "events", one[int](t, s, "SELECT count(*) FROM outbox_event"), 3)
	}
	reserved := openOn(t, bouncer.DSN("postgres"), postgres.Options{Schema: "order", Notify: -1}) // a word of SQL
	insert(t, reserved, event("1", 1))
	same(t, "claimed", len(claim(t, reserved, lease(t, reserved, "a"), 10)), 1)
	if _, err := postgres.Open(t.Context(), server.DSN("postgres"), postgres.Options{Schema: `a"; DROP`}); err == nil {
		t.Error("a schema that is no name was accepted")
	}
}

func TestProcessesThatStartTogetherAllFindTheirTables(t *testing.T) {
	server := shared(t)
	schema := server.Name("together")
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			s, err := postgres.Open(context.Background(), server.DSN("postgres"), postgres.Options{Schema: schema, MaxConns: 2})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

func migrations(n int) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		fsys[fmt.Sprintf("%05d_step.sql", i)] = &fstest.MapFile{
			Data: fmt.Appendf(nil, "-- +goose Up\nCREATE TABLE step_%d (n BIGINT PRIMARY KEY);\nINSERT INTO step_%d VALUES (%d);\n", i, i, i),
		}
	}
	return fsys
}

func TestMigrationsRunOnceAndANewerDatabaseIsLeftAlone(t *testing.T) {
	server := shared(t)
	schema := server.Name("migrated")
	s := open(t, postgres.Options{Schema: schema})
	must(t, s.Migrate(t.Context(), "order", migrations(1)))
	must(t, s.Migrate(t.Context(), "order", migrations(3)))
	must(t, s.Migrate(t.Context(), "order", migrations(3)))
	same(t, "rows", one[int](t, s, "SELECT count(*) FROM step_1, step_2, step_3"), 1)
	if err := s.Migrate(t.Context(), "order", migrations(2)); !errors.Is(err, postgres.ErrNewer) {
		t.Errorf("an older program: %v, want ErrNewer", err)
	}
	exec(t, s, "INSERT INTO goose_engine (version_id, is_applied) VALUES (99, true)")
	if _, err := postgres.Open(t.Context(), server.DSN("postgres"), postgres.Options{Schema: schema}); !errors.Is(err, postgres.ErrNewer) {
		t.Errorf("an older engine: %v, want ErrNewer", err)
	}
	if err := s.Migrate(t.Context(), "Order;", migrations(1)); err == nil {
		t.Error("a set that is no name was accepted")
	}
}

func TestAProgramWithAnOlderEngineMayRunOnTheNewestTables(t *testing.T) {
	schema := shared(t).Name("older")
	storetest.OlderEngine(t, func() storetest.Migrator { return open(t, postgres.Options{Schema: schema}) }, os.DirFS("migrations"))
}

func TestTwoVersionsOfAProgramRunTogetherDuringARollOut(t *testing.T) {
	schema := shared(t).Name("rollout")
	storetest.RollOut(t, func() storetest.Migrator { return open(t, postgres.Options{Schema: schema}) }, postgres.ErrNewer)
}

// Version N goes on while version N+1 has added a column and changed a type that N's prepared statements know of.
func TestAMigrationByANewerVersionDoesNotDisturbARunningOlderOne(t *testing.T) {
	server := shared(t)
	schema := server.Name("rolling")
	older := open(t, postgres.Options{Schema: schema, Notify: -1})
	exec(t, older, "CREATE TABLE thing (id BIGINT PRIMARY KEY, n INTEGER NOT NULL)")
	use := func(i int) {
		t.Helper()
		must(t, older.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO thing (id, n) VALUES (?, ?)", i, i); err != nil {
				return err
			}
			var n int
			return tx.QueryRowContext(ctx, "SELECT n FROM thing WHERE id = ?", i).Scan(&n)
		}))
	}
	use(1)
	use(2)
	newer := openOn(t, server.DSN("postgres"), postgres.Options{Schema: schema, Notify: -1})
	exec(t, newer, "ALTER TABLE thing ADD COLUMN extra TEXT NOT NULL DEFAULT ''", "ALTER TABLE thing ALTER COLUMN n TYPE BIGINT")
	use(3)
	use(4)
	same(t, "rows", one[int](t, older, "SELECT count(*) FROM thing"), 4)
	same(t, "transactions that began again", older.Stats().Retries > 0, true)
}

func TestPasswordsNeverShowInAnError(t *testing.T) {
	server := shared(t)
	const secret = "s3cret-p4ss"
	with := func(dsn string) string { return strings.Replace(dsn, testserver.PostgresPassword, secret, 1) }
	for name, dsn := range map[string]string{
		"wrong password":   with(server.TCP("postgres", "disable")),
		"no such host":     "postgres://me:" + secret + "@no-such-host.invalid/db",
		"nobody listens":   "postgres://me:" + secret + "@127.0.0.1:1/db",
		"no such database": strings.Replace(server.TCP("absent", "disable"), "postgres:", "postgres:", 1),
		"bad url":          "postgres://me:" + secret + "@host:port:port/db",
		"bad setting":      "host=127.0.0.1 user=me password=" + secret + " port=nonsense",
		"bad TLS":          with(server.TCP("postgres", "verify-full&sslrootcert=/no/such/file")),
		"not trusted":      with(server.TCP("postgres", "verify-full")),
	} {
		var log testlog.Lines
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := postgres.Open(ctx, dsn, postgres.Options{Schema: "x", Log: slog.New(slog.NewTextHandler(&log, nil))})
		cancel()
		if err == nil {
			t.Errorf("%s: opened", name)
			continue
		}
		for _, word := range []string{secret, testserver.PostgresPassword} {
			if strings.Contains(err.Error()+log.String()+fmt.Sprintf("%+v", err), word) {
				t.Errorf("%s: the password is in %q", name, err)
			}
		}
	}
}

func TestTLSAndPasswordComeWithTheDSN(t *testing.T) {
	server := shared(t)
	dsn := server.TCP("postgres", "verify-full") + "&sslrootcert=" + url.QueryEscape(server.CertFile)
	s := openOn(t, dsn, postgres.Options{Schema: server.Name("tls")})
	same(t, "encrypted", one[bool](t, s, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"), true)
	_, err := postgres.Open(t.Context(), server.TCP("postgres", "verify-full"), postgres.Options{Schema: "x"})
	if convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
}

func TestLaxSettingsAreReportedWithWhatTheyCanLose(t *testing.T) {
	found, err := open(t, postgres.Options{Notify: -1}).Check(t.Context())
	must(t, err)
	if len(found) > 0 {
		t.Errorf("a durable server: %v", found)
	}
	lax := testserver.Own(t, func() (*testserver.Postgres, error) {
		return testserver.OpenPostgres("fsync=off", "full_page_writes=off", "synchronous_commit=off",
			"default_transaction_isolation=serializable")
	})
	s := openOn(t, lax.DSN("postgres"), postgres.Options{})
	found, err = s.Check(t.Context())
	must(t, err)
	var settings []string
	for _, w := range found {
		settings = append(settings, w.Setting)
		if w.Loses == "" || w.Want == "" || w.Value == "" {
			t.Errorf("incomplete: %+v", w)
		}
	}
	same(t, "settings", strings.Join(settings, " "), "fsync full_page_writes synchronous_commit default_transaction_isolation")
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { // the store's own level all the same
		var level string
		err := tx.QueryRowContext(ctx, "SHOW transaction_isolation").Scan(&level)
		same(t, "level", level, "read committed")
		return err
	}))
}

func TestAServerThatIsKilledIsAnOutageAndLosesNothing(t *testing.T) {
	server := testserver.Own(t, testserver.OpenDefaultPostgres)
	s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: "orders"})
	leases := lease(t, s, "a")
	insert(t, s, many("before", 20, 2)...)
	settle(t, s, leases, claim(t, s, leases, 1))
	left := len(claim(t, s, leases, 100))
	must(t, server.Kill())
	empty := func(context.Context, convergo.Tx) error { return nil }
	if err := s.Update(t.Context(), empty); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("update without a server: %v", err)
	}
	must(t, server.Start())
	must(t, server.Ready())
	must(t, s.Update(t.Context(), empty)) // dead connections are replaced, at once
	same(t, "events", len(claim(t, s, leases, 100)), left)
	insert(t, s, event("after", 1))
	same(t, "events then", len(claim(t, s, leases, 100)), left+1)

	inside := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		if _, err := s.Insert(ctx, tx, []convergo.Event{event("lost", 1)}); err != nil {
			return err
		}
		must(t, server.Kill())
		_, err := s.Insert(ctx, tx, []convergo.Event{event("lost", 2)})
		return err
	})
	if convergo.VerdictOf(inside) != convergo.Outage {
		t.Errorf("a connection lost inside: %v", inside)
	}
	must(t, server.Start())
	must(t, server.Ready())
	same(t, "events in the end", one[int](t, s, "SELECT count(*) FROM outbox_event"), 21)
}

func TestOtherProcessesAreWokenAfterACommit(t *testing.T) {
	server := shared(t)
	schema := server.Name("woken")
	writer := open(t, postgres.Options{Schema: schema})
	var events, others atomic.Int64
	listener := openOn(t, pooler(t, 40).DSN("postgres"), postgres.Options{Schema: schema, ListenDSN: server.DSN("postgres")})
	listener.OnEvents(func() { events.Add(1) })
	elsewhere := open(t, postgres.Options{})
	elsewhere.OnEvents(func() { others.Add(1) })
	n, began := 0, time.Now()
	eventually(t, "the other process is woken", 20*time.Second, func() bool { // it may not listen yet
		n++
		insert(t, writer, event(fmt.Sprint(n), 1))
		return events.Load() > 0
	})
	same(t, "wake-ups in another schema", others.Load(), 0)
	for i := range 200 {
		insert(t, writer, event(fmt.Sprint("more-", i), 1))
	}
	got := events.Load() // before the clock: what is heard later was sent later
	most := int64(time.Since(began)/(25*time.Millisecond)) + 3
	if got > most {
		t.Errorf("%d wake-ups by %d commits in %v, want %d at most", got, n+200, time.Since(began), most)
	}
	quiet := open(t, postgres.Options{Notify: -1, Schema: schema})
	eventually(t, "all is heard", 30*time.Second, func() bool { // what is heard late on a slow machine would count for the last insert
		was := events.Load()
		wait(t.Context(), time.Second)
		return events.Load() == was
	})
	was := events.Load()
	insert(t, quiet, event("quiet", 1))
	wait(t.Context(), 100*time.Millisecond)
	same(t, "wake-ups when it is off", events.Load(), was)
}

func TestPlaceholdersAreRewrittenOutsideOfTextsAndComments(t *testing.T) {
	for query, want := range map[string]string{
		"SELECT ?":                      "SELECT $1",
		"a = ? AND b=?":                 "a = $1 AND b=$2",
		"'?' || ? || 'it''s ?' || ?":    "'?' || $1 || 'it''s ?' || $2",
		`"?" = ? AND "a""?" = ?`:        `"?" = $1 AND "a""?" = $2`,
		"? -- ?\n, ?":                   "$1 -- ?\n, $2",
		"? -- ?":                        "$1 -- ?",
		"/* ? /* ? */ ? */ ?":           "/* ? /* ? */ ? */ $1",
		"$$ ? $$, ?, $a$ ? $$ ? $a$, ?": "$$ ? $$, $1, $a$ ? $$ ? $a$, $2",
		`E'\'?' || ? || e'\\' || ?`:     `E'\'?' || $1 || e'\\' || $2`,
		`'\' || ? || like'\' || ?`:      `'\' || $1 || like'\' || $2`,
		"payload ?? 'key' AND id = ?":   "payload ? 'key' AND id = $1",
		"'never closed ?":               "'never closed ?",
		"a$b$ = ? AND $1 = ?":           "a$b$ = $1 AND $1 = $2",
		"SELECT 1":                      "SELECT 1",
		"x IN (?,?,?,?,?,?,?,?,?,?)":    "x IN ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
		"/*":                            "/*",
		"'é' || ? || '漢字?'":             "'é' || $1 || '漢字?'",
	} {
		same(t, query, postgres.Rewrite(query), want)
	}
}

func FuzzRewritingKeepsEverythingButThePlaceholders(f *testing.F) {
	f.Add("SELECT ? -- '\n FROM \"a?\" WHERE $$ ? $$ = ?")
	f.Fuzz(func(t *testing.T, query string) {
		got := postgres.Rewrite(query)
		if !strings.Contains(query, "?") && got != query {
			t.Errorf("%q became %q", query, got)
		}
	})
}

func TestTheFirstTransactionThatALaterSnapshotMaySee(t *testing.T) {
	for _, c := range []struct {
		earlier, later string
		want           int64
	}{
		{"10:10:", "10:10:", 0},
		{"10:10:", "11:11:", 10},
		{"10:12:10", "10:12:10", 0},
		{"10:12:10", "12:12:", 10},
		{"10:12:10", "10:14:10", 12},
		{"10:12:10,11", "10:14:10,12,13", 11},
		{"10:12:10", "10:14:10,12,13", 0},
		{"10:12:10", "10:15:10,12,13", 14},
		{"9:20:9,15", "9:30:9,15,20,21", 22},
		{"100:100:", "9:30:9", 0}, // another server's, with lower numbers: floors.look starts at the beginning then
	} {
		got, err := postgres.FirstNew(c.earlier, c.later)
		must(t, err)
		same(t, c.earlier+" then "+c.later, got, c.want)
	}
	for _, text := range []string{"", "1:2", "a:b:", "1:b:", "1:2:c", "1:2:3:4"} {
		if _, err := postgres.FirstNew(text, text); err == nil {
			t.Errorf("%q is read as a snapshot", text)
		}
	}
}

func TestATransactionIsOverWhenItsFunctionHasReturned(t *testing.T) {
	s := open(t, postgres.Options{Notify: -1, MaxConns: 1})
	var kept convergo.Tx
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		kept = tx
		if err := s.Update(ctx, func(context.Context, convergo.Tx) error { return nil }); err == nil {
			t.Error("an Update inside an Update is refused, or it would wait for itself")
		}
		if _, err := tx.QueryContext(ctx, "SELECT 1 UNION SELECT 2"); err != nil { // left open, as is the row
			return err
		}
		return nil
	}))
	_, err := kept.ExecContext(t.Context(), "SELECT 1")
	query, again := kept.QueryContext(t.Context(), "SELECT 1")
	if query != nil {
		must(t, query.Close())
	}
	var n int
	for _, err := range []error{err, again, kept.QueryRowContext(t.Context(), "SELECT 1").Scan(&n)} {
		if !errors.Is(err, postgres.ErrTxDone) {
			t.Errorf("%v, want ErrTxDone", err)
		}
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error { // the one connection is free
		must(t, s.View(ctx, func(ctx context.Context, inner convergo.Tx) error {
			return inner.QueryRowContext(ctx, "SELECT 1").Scan(&n)
		}))
		_, err := s.Backlog(ctx, time.Now())
		return err
	}))
	err = s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM outbox_event")
		return err
	})
	if err == nil {
		t.Error("a View can write")
	}
}

func TestAReadOnlyStoreWritesNothing(t *testing.T) {
	server := shared(t)
	schema := server.Name("readonly")
	insert(t, open(t, postgres.Options{Schema: schema}), event("1", 1))
	s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: schema, ReadOnly: true})
	same(t, "events", one[int](t, s, "SELECT count(*) FROM outbox_event"), 1)
	for what, err := range map[string]error{
		"update":  s.Update(t.Context(), func(context.Context, convergo.Tx) error { return nil }),
		"migrate": s.Migrate(t.Context(), "order", migrations(1)),
	} {
		if !errors.Is(err, postgres.ErrReadOnly) {
			t.Errorf("%s: %v, want ErrReadOnly", what, err)
		}
	}
	must(t, s.Close())
	if err := s.View(t.Context(), func(context.Context, convergo.Tx) error { return nil }); !errors.Is(err, postgres.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
