package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/convergo/convergo/testserver"
)

// pasted is what the page's blocks of the platform's databases make: the SQL of the block that holds the word.
func pasted(t *testing.T, word string) []string {
	t.Helper()
	page := string(must[[]byte](t)(os.ReadFile("../../docs/concepts/databases.md")))
	_, section, _ := strings.Cut(page, "### The nine of the platform")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?s)```(sh|sql)\n(.*?)```").FindAllStringSubmatch(section, -1) {
		language, text := m[1], m[2]
		if !strings.Contains(text, word) {
			continue
		}
		if language == "sh" {
			dir := t.TempDir()
			clients := "mysql() { :; }\npsql() { :; }\n" // the test has connections of its own
			script := exec.Command("sh", "-euc", clients+text)
			script.Dir = dir
			if output, err := script.CombinedOutput(); err != nil || len(output) > 0 {
				t.Fatalf("%v: %s", err, output)
			}
			files := must[[]string](t)(filepath.Glob(filepath.Join(dir, "*.sql")))
			if len(files) != 1 {
				t.Fatalf("files %v", files)
			}
			text = string(must[[]byte](t)(os.ReadFile(files[0])))
		}
		return strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";\n")
	}
	t.Fatalf("no block of the page has %q", word)
	return nil
}

// servesAll has all nine services make their tables at the address.
func servesAll(t *testing.T, address string) {
	t.Helper()
	startPlatform(t, t.TempDir(), "--database", address).end(0)
}

func TestThePagesDatabasesAreThoseThatAllServicesNeed(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() (*testserver.MySQL, error){"mysql": testserver.OpenMySQL, "mariadb": testserver.OpenMariaDB} {
		t.Run(name, func(t *testing.T) {
			server := testserver.Own(t, open)
			if err := server.Exec(pasted(t, "CREATE USER")...); err != nil {
				t.Fatal(err)
			}
			servesAll(t, "mysql://convergo:secret@"+server.Addr+"/convergo_{service}")
		})
	}
	t.Run("postgres", func(t *testing.T) {
		server := testserver.Own(t, testserver.OpenDefaultPostgres)
		do := func(database, statement string) {
			t.Helper()
			if err := server.Exec(database, statement); err != nil {
				t.Fatal(err)
			}
		}
		address := fmt.Sprintf("postgres://convergo:secret@127.0.0.1:%d/convergo?sslmode=disable&schema={service}", server.Port)
		for _, statement := range pasted(t, "CREATE ROLE") {
			do("postgres", statement)
		}
		servesAll(t, address)

		do("postgres", "DROP DATABASE convergo WITH (FORCE)")
		do("postgres", "CREATE DATABASE convergo")
		for _, statement := range pasted(t, "CREATE SCHEMA") {
			do("convergo", statement)
		}
		servesAll(t, address)
	})
}
