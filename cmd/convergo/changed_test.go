package main

import (
	"context"
	"crypto/x509"
	"database/sql"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/convergo/convergo/testserver"
)

const newPassword = "hunter3"

// changing is an account whose password is changed while it is used.
type changing struct {
	address string
	change  func(password string)
	// idle ends connections of the account that do nothing, so that new ones are made. One that ends in the middle of a statement would be
	// an outage of its own, and the log tells of the next after a minute.
	idle func()
}

func changingAccounts() map[string]func(t *testing.T) changing {
	onMySQL := func(open func() (*testserver.MySQL, error)) func(t *testing.T) changing {
		return func(t *testing.T) changing {
			server := testserver.Own(t, open)
			testserver.Must(t, server.Exec("CREATE DATABASE shop", "CREATE USER 'shop'@'127.0.0.1' IDENTIFIED BY '"+password+"'", "GRANT ALL ON shop.* TO 'shop'@'127.0.0.1'"))
			db := must[*sql.DB](t)(sql.Open("mysql", server.DSN("mysql")))
			t.Cleanup(func() { _ = db.Close() })
			return changing{"mysql://shop:" + password + "@" + server.Addr + "/shop", func(password string) {
				testserver.Must(t, server.Exec("ALTER USER 'shop'@'127.0.0.1' IDENTIFIED BY '"+password+"'"))
			}, func() {
				for _, id := range texts(t, db, "SELECT id FROM information_schema.processlist WHERE user = 'shop' AND command = 'Sleep'") {
					_, _ = db.ExecContext(t.Context(), "KILL "+id) // it may have ended
				}
			}}
		}
	}
	return map[string]func(t *testing.T) changing{
		"mysql": onMySQL(testserver.OpenMySQL), "mariadb": onMySQL(testserver.OpenMariaDB),
		"postgres": func(t *testing.T) changing {
			server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
			database, role := must[string](t)(server.Database("changed")), server.Name("changed")
			exec := func(statement string) { t.Helper(); testserver.Must(t, server.Exec(database, statement)) }
			exec(fmt.Sprintf(`CREATE ROLE %q LOGIN PASSWORD '%s'; GRANT CREATE ON DATABASE %q TO %q`, role, password, database, role))
			t.Cleanup(func() { exec(fmt.Sprintf(`DROP OWNED BY %q CASCADE; DROP ROLE %q`, role, role)) })
			return changing{fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%s?sslmode=disable&schema=shop", role, password, server.Port, database), func(password string) {
				exec(fmt.Sprintf(`ALTER ROLE %q PASSWORD '%s'`, role, password))
			}, func() {
				exec(fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s' AND state = 'idle'`, role))
			}}
		},
	}
}

func texts(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows := must[*sql.Rows](t)(db.QueryContext(t.Context(), query))
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// changedWords is what the log says of a password that was changed: the setting, and what to do.
func changedWords(setting string) string {
	return "it was let in before: if the user or the password was changed, write the new one into " + setting + " and start again, or change it back"
}

// A relay that runs, and needs a new connection after the password of its database was changed, says which setting is meant and what to do,
// as often as of any outage. When the password is changed back it goes on by itself.
func TestADatabasesPasswordThatIsChangedMeanwhileIsToldWithItsSetting(t *testing.T) {
	for name, open := range changingAccounts() {
		t.Run(name, func(t *testing.T) {
			a, dir := open(t), t.TempDir()
			endpoints := filepath.Join(dir, "endpoints.yaml")
			text := "endpoints:\n  - name: shop\n    url: https://shop.example/hooks\n    secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]\n    disabled: true\n"
			if err := os.WriteFile(endpoints, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			r, ended := &ranProgram{code: -1}, make(chan struct{})
			go func() {
				defer close(ended)
				r.code = run(ctx, []string{"relay", "--database", a.address, "--broker", "webhook:" + endpoints, "--addr", "127.0.0.1:0", "--lease", "3s"},
					streams{out: &r.out, err: &r.err})
			}()
			t.Cleanup(func() { stop(); <-ended })
			eventually(t, time.Minute, "the relay is there", func() bool { return strings.Contains(r.out.String(), "probes on") })
			a.change(newPassword)
			changed := time.Now()
			eventually(t, 3*time.Minute, "the log says what to do", func() bool {
				a.idle()
				return strings.Contains(r.err.String(), changedWords("--database"))
			})
			a.change(password)
			eventually(t, time.Minute, "the relay goes on", func() bool { return regexp.MustCompile(`level=INFO msg="[^"]* again"`).MatchString(r.err.String()) })
			stop()
			<-ended
			log := r.err.String()
			if r.code != 0 {
				t.Errorf("exit code %d", r.code)
			}
			for _, words := range []string{"password is wrong", strings.Replace(strings.Split(a.address, "?")[0], password, "xxxxx", 1)} {
				if !strings.Contains(log, words) {
					t.Errorf("%q is not said", words)
				}
			}
			most := 5 * (1 + int(time.Since(changed)/time.Minute)) // one a minute for each thing that is tried again
			if n := strings.Count(log, "it was let in before"); n > most || strings.Contains(log, "hunter") {
				t.Errorf("%d lines, want %d at most, or the password is shown", n, most)
			}
			if t.Failed() {
				t.Log(log)
			}
		})
	}
}

func TestAServicesDatabaseIsNamedByTheSettingThatItIsIn(t *testing.T) {
	a := changingAccounts()["postgres"](t)
	p := startPlatform(t, t.TempDir(), "--services", "order", "--databases", "order="+a.address)
	a.change(newPassword)
	eventually(t, 3*time.Minute, "the log says what to do", func() bool {
		a.idle()
		return strings.Contains(p.err.String(), changedWords("--databases of order"))
	})
	a.change(password)
	if text := p.err.String(); strings.Contains(text, "hunter") {
		t.Error("the password is shown:", text)
	}
	p.end(0)
}

func TestOfARefusedConnectionTheSettingIsToldAndOfAnOutageNothing(t *testing.T) {
	text := "postgres://shop:" + password + "@db/shop"
	say := must[address](t)(parseAddress(text)).refusedLater("--database", text)
	for words, errs := range map[string][]error{
		"it was let in before": {
			&pgconn.PgError{Code: "28P01"}, &pgconn.PgError{Code: "28000"}, &driver.MySQLError{Number: 1045}, &driver.MySQLError{Number: 1698},
			&driver.MySQLError{Number: 1862}, &driver.MySQLError{Number: 4151}, fmt.Errorf("begin: %w", &driver.MySQLError{Number: 1130}),
		},
		"it is about --database (postgres://shop:xxxxx@db/shop)": {
			&pgconn.PgError{Code: "28P01"}, &pgconn.PgError{Code: "3D000"}, &pgconn.PgError{Code: "42501"}, &driver.MySQLError{Number: 1049},
			&driver.MySQLError{Number: 3159}, x509.UnknownAuthorityError{},
		},
		"sslrootcert=FILE": {fmt.Errorf("connect: %w", x509.UnknownAuthorityError{})},
	} {
		for _, err := range errs {
			if said := say(err); !strings.Contains(said, words) || strings.Contains(said, password) {
				t.Errorf("%v: %q, want %q", err, said, words)
			}
		}
	}
	for _, err := range []error{io.EOF, context.DeadlineExceeded, &pgconn.PgError{Code: "57P03"}, &pgconn.PgError{Code: "53300"}, &driver.MySQLError{Number: 1040}} {
		if said := say(err); said != "" {
			t.Errorf("%v: %q, want nothing", err, said)
		}
	}
}
