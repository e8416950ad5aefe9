package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
)

// killedPath is set in the environment of the child that TestSIGKILL… kills: the file that it writes to.
const killedPath = "CONVERGO_TEST_KILLED_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedPath); path != "" {
		writeUntilKilled(path)
	}
	os.Exit(m.Run())
}

// writeUntilKilled inserts pairs of notes from many goroutines and prints each pair's name once it was acknowledged.
func writeUntilKilled(path string) {
	s, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				if err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
					return errors.Join(note(ctx, tx, name+"-a"), note(ctx, tx, name+"-b"))
				}); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(3)
				}
				mu.Lock()
				fmt.Println(name)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestSIGKILLLosesNothingThatWasAcknowledgedAndKeepsNoHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "order.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)")
		return err
	}))
	must(t, s.Close())
	var acknowledged []string
	for round := range 3 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killedPath+"="+path)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			acknowledged = append(acknowledged, lines.Text())
			if n == 200*(round+1) {
				must(t, child.Process.Kill()) // and read on what it had printed
			}
		}
		if err := child.Wait(); child.ProcessState.ExitCode() == 3 {
			t.Fatal(err)
		}
	}
	s, err = sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		for _, name := range acknowledged {
			var n int
			must(t, tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM note WHERE text IN (?, ?)", name+"-a", name+"-b").Scan(&n))
			if n != 2 {
				t.Errorf("%s was acknowledged, %d of its 2 notes are there", name, n)
			}
		}
		var halves int
		must(t, tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM note GROUP BY substr(text, 1, length(text) - 2) HAVING COUNT(*) <> 2)`).Scan(&halves))
		same(t, "halves", halves, 0)
		var check string
		must(t, tx.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&check))
		same(t, "integrity", check, "ok")
		return nil
	}))
	t.Logf("%d acknowledged", len(acknowledged))
}
