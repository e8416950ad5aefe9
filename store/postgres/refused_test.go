package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/testserver"
)

// as is the DSN of a role that can do nothing yet, with a password.
func as(t *testing.T, server *testserver.Postgres, database string) (role, dsn string) {
	t.Helper()
	role = server.Name("role")
	must(t, server.Exec(database, "CREATE ROLE "+role+" LOGIN PASSWORD 'p'"))
	return role, fmt.Sprintf("postgres://%s:p@/%s?host=%s&port=%d", role, database, url.QueryEscape(server.Dir), server.Port)
}

// refuses opens a store that cannot be opened. It must say so at once: the time is far below that of any series of tries.
func refuses(t *testing.T, dsn string, opts postgres.Options, words ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	s, err := postgres.Open(ctx, dsn, opts)
	if err == nil {
		must(t, s.Close())
		t.Error("it was opened")
		return errors.New("none")
	}
	if ctx.Err() != nil || convergo.VerdictOf(err) != convergo.Park {
		t.Errorf("the verdict is %v, or it took too long: %v", convergo.VerdictOf(err), err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not in %v", word, err)
		}
	}
	return err
}

// What the error says is what is missing: run as it stands, the store opens.
func TestAMissingPrivilegeIsNamedAtOnceWithTheGrant(t *testing.T) {
	server := shared(t)
	grant := regexp.MustCompile(`GRANT [^;:]* TO "\w+"`)
	for name, prepare := range map[string]func(database, role string) postgres.Options{
		"no schema, and no right to make one": func(string, string) postgres.Options {
			return postgres.Options{Schema: "shop"}
		},
		"a schema of another's": func(database, _ string) postgres.Options {
			must(t, server.Exec(database, "CREATE SCHEMA shop"))
			return postgres.Options{Schema: "shop"}
		},
		"a schema that it may only look into": func(database, role string) postgres.Options {
			must(t, server.Exec(database, "CREATE SCHEMA shop; GRANT USAGE ON SCHEMA shop TO "+role))
			return postgres.Options{Schema: "shop"}
		},
		"the public schema": func(database, _ string) postgres.Options {
			must(t, server.Exec(database, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")) // so from 15 on
			return postgres.Options{}
		},
		"tables of another's": func(database, role string) postgres.Options {
			s, err := postgres.Open(t.Context(), server.DSN(database), postgres.Options{Schema: "shop", Notify: -1})
			must(t, err)
			must(t, s.Close())
			must(t, server.Exec(database, "GRANT USAGE, CREATE ON SCHEMA shop TO "+role))
			return postgres.Options{Schema: "shop"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			database, err := server.Database("refused")
			must(t, err)
			role, dsn := as(t, server, database)
			opts := prepare(database, role)
			found := grant.FindAllString(refuses(t, dsn, opts, role).Error(), -1)
			if len(found) == 0 {
				t.Fatal("no GRANT in the error")
			}
			for _, statement := range found {
				must(t, server.Exec(database, statement))
			}
			s := openOn(t, dsn, opts)
			insert(t, s, event("1", 1))
		})
	}
}

func TestAStoreWithoutANameIsCalledAsItsSchemaDatabaseOrRole(t *testing.T) {
	for want, opts := range map[string]postgres.Options{"shop": {Schema: "shop"}, "own": {Schema: "shop", Name: "own"}, "ann": {}} {
		_, err := postgres.Open(t.Context(), "host="+t.TempDir()+" user=ann", opts)
		if err == nil || !strings.HasPrefix(err.Error(), "postgres store "+want+": ") {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

func TestWhatAnotherTryCannotChangeIsFinalAtOpen(t *testing.T) {
	server := shared(t)
	_, dsn := as(t, server, "postgres")
	tcp := server.TCP("postgres", "disable")
	refuses(t, strings.Replace(tcp, testserver.PostgresPassword, "wrong", 1), postgres.Options{Schema: "x"}, "password")
	refuses(t, strings.Replace(tcp, "postgres://postgres:", "postgres://nobody:", 1), postgres.Options{Schema: "x"}, "role")
	refuses(t, strings.Replace(dsn, "/postgres?", "/absent?", 1), postgres.Options{Schema: "x"}, "create the database first")

	own := testserver.Own(t, func() (*testserver.Postgres, error) { return testserver.OpenPostgres("ssl=off") })
	refuses(t, own.TCP("postgres", "require"), postgres.Options{}, "server offers none")
	hba := filepath.Join(own.Dir, "data", "pg_hba.conf")
	must(t, os.WriteFile(hba, []byte("local all all trust\n"), 0o600))
	must(t, own.Exec("postgres", "SELECT pg_reload_conf()"))
	eventually(t, "the new pg_hba.conf is in force", 10*time.Second, func() bool {
		_, err := postgres.Open(t.Context(), own.TCP("postgres", "disable"), postgres.Options{ReadOnly: true})
		return err != nil && strings.Contains(err.Error(), "pg_hba.conf entry")
	})
	refuses(t, own.TCP("postgres", "disable"), postgres.Options{}, "pg_hba.conf")

	// A standby is no place to write to; that may change, so it is an outage, and told at once all the same.
	openOn(t, own.DSN("postgres"), postgres.Options{Notify: -1})
	must(t, own.Stop(syscall.SIGINT, 20*time.Second))
	must(t, os.WriteFile(filepath.Join(own.Dir, "data", "standby.signal"), nil, 0o644))
	must(t, own.Start())
	must(t, own.Ready())
	_, err := postgres.Open(t.Context(), own.DSN("postgres"), postgres.Options{})
	if convergo.VerdictOf(err) != convergo.Outage || !strings.Contains(err.Error(), "standby") {
		t.Errorf("on a standby: %v", err)
	}
	openOn(t, own.DSN("postgres"), postgres.Options{ReadOnly: true})
}
