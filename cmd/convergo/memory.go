package main

import (
	"os"
	"runtime/debug"
)

// garbagePercent is how much garbage, in percent of what is in use, may gather before it is collected. What the platform has
// in use is some tens of megabytes, so with Go's default of 100 it collects several times a second under load, and each time
// the stacks of waiting goroutines shrink, only to grow again.
const garbagePercent = 400

// collectSeldom sets garbagePercent, unless the environment says otherwise with GOGC or GOMEMLIMIT, until undo is called.
func collectSeldom() (undo func()) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(garbagePercent)
	return func() { debug.SetGCPercent(before) }
}
