package testserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one server process with a log file. It dies with the test binary, whatever ends that.
type Process struct {
	name string
	spec Command
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // of cmd, once done is closed
}

// Command says how a server is started.
type Command struct {
	Path string
	Args []string
	Env  []string // added to the environment
	Dir  string   // working folder; empty means the server's own folder
	// User owns the process when the tests run as root (PostgreSQL refuses to run as root); empty means the caller.
	User string
}

// start runs the command; its output goes to the end of a file name.log in dir.
func start(dir, name string, spec Command) (*Process, error) {
	if spec.Dir == "" {
		spec.Dir = dir
	}
	p := &Process{name: name, spec: spec, log: filepath.Join(dir, name+".log")}
	return p, p.Start()
}

// Start starts the process again after it was stopped or killed.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		select {
		case <-p.done:
		default:
			return fmt.Errorf("%s is running", p.name)
		}
	}
	cmd, err := command(p.spec)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = output, output
	started, done := make(chan error), make(chan struct{})
	go spawn(cmd, started, func(err error) {
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	})
	err = <-started
	if closeErr := output.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.cmd, p.done = cmd, done
	return nil
}

// command makes the exec.Cmd of a spec.
func command(spec Command) (*exec.Cmd, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = spec.Dir
	cmd.SysProcAttr = attributes()
	return cmd, become(cmd, spec.User)
}

// Kill ends the process with SIGKILL and waits until it is gone, with all its children that share its process group.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, 0) }

// Stop asks with SIGTERM (or another signal), waits, and kills after the patience.
func (p *Process) Stop(signal syscall.Signal, patience time.Duration) error {
	return p.end(signal, patience)
}

func (p *Process) end(signal syscall.Signal, patience time.Duration) error {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	default:
	}
	if err := signalGroup(cmd.Process.Pid, signal); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-done:
			return nil
		case <-timer.C:
			if err := signalGroup(cmd.Process.Pid, syscall.SIGKILL); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	<-done
	return nil
}

// Pause stops the process with SIGSTOP, children too, and returns when it stands still; Resume lets it go on.
func (p *Process) Pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.mu.Lock()
	pid := p.cmd.Process.Pid
	p.mu.Unlock()
	return stopped(pid)
}

// stopped waits until all threads of the processes stand still. The signal only asks for it: a thread that runs on another processor goes
// on for a moment, in which a server may answer.
func stopped(pids ...int) error {
	const most = 10 * time.Second
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(most); ; <-tick.C {
		left := slices.IndexFunc(pids, running)
		if left < 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d still runs %v after SIGSTOP", pids[left], most)
		}
	}
}

// running tells whether a thread of the process is neither stopped nor ended.
func running(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is a good one
	return slices.ContainsFunc(threads, func(path string) bool {
		now, _ := state(path)
		return now != "" && !strings.ContainsAny(now, "TtZXx")
	})
}

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s was never started", p.name)
	}
	return signalGroup(p.cmd.Process.Pid, s)
}

// Ended tells whether the process has ended by itself, and how.
func (p *Process) Ended() (bool, error) {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return true, p.err
	default:
		return false, nil
	}
}

// Await calls ready every 20 ms until it returns nil. It gives up after the patience, or at once when the process ends; the
// error then shows the last lines of the log.
func (p *Process) Await(patience time.Duration, ready func() error) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if ended, how := p.Ended(); ended {
			return fmt.Errorf("%s ended (%w) before it was ready: %w\n%s", p.name, orClean(how), err, p.Tail())
		}
		select {
		case <-deadline.C:
			return fmt.Errorf("%s is not ready after %v: %w\n%s", p.name, patience, err, p.Tail())
		case <-look.C:
		}
	}
}

func orClean(err error) error {
	if err == nil {
		return errors.New("exit code 0")
	}
	return err
}

// Tail is the last 4 KiB of the log.
func (p *Process) Tail() string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // what counts is known by then
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, size-4096), io.SeekStart)
		if err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
