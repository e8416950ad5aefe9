//go:build !linux

package testserver

import (
	"os/exec"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func become(*exec.Cmd, string) error { return nil }

func signalGroup(pid int, s syscall.Signal) error { return syscall.Kill(-pid, s) }

func spawn(cmd *exec.Cmd, started chan<- error, ended func(error)) {
	err := cmd.Start()
	started <- err
	if err == nil {
		ended(cmd.Wait())
	}
}
