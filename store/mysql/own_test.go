package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

func TestAPasswordNeverShowsInAnError(t *testing.T) {
	const secret = "hunter2%/x"
	check := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s is accepted", what)
			return
		}
		for _, part := range []string{secret, "hunter2", "%/x"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	for _, dsn := range []string{
		"user:" + secret + "@tcp(127.0.0.1:1)/db", "user:" + secret, "user:" + secret + "/db", "user:" + secret + "@/db?x=%zz",
		"user:" + secret + "@tcp(127.0.0.1:1/db", "user:" + secret + "@" + secret + "/db", "user:" + secret + "@tcp(127.0.0.1:1)/",
		"user:" + secret + "@tcp(127.0.0.1:1)/db?tls=" + secret, "mysql://user:" + secret + "@127.0.0.1:1/db", "mysql://user:" + secret,
		"mysql://user:hunter2@127.0.0.1:1/db", "mysql://user:hunter2@[::1/db", "mysql://u:hunter2@h:port/db", "mysql://user:hunter2@127.0.0.1:1/db?tls=hunter2",
		"user:" + secret + "@tcp(127.0.0.1:1)/db?parseTime=" + secret, "user:" + secret + "@tcp(127.0.0.1:1)/db?multiStatements=true",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := mysql.Open(ctx, dsn, mysql.Options{})
		check(dsn, err)
		check("creating "+dsn, mysql.CreateDatabase(ctx, dsn, mysql.Options{}))
		cancel()
	}
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		_, err := mysql.Open(t.Context(), "root:"+secret+"@unix("+server.Socket+")/db", mysql.Options{})
		check("a wrong password", err)
		_, err = mysql.Open(t.Context(), "mysql://root:hunter2@"+server.Addr+"/db", mysql.Options{})
		check("a wrong password in a URL", err)
		_, err = mysql.Open(t.Context(), server.DSN("nowhere"), mysql.Options{})
		if err == nil || !strings.Contains(err.Error(), "create the database first") {
			t.Errorf("a database that does not exist: %v", err)
		}
	})
}

func TestADatabaseIsCreatedAndAURLNamesIt(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		must(t, server.Exec("CREATE USER IF NOT EXISTS 'shop'@'%' IDENTIFIED BY 'a b/c@d'", "GRANT ALL ON `convergo\\_%`.* TO 'shop'@'%'"))
		url := "mysql://shop:a%20b%2Fc%40d@" + server.Addr + "/convergo_order?timeout=5s"
		for range 2 {
			must(t, mysql.CreateDatabase(t.Context(), url, mysql.Options{}))
		}
		s := open(t, url, mysql.Options{})
		must(t, insert(t.Context(), s, event("1", 1)))
		s = open(t, "mysql://root@localhost/convergo_order?socket="+server.Socket, mysql.Options{})
		b, err := s.Backlog(t.Context(), time.Now())
		must(t, err)
		same(t, "pending", b.Pending.Count, 1)
	})
}

// What the documentation promises to programs in other languages: a plain INSERT, and the trigger does the rest.
func TestAPlainInsertFromAnyProgramIsAnEvent(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		db := raw(t, dsn)
		write := func(change string, args ...any) error {
			text := `INSERT INTO outbox_event (message_id, event_key, key_digest, topic, type, aggregate_type, aggregate_id, aggregate_digest, aggregate_version, lane, payload, deliver_at, created_at)
 SELECT m, k, UNHEX(SHA2(k, 256)), 'order', 'OrderPaid', 'order', a, UNHEX(SHA2(CONCAT('order/', a), 256)), 1,
        CONV(LEFT(SHA2(CONCAT('order/', a), 256), 2), 16, 10) % 64, '{"a": 1}', 0, 1790000000000000
   FROM (SELECT ? AS m, ? AS k, ? AS a) AS v`
			for _, pair := range strings.Split(change, ";") {
				if from, to, ok := strings.Cut(pair, "=>"); ok {
					text = strings.Replace(text, from, to, 1)
				}
			}
			_, err := db.ExecContext(t.Context(), text, args...)
			return err
		}
		must(t, write("", "m-1", "Paid é:1", "é-1"))
		must(t, write(", 0, 1790=>, 1790000000000000, 1790", "m-2", "later:1", "2"))
		leases := lease(t, s, "r")
		c, err := s.Claim(t.Context(), leases, 10, time.UnixMicro(1_790_000_000_000_000))
		must(t, err)
		got := map[convergo.Key]convergo.Event{}
		for _, p := range c.Events {
			got[p.Event.Key] = p.Event
			same(t, "lane of "+string(p.Event.Key), p.Lane, p.Event.Aggregate.Lane())
		}
		same(t, "events", len(got), 2)
		same(t, "payload", string(got["Paid é:1"].Payload), `{"a": 1}`)
		if e, err := got["Paid é:1"], got["Paid é:1"].Validate(); err != nil || e.Aggregate.ID != "é-1" {
			t.Errorf("the event %+v: %v", e, err)
		}
		// Written again through the store it is a duplicate: both compute one digest.
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			fresh, err := s.Insert(ctx, tx, []convergo.Event{got["later:1"]})
			if err == nil && fresh[0] {
				t.Error("the store does not know the key that was written by SQL")
			}
			return err
		}))
		// A wrong row is refused, on a server that cuts what is too long too.
		_, err = db.ExecContext(t.Context(), "SET GLOBAL sql_mode = ''")
		must(t, err)
		defer func() {
			_, err := db.ExecContext(t.Context(), "SET GLOBAL sql_mode = DEFAULT")
			must(t, err)
		}()
		db = raw(t, dsn)
		for what, err := range map[string]error{
			"a lane that is none":         write("% 64=>% 64 + 64", "m", "k1", "1"),
			"a digest in hexadecimal":     write("UNHEX(SHA2(k, 256))=>SHA2(k, 256)", "m", "k2", "1"),
			"a digest that is too short":  write("UNHEX(SHA2(k, 256))=>LEFT(UNHEX(SHA2(k, 256)), 16)", "m", "k3", "1"),
			"no key":                      write("", "m", "", "1"),
			"a key that is too long":      write("", "m", strings.Repeat("k", 256), "1"),
			"a key that is much too long": write("", "m", strings.Repeat("k", 2000), "1"),
			"a negative version":          write("256)), 1,=>256)), -1,", "m", "k4", "1"),
		} {
			if err == nil {
				t.Errorf("%s is accepted", what)
			}
		}
	})
}

// Portable text creates a service's tables in a database whose collation ignores case, accents and blanks at the end.
func TestCaseB47KeysAreBytesInAServicesTablesToo(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		must(t, s.Migrate(t.Context(), "shop", fstest.MapFS{"00001_shop.sql": {Data: []byte(`-- +goose Up
-- a table; with a ';' in its comment
CREATE TABLE item (k VARCHAR(50) NOT NULL PRIMARY KEY, note TEXT NOT NULL CHECK (note <> ';'));
CREATE INDEX item_note ON item (k);
`)}}))
		pairs := [][2]string{{"Pay-7f", "pay-7F"}, {"café-1", "cafe-1"}, {"😀", "😡"}, {"１", "1"}, {"evt-1", "evt-1 "}, {"ß", "ss"}}
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			for _, p := range pairs {
				for _, k := range p {
					if _, err := tx.ExecContext(ctx, "INSERT INTO item (k, note) VALUES (?, ?)", k, strings.Repeat("n", 100_000)); err != nil {
						return fmt.Errorf("%q: %w", k, err)
					}
				}
				var n int
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM item WHERE k = ?", p[0]).Scan(&n); err != nil {
					return err
				}
				same(t, "rows that are "+p[0], n, 1)
			}
			return nil
		}))
		warnings, err := s.Check(t.Context())
		must(t, err)
		for _, w := range warnings {
			if strings.HasPrefix(w.Setting, "collation") {
				t.Error(w)
			}
		}
		_, err = raw(t, dsn).ExecContext(t.Context(), "CREATE TABLE loose (k VARCHAR(50), f TEXT) ENGINE=MyISAM")
		must(t, err)
		warnings, err = s.Check(t.Context())
		must(t, err)
		found := fmt.Sprint(warnings)
		for _, want := range []string{"collation of loose.k is utf8mb4_general_ci", "collation of loose.f", "engine of loose is MyISAM"} {
			if !strings.Contains(found, want) {
				t.Errorf("Check does not tell %q: %s", want, found)
			}
		}
	})
}

func TestCheckTellsOfSettingsThatCanLoseACommit(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		warnings, err := s.Check(t.Context())
		must(t, err)
		if len(warnings) > 0 {
			t.Errorf("warnings on a server with all that is needed: %v", warnings)
		}
		must(t, server.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL sync_binlog = 0", "SET GLOBAL sql_mode = ''",
			"SET GLOBAL max_allowed_packet = 1048576"))
		defer func() {
			must(t, server.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 1", "SET GLOBAL sync_binlog = 1", "SET GLOBAL sql_mode = DEFAULT",
				"SET GLOBAL max_allowed_packet = 67108864"))
		}()
		warnings, err = s.Check(t.Context())
		must(t, err)
		found := map[string]relay.Warning{}
		for _, w := range warnings {
			found[w.Setting] = w
		}
		want := []string{"innodb_flush_log_at_trx_commit", "sql_mode", "max_allowed_packet"}
		var logged int
		must(t, raw(t, server.DSN("")).QueryRow("SELECT @@log_bin").Scan(&logged))
		if logged == 1 {
			want = append(want, "sync_binlog")
		}
		same(t, "warnings", len(found), len(want))
		for _, name := range want {
			if w := found[name]; w.Loses == "" || w.Value == "" || w.Want == "" {
				t.Errorf("%s: %+v", name, w)
			}
		}
	})
}

func TestADatabaseOfANewerVersionIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		set := func(n int) fstest.MapFS {
			files := fstest.MapFS{}
			for i := range n {
				files[fmt.Sprintf("%05d_x.sql", i+1)] = &fstest.MapFile{Data: []byte(fmt.Sprintf("-- +goose Up\nCREATE TABLE t%d (a BIGINT);\n", i))}
			}
			return files
		}
		s := open(t, dsn, mysql.Options{})
		must(t, s.Migrate(t.Context(), "shop", set(2)))
		must(t, s.Migrate(t.Context(), "shop", set(2)))
		if err := s.Migrate(t.Context(), "shop", set(1)); !errors.Is(err, mysql.ErrNewer) {
			t.Errorf("an older program's migration: %v", err)
		}
		_, err := raw(t, dsn).ExecContext(t.Context(), "INSERT INTO goose_engine (version_id, is_applied) VALUES (99, 1)")
		must(t, err)
		if _, err := mysql.Open(t.Context(), dsn, mysql.Options{}); !errors.Is(err, mysql.ErrNewer) {
			t.Errorf("a newer engine: %v", err)
		}
		if _, err := mysql.Open(t.Context(), dsn, mysql.Options{ReadOnly: true}); !errors.Is(err, mysql.ErrNewer) {
			t.Errorf("a newer engine, for reading: %v", err)
		}
	})
}

func TestAProgramWithAnOlderEngineMayRunOnTheNewestTables(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		storetest.OlderEngine(t, func() storetest.Migrator { return open(t, dsn, mysql.Options{}) }, os.DirFS("migrations"))
	})
}

func TestTwoVersionsOfAProgramRunTogetherDuringARollOut(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		storetest.RollOut(t, func() storetest.Migrator { return open(t, dsn, mysql.Options{}) }, mysql.ErrNewer)
	})
}

func TestProcessesThatStartTogetherMigrateOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		var group sync.WaitGroup
		for range 6 {
			group.Go(func() {
				s, err := mysql.Open(t.Context(), dsn, mysql.Options{MaxConns: 3})
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
		// One that was killed in the midst of it left some tables, and no version: it is done again.
		_, err := raw(t, dsn).ExecContext(t.Context(), "DELETE FROM goose_engine WHERE version_id > 0")
		must(t, err)
		s := open(t, dsn, mysql.Options{})
		must(t, insert(t.Context(), s, event("1", 1)))
		c, err := s.Claim(t.Context(), lease(t, s, "r"), 10, time.Now())
		must(t, err)
		same(t, "claimed: the trigger is there once", len(c.Events), 1)
	})
}

// A statement waits for a lock until its patience ends: MySQL rolls back that statement alone. Half a transaction is not committed.
func TestALockThatCannotBeHadRollsBackAllAndIsTriedAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		db := raw(t, dsn)
		for _, statement := range []string{"CREATE TABLE n (id BIGINT PRIMARY KEY, v BIGINT)", "INSERT INTO n VALUES (1, 0), (2, 0)"} {
			_, err := db.ExecContext(t.Context(), statement)
			must(t, err)
		}
		s := open(t, dsn, mysql.Options{LockWait: time.Second})
		holder, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		_, err = holder.ExecContext(t.Context(), "UPDATE n SET v = 100 WHERE id = 2")
		must(t, err)
		runs, hooks := 0, 0
		must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			runs++
			tx.(convergo.AfterCommit).AfterCommit(func() { hooks++ })
			if _, err := tx.ExecContext(ctx, "UPDATE n SET v = v + 1 WHERE id = 1"); err != nil {
				return err
			}
			if runs == 2 {
				must(t, holder.Commit())
			}
			_, _ = tx.ExecContext(ctx, "UPDATE n SET v = v + 1 WHERE id = 2") // its error is swallowed
			_, err := tx.ExecContext(ctx, "UPDATE n SET v = v + 10 WHERE id = 1")
			if runs == 1 && !errors.Is(err, mysql.ErrAborted) {
				t.Errorf("a statement after the abort: %v", err)
			}
			return nil
		}))
		var a, b int
		must(t, db.QueryRow("SELECT (SELECT v FROM n WHERE id = 1), (SELECT v FROM n WHERE id = 2)").Scan(&a, &b))
		same(t, "runs", runs, 2)
		same(t, "functions after the commit", hooks, 1)
		same(t, "the first row", a, 11)
		same(t, "the second row", b, 101)
		same(t, "lock waits", s.Stats().LockWaits, 1)
		for _, statement := range []string{"COMMIT", " /* x */ rollback", "-- x\nCREATE TABLE other (a INT)", "TRUNCATE n"} {
			err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "inside a transaction") {
				t.Errorf("%q in an Update: %v", statement, err)
			}
		}
	})
}

func TestAViewSeesOneMomentAndWritesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		count := func(ctx context.Context, tx convergo.Tx) (n int) {
			must(t, tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_event").Scan(&n))
			return n
		}
		var kept convergo.Tx
		must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			kept = tx
			same(t, "before", count(ctx, tx), 0)
			must(t, insert(t.Context(), s, event("1", 1)))
			same(t, "after another's commit", count(ctx, tx), 0)
			if _, err := tx.ExecContext(ctx, "DELETE FROM outbox_event"); err == nil {
				t.Error("a View writes")
			}
			return nil
		}))
		if _, err := kept.ExecContext(t.Context(), "SELECT 1"); !errors.Is(err, mysql.ErrTxDone) {
			t.Errorf("a transaction that is over: %v", err)
		}
		if err := kept.QueryRowContext(t.Context(), "SELECT 1").Scan(new(int)); !errors.Is(err, mysql.ErrTxDone) {
			t.Errorf("a row of a transaction that is over: %v", err)
		}
		must(t, s.Close())
		if err := insert(t.Context(), s, event("2", 1)); !errors.Is(err, mysql.ErrClosed) {
			t.Errorf("Update on a closed store: %v", err)
		}
	})
}

func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // what waits for a second one waits for ever
		defer cancel()
		s, err := mysql.Open(ctx, fresh(t, server), mysql.Options{MaxConns: 1})
		must(t, err)
		defer func() { must(t, s.Close()) }()
		late := event("2", 1)
		late.DeliverAt = time.Now().Add(-time.Second)
		must(t, insert(ctx, s, event("1", 1), late))
		leases, err := s.Lease(ctx, relay.LeaseRequest{Owner: "r", Term: time.Hour})
		must(t, err)
		c, err := s.Claim(ctx, leases, 10, time.Now())
		must(t, err)
		same(t, "claimed", len(c.Events), 2)
		must(t, s.Settle(ctx, relay.Settlement{Leases: leases, Sent: c.Events, Now: time.Now()}))
		must(t, s.Update(ctx, func(ctx context.Context, _ convergo.Tx) error { // as an operator's request does
			n, err := s.Replay(ctx, time.Now().Add(-time.Hour), time.Now())
			same(t, "sent again", n, 2)
			if err != nil {
				return err
			}
			return s.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
				return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM outbox_pending").Scan(&n)
			})
		}))
		_, err = s.PurgeSent(ctx, time.Now().Add(time.Hour), 10)
		must(t, err)
	})
}

// A replayed event may fail, wait and die between a purge's first look and its lock.
func TestAPurgeThatLookedTooEarlyTakesNothingThatIsUnfinished(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		delayed := event("delayed", 1)
		delayed.DeliverAt = time.Now().Add(time.Hour)
		must(t, insert(t.Context(), s, event("sent", 1), event("failed", 1), event("failed", 2), event("dead", 1), delayed))
		leases := lease(t, s, "r")
		c, err := s.Claim(t.Context(), leases, 100, time.Now())
		must(t, err)
		settlement := relay.Settlement{Leases: leases, Now: time.Now()}
		for _, p := range c.Events {
			failure := relay.Failure{Pending: p, Error: "no", Place: "test", Next: time.Now().Add(time.Hour)}
			switch {
			case p.Event.Aggregate.ID == "sent":
				settlement.Sent = append(settlement.Sent, p)
			case p.Event.Aggregate.ID == "dead":
				settlement.Dead = append(settlement.Dead, failure)
			case p.Event.Version == 1:
				settlement.Failed = append(settlement.Failed, failure)
			default:
				settlement.Aside = append(settlement.Aside, p)
			}
		}
		must(t, s.Settle(t.Context(), settlement))
		must(t, insert(t.Context(), s, event("pending", 1)))
		s.LookTooEarly()
		n, err := s.PurgeSent(t.Context(), time.Now().Add(time.Hour), 100)
		must(t, err)
		same(t, "purged: what was sent", n, 1)
	})
}

func TestOldServersAreRefused(t *testing.T) {
	for version, old := range map[string]bool{
		"8.0.16": true, "8.0.17": false, "5.7.44-log": true, "9.7.0": false, "8.4.3-debug": false, "8": true,
	} {
		same(t, version, mysql.Older(version, [3]int{8, 0, 17}), old)
	}
}

func TestMigrationsAreFittedToTheServer(t *testing.T) {
	got := mysql.Fit("-- +goose Up\n-- CREATE TABLE no (a TEXT);\nCREATE TABLE a (t TEXT, s VARCHAR(9) DEFAULT ';)', c BLOB /* ; */);\n"+
		"CREATE TABLE b (t TEXT) COLLATE utf8mb4_bin;\nINSERT INTO a (t) VALUES ('TEXT; it''s');\nCREATE INDEX i ON a (s);\n", "x_bin")
	same(t, "fitted", got, "-- +goose Up\n-- CREATE TABLE no (a TEXT);\n"+
		"CREATE TABLE a (t LONGTEXT, s VARCHAR(9) DEFAULT ';)', c BLOB /* ; */) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE x_bin;\n"+
		"CREATE TABLE b (t LONGTEXT) COLLATE utf8mb4_bin;\nINSERT INTO a (t) VALUES ('TEXT; it''s');\nCREATE INDEX i ON a (s);\n")
}
