package bench

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// syncData is what SQLite uses: fdatasync.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }

// processTime is the processor time that this process has used.
func processTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// timeOf is the processor time that another process has used, to a hundredth of a second.
func timeOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name before may have blanks
	const utime, stime = 11, 12
	if len(fields) <= stime {
		return 0
	}
	var user, system int64
	_, _ = fmt.Sscan(string(fields[utime]), &user) // a number, by proc(5)
	_, _ = fmt.Sscan(string(fields[stime]), &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}
