package brokertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Database is what a consumer's process needs of a store that outlives it.
type Database interface {
	inbox.Store[convergo.Tx]
	inbox.Parking[convergo.Tx]
	Close() error
}

// Process is how a consumer's process of its own, a child of the test, reaches broker and database. place and file are what the
// parent said.
type Process struct {
	Broker   func(ctx context.Context, place string) (Broker, error)
	Database func(ctx context.Context, file string) (Database, error)
}

// childJob in the environment makes a test binary a consumer's process.
const childJob = "CONVERGO_BROKERTEST_CHILD"

type job struct{ Place, File, Poison string }

// killed is the exit code of a process that its handler ends.
const killed = 77

// Child makes this process a consumer's if it was started as one, and does not return then. A test's TestMain calls it first.
func Child(p Process) {
	text := os.Getenv(childJob)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = p.consume(j)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// consume applies events until its standard input ends. It tells of each dead letter, and of all that was applied when asked to.
func (p Process) consume(j job) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := p.Database(ctx, j.File)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	b, err := p.Broker(ctx, j.Place)
	if err != nil {
		return err
	}
	source, err := b.Subscribe(ctx, "payment", orders)
	if err != nil {
		return err
	}
	c := inbox.New[convergo.Tx](db, db, source, inbox.Config{
		Consumer: "payment", Redeliveries: 2, Trials: 2, Timeout: 2 * time.Second, Poll: 100 * time.Millisecond,
		Alert: func(_ string, f inbox.Failure) { fmt.Println("dead", f.Event.Key, f.Place) },
	})
	c.Handle("OrderPaid", func(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
		if string(e.Key) == j.Poison {
			os.Exit(killed)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (name) VALUES (?)", string(e.Key)) // fails the second time
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		if err := tell(ctx, db); err != nil {
			return err
		}
	}
	cancel()
	err = <-ended
	if closer, ok := source.(io.Closer); ok {
		_ = closer.Close()
	}
	return err
}

// tell prints what was applied, in one line.
func tell(ctx context.Context, db Database) error {
	return db.Update(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		rows, err := tx.QueryContext(ctx, "SELECT name FROM effect ORDER BY name")
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		var names []string
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return err
			}
			names = append(names, name)
		}
		fmt.Println("applied", strings.Join(names, " "))
		return rows.Err()
	})
}

// Poison is the law of a message that kills its process: b's consumer is a process of its own, made as p says, that a handler ends with
// os.Exit, and that is started again and again. In the end that message is a dead letter, and all others were applied once. place is
// what p.Broker gets. leave is called before the first of the processes, for a broker that only one may use; nil: nothing to do.
func Poison(t *testing.T, b Backend, p Process, place string, leave func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "consumer.db")
	db, err := p.Database(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE effect (name VARCHAR(255) NOT NULL PRIMARY KEY)")
		return err
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	closeSource(t, subscribe(t, b.Broker, "payment")) // a broker without history keeps only what comes from now on
	var events []convergo.Event
	for v := int64(1); v <= 3; v++ {
		for o := range 40 {
			events = append(events, paid(fmt.Sprint("O-", o), v))
		}
	}
	publish(t, b.Broker, events...)
	if leave != nil {
		leave()
	}
	poison := paid("O-17", 2)
	want := slices.DeleteFunc(keysOf(events), func(k convergo.Key) bool { return k == poison.Key || k == paid("O-17", 3).Key }) // held
	slices.Sort(want)
	text, err := json.Marshal(job{place, file, string(poison.Key)})
	if err != nil {
		t.Fatal(err)
	}
	var dead []string
	deaths := 0
	for start := time.Now(); ; deaths++ {
		if time.Since(start) > 4*patience || deaths > 12 {
			t.Fatalf("after %d deaths: dead letters %v", deaths, dead)
		}
		c := startChild(t, string(text))
		code, applied := c.run(len(want), &dead)
		if code == killed {
			continue
		}
		if code != 0 {
			t.Fatalf("the child ended with %d: %s", code, c.complaints.String())
		}
		var got []convergo.Key
		for _, k := range applied {
			got = append(got, convergo.Key(k))
		}
		if !slices.Equal(got, want) {
			t.Errorf("applied %d: %v\nwant %d: %v", len(got), got, len(want), want)
		}
		break
	}
	if len(dead) != 1 || dead[0] != string(poison.Key)+" process" {
		t.Errorf("dead letters %v, want %s of the place process", dead, poison.Key)
	}
	t.Logf("%d deaths", deaths)
}

// child is a consumer's process.
type child struct {
	t          *testing.T
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      chan string // closed at the end of its output
	complaints *strings.Builder
}

func startChild(t *testing.T, job string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 64), complaints: &strings.Builder{}}
	c.cmd.Env = append(os.Environ(), childJob+"="+job)
	c.cmd.Stderr = c.complaints
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() }) // ended long ago in a test that passes
	return c
}

// run follows the child until it dies, or is stopped because so many were applied and a message is dead.
func (c *child) run(enough int, dead *[]string) (code int, applied []string) {
	ask := time.NewTicker(200 * time.Millisecond)
	defer ask.Stop()
	limit := time.NewTimer(2 * patience)
	defer limit.Stop()
	stopping := false
	for open := true; open; {
		select {
		case line, ok := <-c.lines:
			what, rest, _ := strings.Cut(line, " ")
			switch {
			case !ok:
				open = false
			case what == "dead":
				*dead = append(*dead, rest)
			case what == "applied":
				applied = strings.Fields(rest)
				if len(applied) >= enough && len(*dead) > 0 && !stopping {
					stopping = true
					_ = c.in.Close()
				}
			}
		case <-ask.C:
			if !stopping {
				_, _ = io.WriteString(c.in, "tell\n") // fails when it is dead
			}
		case <-limit.C:
			c.t.Errorf("a child neither died nor was done: %d of %d applied, dead letters %v", len(applied), enough, *dead)
			_ = c.cmd.Process.Kill()
		}
	}
	_ = c.cmd.Wait() // the code tells
	return c.cmd.ProcessState.ExitCode(), applied
}
