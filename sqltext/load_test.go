package sqltext_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/convergo/convergo/sqltext"
)

const sample = `-- Statements of the sample.

-- name: FindThing
-- by its key; takes no lock
SELECT id, name
  FROM thing WHERE id = ?;

-- name: InsertThing :once
INSERT INTO thing (id, name) VALUES (?, ?)
`

func load(text string, d sqltext.Dialect) (sqltext.Set, error) {
	return sqltext.Load(fstest.MapFS{"queries.sql": {Data: []byte(text)}}, "queries.sql", d)
}

func TestAStatementIsItsTextWithoutCommentsAndSemicolon(t *testing.T) {
	set, err := load(strings.ReplaceAll(sample, "\n", "\r\n"), sqltext.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := set.Get("FindThing"), "SELECT id, name\n  FROM thing WHERE id = ?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOnceIsSaidInTheDatabasesOwnWords(t *testing.T) {
	for d, want := range map[sqltext.Dialect]string{
		sqltext.SQLite:   "INSERT INTO thing (id, name) VALUES (?, ?) ON CONFLICT DO NOTHING",
		sqltext.Postgres: "INSERT INTO thing (id, name) VALUES (?, ?) ON CONFLICT DO NOTHING",
		sqltext.MySQL:    "INSERT INTO thing (id, name) VALUES (?, ?) ON DUPLICATE KEY UPDATE id=id",
	} {
		set, err := load(sample, d)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Get("InsertThing"); got != want {
			t.Errorf("dialect %d: got %q, want %q", d, got, want)
		}
	}
}

func TestAFileThatIsNoListOfStatementsIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1": "queries.sql:1",
		"-- name: A\nSELECT 1\n-- name: A\nSELECT 2":      "A is there twice",
		"-- name: A\n-- name: B\nSELECT 1":                "A is empty",
		"-- name: A\n;":                                   "A is empty",
		"-- name: A :many\nSELECT 1":                      `unknown mark ":many"`,
		"-- name: a-b\nSELECT 1":                          "not a word",
		"-- name:\nSELECT 1":                              "not a word",
		"-- name: A :once\nUPDATE t SET a = 1":            ":once needs INSERT",
		"-- name: A :once\nINSERT INTO t (a) SELECT 1":    "needs a WHERE",
		"-- name: A\nSELECT 1\n\n-- name: B :once :twice": "queries.sql:4",
	} {
		_, err := load(text, sqltext.SQLite)
		if !errors.Is(err, sqltext.ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one with %q", text, err, want)
		}
	}
}

func TestAMissingFileIsSaidToBeMissing(t *testing.T) {
	if _, err := sqltext.Load(fstest.MapFS{}, "queries.sql", sqltext.SQLite); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAnUnknownNameIsAProgrammingError(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "NoSuch") {
			t.Errorf("recovered %v", r)
		}
	}()
	sqltext.Set{}.Get("NoSuch")
}
