// Package transactions_test runs the examples below this folder, each a program of its own, against real servers.
package transactions_test

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/convergo/convergo/testserver"
)

var servers testserver.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestARowAndItsEventCommitOrVanishTogether(t *testing.T) {
	folders, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range folders {
		example := filepath.Dir(file)
		found = append(found, example)
		t.Run(example, func(t *testing.T) {
			if example == "mysql" {
				judgeOn(t, example, testserver.Shared(t, &servers, "mariadb", testserver.OpenMariaDB))
				judgeOn(t, example, testserver.Shared(t, &servers, "mysql", testserver.OpenMySQL))
				return
			}
			server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
			name, err := server.Database(example)
			if err != nil {
				t.Fatal(err)
			}
			judge(t, example, "pgx", "DATABASE_URL", server.TCP(name, "disable"))
		})
	}
	if want := []string{"bun", "databasesql", "ent", "gorm", "mysql", "pgx", "sqlx"}; !slices.Equal(found, want) {
		t.Errorf("examples %v, want %v", found, want)
	}
}

func judgeOn(t *testing.T, example string, server *testserver.MySQL) {
	t.Helper()
	name, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	judge(t, example, "mysql", "MYSQL_DSN", server.TCP(name))
}

// judge runs an example and compares what it says and what the database holds afterwards.
func judge(t *testing.T, example, driver, variable, dsn string) {
	lines := strings.Split(strings.TrimSpace(runs(t, example, variable+"="+dsn)), "\n")
	want := []string{
		`^order (\w+): committed; orders: 1, events: 1$`, `^order (\w+): the card was refused; orders: 0, events: 0$`,
		`^order (\w+): told before; orders: 1, events: 1$`,
	}
	if len(lines) != len(want) {
		t.Fatalf("said %q, want %d lines", lines, len(want))
	}
	var orders []string
	for i, line := range lines {
		said := regexp.MustCompile(want[i]).FindStringSubmatch(line)
		if said == nil {
			t.Fatalf("line %d: %q, want %s", i+1, line, want[i])
		}
		orders = append(orders, said[1])
	}
	if orders[0] == orders[1] || orders[0] != orders[2] {
		t.Errorf("orders %v: the third is to be the first again", orders)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for table, column := range map[string]string{"shop_order": "no", "outbox_event": "aggregate_id"} {
		if all := texts(t, db, "SELECT "+column+" FROM "+table); !slices.Equal(all, orders[:1]) {
			t.Errorf("%s has %v, want %v", table, all, orders[:1])
		}
	}
	keys := texts(t, db, "SELECT event_key FROM outbox_event JOIN outbox_pending ON event_id = outbox_event.id")
	if want := []string{"OrderPlaced:" + orders[0] + ":v1"}; !slices.Equal(keys, want) {
		t.Errorf("pending are %v, want %v", keys, want)
	}
}

// runs vets an example and runs it. Some are modules of their own, so this is all that looks at them.
func runs(t *testing.T, example, environment string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // a first build takes its time
	defer cancel()
	out := ""
	for _, args := range [][]string{{"vet", "./..."}, {"run", "."}} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = example, append(os.Environ(), environment)
		var text, said strings.Builder
		cmd.Stdout, cmd.Stderr = &text, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("go %s in %s: %v\n%s%s\nif its go.mod is behind that of the project: go mod tidy in that folder",
				strings.Join(args, " "), example, err, text.String(), said.String())
		}
		out = text.String()
	}
	return out
}

func texts(t *testing.T, db *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
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
