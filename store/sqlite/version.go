package sqlite

import (
	"context"
	"fmt"
	"io/fs"
)

// Version tells how far a set of migrations has come here, 0 when none of it was applied, and the newest that fsys has. It writes
// nothing, and works with Options.ReadOnly. With a nil fsys it is about the engine's own tables, whatever set says. The error of a
// database that this program must not run with wraps ErrNewer; have may be above newest when it may.
func (s *Store) Version(ctx context.Context, set string, fsys fs.FS) (have, newest int64, err error) {
	if fsys == nil {
		if set, fsys, err = engineSet(); err != nil {
			return 0, 0, err
		}
	}
	if have, newest, err = s.version(ctx, set, fsys); err != nil {
		return 0, 0, fmt.Errorf("sqlite store %s: version: %w", s.opts.Name, s.explain(err))
	}
	return have, newest, nil
}

// engineSet is the engine's own migrations.
func engineSet() (set string, fsys fs.FS, err error) {
	fsys, err = fs.Sub(migrationFiles, "migrations")
	return "engine", fsys, err
}

func (s *Store) version(ctx context.Context, set string, fsys fs.FS) (have, newest int64, err error) {
	if _, err := s.refuseNewer(ctx, set, fsys); err != nil {
		return 0, 0, err
	}
	provider, err := provide(s.read, set, fsys)
	if err != nil {
		return 0, 0, err
	}
	sources := provider.ListSources()
	newest = sources[len(sources)-1].Version
	var there int
	err = s.read.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = ?", "goose_"+set).Scan(&there)
	if err != nil || there == 0 {
		return 0, newest, err
	}
	err = s.read.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM goose_"+set+" WHERE is_applied = 1").Scan(&have)
	return have, newest, err
}
