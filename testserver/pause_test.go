package testserver

import (
	"slices"
	"strconv"
	"testing"
)

func TestAServerThatIsPausedStandsStillWithAllItsProcesses(t *testing.T) {
	s := Own(t, OpenDefaultPostgres)
	all := func() []int { return append(children(strconv.Itoa(s.cmd.Process.Pid)), s.cmd.Process.Pid) }
	for range 20 {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
		pids := all()
		if len(pids) < 3 || slices.ContainsFunc(pids, running) {
			t.Fatalf("not all of %v stand still", pids)
		}
		if err := s.Resume(); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(pids, running) {
			t.Fatalf("all of %v stand still", pids)
		}
	}
}
