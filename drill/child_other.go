//go:build !linux

package drill

import "os/exec"

// dieWithParent is known to Linux only.
func dieWithParent(*exec.Cmd) {}
