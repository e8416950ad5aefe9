package freeport

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const askerEnv = "CONVERGO_FREEPORT_ASKER"

// TestMain is also another process that asks for ports: it prints them and waits until its input ends.
func TestMain(m *testing.M) {
	if os.Getenv(askerEnv) == "" {
		os.Exit(m.Run())
	}
	for range asked {
		a, err := Address()
		if err != nil {
			a = err.Error()
		}
		_, _ = os.Stdout.WriteString(a + "\n")
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
}

const asked = block + 10

func TestNoPortIsGivenTwiceInThisProcessOrInAnotherThatRuns(t *testing.T) {
	given := map[string]bool{}
	take := func(a string) {
		t.Helper()
		if given[a] {
			t.Errorf("%s was given twice", a)
		}
		given[a] = true
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Errorf("it was not free: %v", err)
			return
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		other := exec.Command(os.Args[0])
		other.Env = append(os.Environ(), askerEnv+"=1")
		out, err := other.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := other.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = other.Wait() })
		lines := bufio.NewScanner(out)
		for range asked {
			if !lines.Scan() {
				t.Fatalf("the other process ended: %v", lines.Err())
			}
			take(lines.Text())
		}
	}
	for range asked {
		a, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		take(a)
	}
}

func TestAPortThatSomebodyListensOnIsNotGiven(t *testing.T) {
	port, err := Next()
	if err != nil {
		t.Fatal(err)
	}
	if port+1 == own().end {
		if port, err = Next(); err != nil { // of the next block
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", address(port+1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if next, err := Next(); err != nil || next == port+1 {
		t.Errorf("%d %v", next, err)
	}
}

func TestPortsAreBelowThoseThatTheSystemGivesOutByItself(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil && strings.HasPrefix(string(text), "32768") && last > 32768 || last > 49152 { // Linux as it comes; IANA
		t.Errorf("up to %d", last)
	}
	if (last-first)%block != 0 {
		t.Error("the last block is none")
	}
}
