package drill

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestNoPlatformOutlivesADrillThatIsKilled(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"="+readyServer(t))
	var out lockedBuffer
	parent.Stdout = &out
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return strings.HasSuffix(out.String(), "\n") })
	child := "/proc/" + strings.TrimSpace(out.String()) + "/cmdline"
	if text, err := os.ReadFile(child); err != nil || !strings.Contains(string(text), "sleep") {
		t.Fatalf("the child is not there: %q %v", text, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	eventually(t, func() bool {
		text, err := os.ReadFile(child) // a zombie that nobody waits for has an empty command line
		return err != nil || len(text) == 0
	})
}
