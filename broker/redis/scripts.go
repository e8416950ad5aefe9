package redis

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/lease.lua
	leaseText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/read.lua
	readText string
	//go:embed scripts/recover.lua
	recoverText string
	//go:embed scripts/again.lua
	againText string
)

// scripts run inside the server, where nothing comes between a look at a lease and what is done in its name. A reader that was
// stopped (SIGSTOP, a long pause) between its own look at the clock and its request therefore reads nothing that another
// instance has the right to.
type scripts struct {
	lease, release, read, recover, again *redis.Script
}

func loadScripts() scripts {
	return scripts{
		lease: redis.NewScript(leaseText), release: redis.NewScript(releaseText), read: redis.NewScript(readText),
		recover: redis.NewScript(recoverText), again: redis.NewScript(againText),
	}
}
