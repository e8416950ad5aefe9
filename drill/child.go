package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Child is the platform as a process of its own, so that it can be killed.
type Child struct {
	Program string
	Args    []string
	Env     []string  // added to the environment; what is secret goes here, because arguments are for everybody to read
	Without string    // variables of this process whose names begin so are not passed on; "": all are
	URL     string    // where it will answer
	Output  io.Writer // its standard output and error
	// StartTimeout bounds a start until it is ready; default 1 min.
	StartTimeout time.Duration

	mu   sync.Mutex
	cmd  *exec.Cmd
	said *tail
	done chan struct{} // closed when cmd has ended
}

// Start starts the process and returns when it is ready to serve. It is an error when somebody answers for it already.
func (c *Child) Start(ctx context.Context) error {
	timeout := c.StartTimeout
	if timeout <= 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.ready(ctx) {
		return fmt.Errorf("the platform cannot start at %s: somebody else answers there", c.URL)
	}
	cmd := exec.Command(c.Program, c.Args...)
	cmd.Env = append(slices.DeleteFunc(cmd.Environ(), func(v string) bool { return c.Without != "" && strings.HasPrefix(v, c.Without) }), c.Env...)
	said := &tail{to: c.Output}
	cmd.Stdout, cmd.Stderr = said, said // one and the same writer: os/exec then writes from one goroutine
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the platform: %w", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is told by its exit code, which Stop looks at
		close(done)
	}()
	c.mu.Lock()
	c.cmd, c.done, c.said = cmd, done, said
	c.mu.Unlock()
	for {
		if c.ready(ctx) {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("the platform ended while it started: %s: %s", cmd.ProcessState, said)
		case <-ctx.Done():
			return fmt.Errorf("the platform was not ready in time: %w: %s", ctx.Err(), said)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Child) ready(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// Kill ends the process with SIGKILL and waits until it is gone. It is an error when it has ended already.
func (c *Child) Kill() error {
	c.mu.Lock()
	cmd, done := c.cmd, c.done
	c.mu.Unlock()
	if cmd == nil {
		return errors.New("the platform was never started")
	}
	err := cmd.Process.Kill()
	<-done
	if errors.Is(err, os.ErrProcessDone) {
		return c.ended()
	}
	return err
}

// ended tells of a process that ended although nobody told it to.
func (c *Child) ended() error {
	return fmt.Errorf("it had ended by itself: %s: %s", c.cmd.ProcessState, c.said)
}

// Pause stops the process with SIGSTOP: it does nothing, and does not know. Resume lets it go on.
func (c *Child) Pause() error { return c.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (c *Child) Resume() error { return c.signal(syscall.SIGCONT) }

func (c *Child) signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return errors.New("the platform was never started")
	}
	return c.cmd.Process.Signal(s)
}

// Died is closed when the process has ended, however that came.
func (c *Child) Died() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Stop asks the process to stop (SIGTERM) and waits. It is an error when it does not end cleanly in time.
func (c *Child) Stop(timeout time.Duration) error {
	c.mu.Lock()
	cmd, done := c.cmd, c.done
	c.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		<-done
		return c.ended()
	} else if err != nil {
		return fmt.Errorf("stop the platform: %w", err)
	}
	select {
	case <-done:
	case <-time.After(timeout):
		return errors.Join(fmt.Errorf("the platform did not stop within %v", timeout), c.Kill())
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("the platform ended with %s: %s", cmd.ProcessState, c.said)
	}
	return nil
}

// tail passes on what a process says and remembers the end of it, which usually tells why it ended.
type tail struct {
	to io.Writer // may be nil

	mu  sync.Mutex
	end []byte
}

const tailBytes = 1_000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailBytes):]
	t.mu.Unlock()
	if t.to == nil {
		return len(p), nil
	}
	return t.to.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.end) == 0 {
		return "it said nothing"
	}
	return strings.TrimSpace(string(t.end))
}
