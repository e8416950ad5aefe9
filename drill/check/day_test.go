package check_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo/drill/check"
	"github.com/convergo/convergo/testserver"
)

// day is the data folder of a platform that played a short day with everything going wrong and converged. It is made once
// per test run, by the program itself, and copied for each damage.
var day = sync.OnceValues(func() (string, error) {
	dir, err := testserver.Folder("check")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "convergo")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/convergo").CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build: %w\n%s", err, out)
	}
	data := filepath.Join(dir, "data")
	out, err := exec.Command(program, "demo", "--count", "60", "--kills", "1", "--timeout", "3m", "--keep", data).CombinedOutput()
	if err != nil {
		return dir, fmt.Errorf("demo: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := day(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// copyOfDay is a folder of its own with the day's databases.
func copyOfDay(t *testing.T) string {
	t.Helper()
	from, err := day()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	for _, name := range databases() {
		text, err := os.ReadFile(filepath.Join(from, "data", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(from, "data", name+"-wal")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s was not closed: %v", name, err)
		}
	}
	return to
}

func databases() []string {
	var names []string
	for _, s := range append(check.Services(), "world") {
		names = append(names, s+".db")
	}
	return names
}

// attached is one connection that can write to all databases of the folder, as a person with a SQL shell would.
func attached(t *testing.T, dir string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	for _, name := range databases() {
		schema := strings.TrimSuffix(name, ".db")
		if _, err := conn.ExecContext(t.Context(), `ATTACH DATABASE ? AS "`+schema+`"`, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

func checked(t *testing.T, dir string, set ...func(*check.Checker)) []check.Equation {
	t.Helper()
	equations, err := tryCheck(t.Context(), dir, set...)
	if err != nil {
		t.Fatal(err)
	}
	return equations
}

func tryCheck(ctx context.Context, dir string, set ...func(*check.Checker)) (_ []check.Equation, err error) {
	c, err := check.Open(ctx, dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, f := range set {
		f(c)
	}
	return c.Run(ctx)
}

func broken(equations []check.Equation) string {
	var b strings.Builder
	for _, e := range equations {
		if e.Broken > 0 {
			fmt.Fprintf(&b, "%s: %d of %d: %s\n", e.Name, e.Broken, e.Checked, e.Detail)
		}
	}
	return b.String()
}

func TestAnUndamagedDayBreaksNothingAndEveryEquationLooksAtSomething(t *testing.T) {
	equations := checked(t, copyOfDay(t))
	if b := broken(equations); b != "" {
		t.Errorf("an undamaged day:\n%s", b)
	}
	for _, e := range equations {
		if e.Checked == 0 {
			t.Errorf("equation %q checked nothing: it proves nothing", e.Name)
		}
	}
	if len(equations) < 40 {
		t.Errorf("%d equations", len(equations))
	}
}

// later is a check that is made d after now.
func later(d time.Duration) func(*check.Checker) {
	return func(c *check.Checker) { c.Now = func() time.Time { return time.Now().Add(d) } }
}
