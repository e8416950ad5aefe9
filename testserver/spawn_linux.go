package testserver

import (
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
)

// attributes puts a server into a process group of its own and lets the kernel kill it when the thread that started it dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// become makes cmd run as the user, when we are root and one is named.
func become(cmd *exec.Cmd, name string) error {
	if name == "" || os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	cmd.Env = append(cmd.Env, "HOME="+account.HomeDir, "USER="+name)
	return nil
}

func signalGroup(pid int, s syscall.Signal) error {
	err := syscall.Kill(-pid, s)
	if err == syscall.ESRCH {
		return nil
	}
	return err
}

// spawn starts cmd and waits for its end on a thread of its own: the kernel ends a child when the *thread* that started it ends
// (Pdeathsig), and Go ends threads when it likes. started gets one error, nil when it runs; ended gets what Wait says.
func spawn(cmd *exec.Cmd, started chan<- error, ended func(error)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		ended(cmd.Wait())
	}
}
