package postgres_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/store/postgres"
)

// The platform's services say what they want in one text for three databases. Here each service's tables are made in a schema
// of its own, and PostgreSQL reads every statement and finds all its tables, columns and types.
func TestEveryStatementOfThePlatformsServicesIsUnderstood(t *testing.T) {
	server := shared(t)
	files, err := filepath.Glob("../../trade/*/queries.sql")
	must(t, err)
	if len(files) < 9 {
		t.Fatalf("services: %v", files)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		name := filepath.Base(dir)
		t.Run(name, func(t *testing.T) {
			schema := server.Name(name)
			s := open(t, postgres.Options{Schema: schema, Notify: -1})
			for set, folder := range map[string]string{"trade": "../../trade/migrations", name: filepath.Join(dir, "migrations")} {
				if _, err := os.Stat(folder); err == nil {
					must(t, s.Migrate(t.Context(), set, os.DirFS(folder)))
				}
			}
			conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
			must(t, err)
			defer func() { must(t, conn.Close(context.Background())) }()
			_, err = conn.Exec(t.Context(), "SET search_path TO "+pgx.Identifier{schema}.Sanitize())
			must(t, err)
			for _, from := range []fs.FS{os.DirFS(dir), os.DirFS("../../trade")} {
				set, err := sqltext.Load(from, "queries.sql", sqltext.Postgres)
				must(t, err)
				var names []string
				for n := range set {
					names = append(names, n)
				}
				slices.Sort(names)
				for i, n := range names {
					if _, err := conn.Prepare(t.Context(), fmt.Sprint(n, i), postgres.Rewrite(set.Get(n))); err != nil {
						t.Errorf("%s: %v", n, err)
					}
				}
			}
		})
	}
}
