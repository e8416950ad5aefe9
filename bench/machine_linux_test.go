package bench

import (
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
