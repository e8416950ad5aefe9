package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/relay"
)

// Check reports the server's and the role's settings under which something that was committed can be lost, or a service's own
// transactions behave otherwise than the engine's.
func (s *Store) Check(ctx context.Context) ([]relay.Warning, error) {
	var (
		version                                  int
		fsync, fullPages, synchronous, isolation string
	)
	err := s.snapshot(ctx, s.begin.view, func(c session) error {
		return c.each(ctx, "Settings", nil, func(rows pgx.Rows) error {
			return rows.Scan(&version, &fsync, &fullPages, &synchronous, &isolation)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("postgres store %s: check: %w", s.opts.Name, err)
	}
	var found []relay.Warning
	warn := func(bad bool, setting, value, want, loses string) {
		if bad {
			found = append(found, relay.Warning{Setting: setting, Value: value, Want: want, Loses: loses})
		}
	}
	warn(version < 120000, "server_version", fmt.Sprintf("%d.%d", version/10000, version%10000), "12 or newer",
		"statements of the engine fail")
	warn(fsync != "on", "fsync", fsync, "on", "a power cut or a crash of the operating system loses commits, or damages the whole database")
	warn(fullPages != "on", "full_page_writes", fullPages, "on",
		"a crash of the operating system in the middle of a page's write damages the page, unless the file system writes pages whole")
	warn(synchronous == "off", "synchronous_commit", synchronous, "on",
		"a crash of the server loses the last commits (up to three times wal_writer_delay), although they were answered")
	warn(isolation != "read committed", "default_transaction_isolation", isolation, "read committed",
		"nothing; but transactions outside the engine run at this level, and their serialization failures are theirs to repeat")
	return found, nil
}
