package storetest

import (
	"context"
	"errors"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/convergo/convergo"
)

// Migrator is a store that programs of two versions open.
type Migrator interface {
	Migrate(ctx context.Context, set string, migrations fs.FS) error
	Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
}

// Three versions of a program: the second adds a column and says that the first may run with it, the third takes away what only
// the first used, and says that the second may run with it.
const (
	firstVersion  = "-- +goose Up\nCREATE TABLE parcel (id BIGINT NOT NULL PRIMARY KEY, weight BIGINT NOT NULL DEFAULT 0);\n"
	secondVersion = "-- +goose Up\nALTER TABLE parcel ADD COLUMN grams BIGINT NOT NULL DEFAULT 0;\n" +
		"INSERT INTO migration_compatible (set_name, version, least) VALUES ('parcel', 2, 1);\n"
	thirdVersion = "-- +goose Up\nALTER TABLE parcel DROP COLUMN weight;\n" +
		"INSERT INTO migration_compatible (set_name, version, least) VALUES ('parcel', 3, 2);\n"
)

func versionsUpTo(n int) fs.FS {
	files := fstest.MapFS{}
	for i, text := range []string{firstVersion, secondVersion, thirdVersion}[:n] {
		files[[]string{"00001_first.sql", "00002_expand.sql", "00003_contract.sql"}[i]] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

// OlderEngine is the law that a program may be started on a database which a newer Convergo has migrated, for each older version of the
// engine's set: migrations is the folder of all of them. open opens the database with the newest.
func OlderEngine(t *testing.T, open func() Migrator, migrations fs.FS) {
	t.Helper()
	s := open()
	files, err := fs.Glob(migrations, "*.sql")
	if err != nil || len(files) < 2 {
		t.Fatalf("migrations %v: %v", files, err)
	}
	older := fstest.MapFS{}
	for i, name := range files[:len(files)-1] { // in order: names begin with the version
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		older[name] = &fstest.MapFile{Data: text}
		expands(t, files[i+1], migrations)
		if err := s.Migrate(t.Context(), "engine", older); err != nil {
			t.Errorf("a program that knows the engine's tables up to %s: %v", name, err)
		}
	}
}

// harmless are the statements that take nothing away from a program which does not know of them. A column that it does not name must
// be one that it need not give.
var harmless = regexp.MustCompile(`(?is)^(CREATE TABLE |CREATE INDEX |INSERT INTO migration_compatible |ALTER TABLE \S+ ADD COLUMN [^,]*$)`)

// expands fails for a migration that lets older programs run beside it and yet changes what they use. One that contracts, and so lets
// only programs run that do not use it any more, is to be added here by name, with the first program that does not.
func expands(t *testing.T, name string, migrations fs.FS) {
	t.Helper()
	text, err := fs.ReadFile(migrations, name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "INSERT INTO migration_compatible") {
		return // older programs are refused
	}
	for statement := range strings.SplitSeq(regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(string(text), ""), ";") {
		statement = strings.TrimSpace(statement)
		added := strings.HasPrefix(strings.ToUpper(statement), "ALTER TABLE") && strings.Contains(strings.ToUpper(statement), "NOT NULL")
		if statement != "" && !harmless.MatchString(statement) || added && !strings.Contains(strings.ToUpper(statement), "DEFAULT") {
			t.Errorf("%s lets older programs run, and takes something from them: %.200s", name, statement)
		}
	}
}

// RollOut is the law of a roll-out: version N and N+1 of a program run together on one database, before, while and after the newer
// one migrates it; N is refused once N+2 has taken away what it needs. open opens the same database each time, newer is the store's
// error for a database that is too new.
func RollOut(t *testing.T, open func() Migrator, newer error) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	old, next := open(), open()
	must(old.Migrate(t.Context(), "parcel", versionsUpTo(1)))
	write := func(s Migrator, query string, from, to int) error {
		for id := from; id < to; id++ {
			err := s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, query, id)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	const byOld, byNext = "INSERT INTO parcel (id, weight) VALUES (?, 5)", "INSERT INTO parcel (id, grams) VALUES (?, 5000)"
	var both sync.WaitGroup
	var oldErr error
	both.Go(func() { oldErr = write(old, byOld, 0, 100) }) // goes on while the table changes
	must(next.Migrate(t.Context(), "parcel", versionsUpTo(2)))
	must(write(next, byNext, 1000, 1050))
	both.Wait()
	must(oldErr)
	again := open() // an old one that is started again in the middle of the roll-out
	must(again.Migrate(t.Context(), "parcel", versionsUpTo(1)))
	must(write(again, byOld, 100, 110))
	must(next.Migrate(t.Context(), "parcel", versionsUpTo(2)))

	last := open()
	must(last.Migrate(t.Context(), "parcel", versionsUpTo(3)))
	must(next.Migrate(t.Context(), "parcel", versionsUpTo(2)))
	must(write(next, byNext, 2000, 2010))
	must(write(last, byNext, 3000, 3010))
	if err := open().Migrate(t.Context(), "parcel", versionsUpTo(1)); !errors.Is(err, newer) {
		t.Errorf("a program whose column is gone: %v, want a refusal", err)
	}
	var rows int
	must(last.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM parcel").Scan(&rows)
	}))
	if rows != 180 {
		t.Errorf("%d rows, want 180", rows)
	}
}
