package drill

import (
	"os/exec"
	"syscall"
)

// dieWithParent: no platform outlives a drill that was killed itself.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
