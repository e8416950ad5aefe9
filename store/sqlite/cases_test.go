package sqlite_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	_ "modernc.org/sqlite"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/store/storetest"
)

// foreign is another program's connection to the same file: plain SQL, the driver's defaults and a busy timeout.
func foreign(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func TestCaseB18EveryConnectionWaitsForALockAndClaimsNeverFail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true, Readers: 3})
	must(t, err)
	defer func() { must(t, s.Close()) }()

	settings := func(ctx context.Context, tx convergo.Tx) string {
		var timeout, keys, sync, query int
		var journal string
		must(t, tx.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&timeout))
		must(t, tx.QueryRowContext(ctx, "PRAGMA foreign_keys").Scan(&keys))
		must(t, tx.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync))
		must(t, tx.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal))
		must(t, tx.QueryRowContext(ctx, "PRAGMA query_only").Scan(&query))
		return fmt.Sprintf("timeout %d keys %d sync %d %s only %d", timeout, keys, sync, journal, query)
	}
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		same(t, "writer", settings(ctx, tx), "timeout 5000 keys 1 sync 1 wal only 0")
		return nil
	}))
	var open func(ctx context.Context, n int) error
	open = func(ctx context.Context, n int) error { // views inside views: each has a connection of its own
		return s.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
			same(t, "reader", settings(ctx, tx), "timeout 5000 keys 1 sync 1 wal only 1")
			if n > 1 {
				return open(ctx, n-1)
			}
			return nil
		})
	}
	must(t, open(t.Context(), 3))

	// 8 claimers × 100: a read, then a write of what was read, while another program writes to the same file.
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE job (id INTEGER PRIMARY KEY, taken INTEGER NOT NULL)")
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO job (taken) SELECT 0 FROM json_each('["+strings.Repeat("0,", 799)+"0]')")
		}
		return err
	}))
	db := foreign(t, path)
	var claims atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
					var id int64
					if err := tx.QueryRowContext(ctx, "SELECT id FROM job WHERE taken = 0 LIMIT 1").Scan(&id); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, "UPDATE job SET taken = 1 WHERE id = ?", id)
					return err
				})
				if err != nil {
					t.Error(err)
				} else {
					claims.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			if _, err := db.Exec("INSERT INTO job (id, taken) VALUES (?, 2)", 10_000+i); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	same(t, "claims", claims.Load(), 800)
}

func TestCaseB21ADuplicateIsNoErrorAndALostCommitIsOne(t *testing.T) {
	d := newDesk(t)
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE log (text TEXT)")
		return err
	}))
	write := func(ctx context.Context, tx convergo.Tx, text string) {
		_, err := tx.ExecContext(ctx, "INSERT INTO log VALUES (?)", text)
		must(t, err)
	}
	d.marked(d.event("1", 1))
	must(t, d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		write(ctx, tx, "order-log-1")
		_, err := d.Mark(ctx, tx, "stock", d.event("1", 1), false, d.base)
		write(ctx, tx, "order-log-2")
		return err
	}))
	var n int
	must(t, d.View(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM log").Scan(&n)
	}))
	same(t, "rows kept", n, 2)
}

func TestCaseB49AKeyThatIsTooLongIsRefusedBeforeSQLAndTheDatabaseCutsNothing(t *testing.T) {
	d := newDesk(t)
	e := d.event("1", 1)
	e.Key = convergo.Key(strings.Repeat("k", 256))
	if err := e.Validate(); err == nil || !strings.Contains(err.Error(), "256 > 255") {
		t.Errorf("got %v", err)
	}
	e.Key, e.Payload = convergo.Key(strings.Repeat("k", 255)), []byte(strings.Repeat("p", convergo.MaxPayloadBytes))
	d.insert(e)
	got := d.claim()[0].Event
	same(t, "key", got.Key, e.Key)
	same(t, "payload", string(got.Payload) == string(e.Payload), true)
	// A foreign writer's digest of the wrong length is an error, not a silently different key.
	err := d.Update(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event (created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type,
			aggregate_id, message_id, event_key, payload) VALUES (1, 1, 'order-10', zeroblob(32), 't', 't', 'a', '1', 'm', 'order-1000001', '')`)
		return err
	})
	if err == nil {
		t.Error("a digest of 8 bytes was taken")
	}
}

func TestCaseB55TimesAreComparedAsInstants(t *testing.T) {
	d := newDesk(t)
	parse := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		must(t, err)
		return at
	}
	first, second := d.event("1", 1), d.event("2", 2)
	first.DeliverAt, second.DeliverAt = parse("2026-03-08T09:00:00Z"), parse("2026-03-08T12:00:00+02:00")
	d.insert(first, second)
	for at, want := range map[string]int{"2026-03-08T08:59:59Z": 0, "2026-03-08T09:00:00+00:00": 1, "2026-03-08T11:00:00+00:00": 2} {
		b, err := d.Backlog(d.ctx, parse(at))
		must(t, err)
		same(t, "due at "+at, b.DelayedDue.Count, int64(want))
	}
}

func TestCaseB59AnIDIsNeverUsedAgain(t *testing.T) {
	d := newDesk(t)
	d.insert(d.event("1", 1), d.event("1", 2), d.event("1", 3))
	sent := d.claim()
	d.settle(relay.Settlement{Sent: sent})
	n, err := d.PurgeSent(d.ctx, d.base.Add(time.Hour), 10)
	must(t, err)
	same(t, "purged", n, 3)
	d.insert(d.event("1", 4))
	c := d.claim()
	same(t, "delivered", versions(c), "4 ")
	if c[0].Seq <= sent[2].Seq {
		t.Errorf("seq %d after %d", c[0].Seq, sent[2].Seq)
	}
	var id int64
	must(t, d.View(d.ctx, func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT MAX(id) FROM outbox_event").Scan(&id)
	}))
	same(t, "id", id, 4)
}

func TestCaseB60VerdictsRestOnFreshTokensNotOnCountsOfNoChange(t *testing.T) {
	d := newDesk(t)
	before := d.leases
	for range 2 { // renewing to the same values is still a renewal
		held, err := d.Lease(d.ctx, relay.LeaseRequest{Owner: "r", Held: before, Term: time.Hour})
		must(t, err)
		same(t, "renewed", len(held), len(before))
	}
	must(t, d.Release(d.ctx, "r", before))
	taken, err := d.Lease(d.ctx, relay.LeaseRequest{Owner: "r", Term: time.Hour})
	must(t, err)
	for i, l := range taken {
		same(t, "a new token", l.Token, before[i].Token+1)
	}
}

func TestAnotherProgramInsertsEventsByPlainSQL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	db := foreign(t, path)
	a := convergo.Aggregate{Type: "order", ID: "7"}
	insert := func(n int) {
		key, aggregate := convergo.KeyFor("OrderPaid", "7", int64(n)).Digest(), a.Digest()
		_, err := db.Exec(`INSERT INTO outbox_event (created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id,
			message_id, event_key, aggregate_version, payload) VALUES (?, ?, ?, ?, 'order', 'OrderPaid', 'order', '7', ?, ?, ?, '{}')`,
			n, int(a.Lane()), key[:], aggregate[:], fmt.Sprint("m", n), fmt.Sprintf("OrderPaid:7:v%d", n), n)
		if err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := range 100 {
			insert(n)
		}
	})
	wg.Go(func() {
		for range 100 {
			if err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE outbox_relay SET expires_at = 0")
				return err
			}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "r", Term: time.Minute})
	must(t, err)
	c, err := s.Claim(t.Context(), leases, 1000, time.Now())
	must(t, err)
	same(t, "claimed", len(c.Events), 100)
	same(t, "its payload", string(c.Events[99].Event.Payload), "{}")
	same(t, "its aggregate", c.Events[99].Event.Aggregate, a)
}

// AUTOINCREMENT goes on from the highest id there ever was: one row at the end of the numbers would be the last of all.
func TestAnotherProgramCannotUseUpTheIDs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	db := foreign(t, path)
	a := convergo.Aggregate{Type: "order", ID: "7"}
	insert := func(id any, n int) error {
		key, aggregate := convergo.KeyFor("OrderPaid", "7", int64(n)).Digest(), a.Digest()
		_, err := db.Exec(`INSERT INTO outbox_event (id, created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id,
			message_id, event_key, payload) VALUES (?, 1, ?, ?, ?, 'order', 'OrderPaid', 'order', '7', ?, ?, '{}')`,
			id, int(a.Lane()), key[:], aggregate[:], fmt.Sprint("m", n), fmt.Sprint("k", n))
		return err
	}
	for n, id := range []int64{math.MaxInt64, 1<<62 + 1, 0, -1} {
		if err := insert(id, n); err == nil {
			t.Errorf("an event with the id %d was accepted", id)
		}
	}
	must(t, insert(nil, 10))
	must(t, insert(int64(1<<61), 11)) // foolish, and there is room for as many again
	must(t, insert(nil, 12))
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		e := convergo.Event{
			MessageID: "m", Key: "k", Type: "OrderPaid", Topic: "order", Aggregate: a, Payload: []byte("{}"), CreatedAt: time.Now(),
		}
		_, err := s.Insert(ctx, tx, []convergo.Event{e})
		return err
	}))
}

func TestARowOfAnotherProgramThatCannotBeReadStopsNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	db := foreign(t, path)
	insert := func(id string, lane, createdAt, deliverAt, version, attempts, headers any) error {
		key, aggregate := convergo.KeyFor("OrderPaid", id, 1).Digest(), convergo.Aggregate{Type: "order", ID: id}.Digest()
		_, err := db.Exec(`INSERT INTO outbox_event (created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id,
			message_id, event_key, aggregate_version, max_attempts, deliver_at, headers, payload)
			VALUES (?, ?, ?, ?, 'order', 'OrderPaid', 'order', ?, ?, ?, ?, ?, ?, ?, '{}')`,
			createdAt, lane, key[:], aggregate[:], id, "m"+id, "OrderPaid:"+id+":v1", version, attempts, deliverAt, headers)
		return err
	}
	for id, row := range map[string][5]any{
		"lane": {1.5, 1, 0, 0, 0}, "lane text": {"a", 1, 0, 0, 0}, "created": {1, 1.5, 0, 0, 0}, "deliver": {1, 1, "tomorrow", 0, 0},
		"version": {1, 1, 0, 0.5, 0}, "attempts": {1, 1, 0, 0, "many"},
	} {
		if err := insert(id, row[0], row[1], row[2], row[3], row[4], "{}"); err == nil || !strings.Contains(err.Error(), "CHECK") {
			t.Errorf("%s: %v, want a CHECK that fails", id, err)
		}
	}
	broken := []any{"{", "[]", `{"a":{"b":1}}`, `{"a":1}`, "junk", []byte{0xff, 0xfe}, 7}
	for i, h := range broken {
		must(t, insert(fmt.Sprint("broken", i), 1, 1, 0, 0, 0, h))
	}
	must(t, insert("good", 1, 1, 0, 0, 0, `{"a":"b"}`))
	leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "r", Term: time.Minute})
	must(t, err)
	c, err := s.Claim(t.Context(), leases, 1000, time.Now())
	must(t, err)
	same(t, "claimed", len(c.Events), len(broken)+1)
	for i, p := range c.Events {
		err := p.Malformed
		if i == len(broken) {
			must(t, cmp.Or(err, p.Event.Validate()))
			same(t, "the good one's headers", fmt.Sprint(p.Event.Headers), "map[a:b]")
		} else if !errors.Is(err, convergo.ErrInvalid) || !strings.HasPrefix(err.Error(), "headers are no JSON object of texts: ") {
			t.Errorf("headers %v: %v, want what is wrong with them", broken[i], err)
		}
	}
}

func TestABusyDatabaseIsWaitedForWithinABound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true, BusyTimeout: time.Millisecond})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	other, err := foreign(t, path).Begin()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = s.Update(ctx, func(context.Context, convergo.Tx) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	if !testing.Short() { // one slice of the driver's busy timeout
		err = s.Update(t.Context(), func(context.Context, convergo.Tx) error { return nil })
		if !errors.Is(err, sqlite.ErrBusy) || convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("beyond the bound: %v", err)
		}
	}
	must(t, other.Rollback())
	must(t, s.Update(t.Context(), func(context.Context, convergo.Tx) error { return nil }))
}

func TestANewerDatabaseIsRefusedUntouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	one := fstest.MapFS{"00001_a.sql": {Data: []byte("-- +goose Up\nCREATE TABLE a (id INTEGER);\n")}}
	two := fstest.MapFS{"00001_a.sql": one["00001_a.sql"], "00002_b.sql": {Data: []byte("-- +goose Up\nCREATE TABLE b (id INTEGER);\n")}}
	must(t, s.Migrate(t.Context(), "order", one))
	must(t, s.Migrate(t.Context(), "order", two))
	must(t, s.Migrate(t.Context(), "order", two))
	if err := s.Migrate(t.Context(), "order", one); !errors.Is(err, sqlite.ErrNewer) {
		t.Errorf("a set of an older program: %v", err)
	}
	must(t, s.Close())

	db := foreign(t, path)
	_, err = db.Exec("INSERT INTO goose_engine (version_id, is_applied) VALUES (99, 1)")
	must(t, err)
	must(t, db.Close())
	before, err := os.ReadFile(path)
	must(t, err)
	for _, readOnly := range []bool{false, true} {
		if _, err = sqlite.Open(t.Context(), path, sqlite.Options{ReadOnly: readOnly}); !errors.Is(err, sqlite.ErrNewer) {
			t.Errorf("read only %v: %v", readOnly, err)
		}
	}
	after, err := os.ReadFile(path)
	must(t, err)
	same(t, "file unchanged", string(after) == string(before), true)
}

func TestAProgramWithAnOlderEngineMayRunOnTheNewestTables(t *testing.T) {
	s := open(t, sqlite.Options{})
	storetest.OlderEngine(t, func() storetest.Migrator { return s }, os.DirFS("migrations"))
}

func TestTwoVersionsOfAProgramRunTogetherDuringARollOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	storetest.RollOut(t, func() storetest.Migrator {
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, sqlite.ErrNewer)
}

func TestAFileThatIsNoDatabaseIsRefusedUntouched(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("this is a text and no database\n", 100)
	for name, content := range map[string]string{
		"text.db": text, "short.db": "x", "damaged.db": "SQLite format 3\x00" + text,
	} {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if !errors.Is(err, sqlite.ErrDamaged) || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("%s: %v", name, err)
		}
		after, err := os.ReadFile(path)
		must(t, err)
		same(t, name+" unchanged", string(after) == content, true)
	}
	for path, want := range map[string]string{dir: "is a directory", filepath.Join(dir, "no", "x.db"): "create "} {
		if _, err := sqlite.Open(t.Context(), path, sqlite.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := sqlite.Open(t.Context(), filepath.Join(dir, "missing.db"), sqlite.Options{ReadOnly: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing, to be read: %v", err)
	}
}

func TestAReadingStoreLooksAtARunningOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a name with ?#% and blanks.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := s.Mark(ctx, tx, "stock", convergo.Event{Key: "k"}, false, time.Now())
		return err
	}))
	r, err := sqlite.Open(t.Context(), path, sqlite.Options{ReadOnly: true})
	must(t, err)
	defer func() { must(t, r.Close()) }()
	var n int
	must(t, r.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM inbox_mark").Scan(&n)
	}))
	same(t, "marks", n, 1)
	if err := r.Update(t.Context(), func(context.Context, convergo.Tx) error { return nil }); !errors.Is(err, sqlite.ErrReadOnly) {
		t.Errorf("update: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestTwoProgramsThatStartTogetherBothFindTheTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestAnEventIsWrittenInAPlainDatabaseSQLTransactionToo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{Relaxed: true})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	db := foreign(t, path)
	d := &desk{base: time.UnixMicro(1)}
	for n, end := range []func(*sql.Tx) error{(*sql.Tx).Rollback, (*sql.Tx).Commit} {
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		fresh, err := s.Insert(t.Context(), tx, []convergo.Event{d.event("1", n), d.event("1", n)})
		must(t, err)
		same(t, "fresh", fmt.Sprint(fresh), "[true false]")
		must(t, end(tx))
	}
	b, err := s.Backlog(t.Context(), time.Now())
	must(t, err)
	same(t, "pending", b.Pending.Count, 1)
}
