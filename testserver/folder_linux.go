package testserver

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// owner is the file in a folder on which the process that made it has a lock for as long as it lives. The kernel lets go of the lock,
// whatever ends the process; a number of a process could be somebody else's by the time that it is looked at, or be one of another
// container.
const owner = ".owner"

// own marks a new folder. A file of this name is locked from its first moment: one that looks never takes the folder for abandoned
// between two steps of this. The descriptor stays open until the process ends; children do not get it.
func own(dir string) error {
	path := filepath.Join(dir, owner+".new")
	fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_EXCL|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, syscall.Close(fd))
	}
	return os.Rename(path, filepath.Join(dir, owner))
}

// sweep removes the folders of this package whose owners have died without removing them, and ends what still works in them. What it
// cannot remove it leaves for the next time: a server that was killed with its owner may still be about to go.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*-*")) // the pattern is a good one
	for _, dir := range dirs {
		_ = sweepOne(dir)
	}
}

// sweepOne removes a folder if it is one of ours whose owner is dead. The mark goes last: a folder without it would stay for good.
func sweepOne(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return err
	}
	mark := filepath.Join(dir, owner)
	fd, err := syscall.Open(mark, syscall.O_RDWR|syscall.O_NOFOLLOW|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err // its owner lives, or another process is sweeping it
	}
	endAll(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != owner {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// endAll kills the processes that have their working folder in dir. The kernel kills a server when its owner ends, and the server's own
// processes end by themselves when they notice that; those of one that is paused never do.
func endAll(dir string) {
	for _, pid := range inside(dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it has ended meanwhile, or is somebody else's
	}
}

// inside is the processes whose working folder is dir or below it, also one that was removed.
func inside(dir string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is a good one
	for _, link := range links {
		at, err := os.Readlink(link)
		if err != nil || at != dir && !strings.HasPrefix(at, dir+"/") && !strings.HasPrefix(at, dir+" ") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
