package testserver

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// abandonEnv makes this binary a test that starts servers and is killed.
const abandonEnv = "CONVERGO_TESTSERVER_ABANDON"

func TestMain(m *testing.M) {
	if os.Getenv(abandonEnv) != "" {
		abandon()
	}
	os.Exit(m.Run())
}

func abandon() {
	p, err := OpenPostgres()
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	other, err := OpenPostgres()
	if err == nil {
		err = other.Pause()
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(p.Dir, other.Dir)
	select {}
}

// eventually looks every 20 ms.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("still not after 30 s: ", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// emptyTemp makes the folder for temporary files an empty one.
func emptyTemp(t *testing.T) string {
	t.Helper()
	tmp, err := os.MkdirTemp("", "sweep-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(tmp); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(tmp, 0o755); err != nil { // PostgreSQL runs as another user when this is root
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	return tmp
}

// abandoned starts a test that has two servers; the second one is paused.
func abandoned(t *testing.T) (child *exec.Cmd, dirs []string) {
	t.Helper()
	child = exec.Command(os.Args[0])
	child.Env = append(os.Environ(), abandonEnv+"=yes")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() }) // when the test has failed before it did that
	line, err := bufio.NewReader(out).ReadString('\n')
	dirs = strings.Fields(line)
	if err != nil || len(dirs) != 2 || dirs[0] == "error" {
		t.Fatalf("%q, %v", line, err)
	}
	return child, dirs
}

// A server that was paused is ended as well, and so are the processes that it started itself.
func TestATestThatIsKilledLeavesNoServersAndTheNextOneRemovesItsFolders(t *testing.T) {
	_, err := postgresBin()
	Must(t, err)
	tmp := emptyTemp(t)
	child, dirs := abandoned(t)
	for _, dir := range dirs {
		if n := len(inside(dir)); n < 5 {
			t.Errorf("%d processes of a server in %s", n, dir)
		}
	}
	folder := func() string {
		t.Helper()
		dir, err := Folder("test")
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	mine := folder()
	if !exists(dirs[0]) || !exists(dirs[1]) {
		t.Fatal("the folders of a process that lives are gone")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	eventually(t, "the server has ended", func() bool { return len(inside(dirs[0])) == 0 })

	strange := filepath.Join(tmp, prefix+"strange-1") // nobody's: as it was before, or that is being made
	if err := os.Mkdir(strange, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(tmp, prefix+"link-1")
	if err := os.Symlink(dirs[0], link); err != nil {
		t.Fatal(err)
	}
	second := folder()
	if exists(dirs[0]) {
		t.Errorf("%s is left", dirs[0])
	}
	eventually(t, "what the paused server had started has ended", func() bool { return len(inside(dirs[1])) == 0 })
	eventually(t, "its folder is gone", func() bool { sweep(); return !exists(dirs[1]) })
	for _, dir := range []string{mine, second, strange, link} {
		if !exists(dir) {
			t.Errorf("%s is gone", dir)
		}
	}
}
