package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3/database"
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
		return 0, 0, fmt.Errorf("postgres store %s: version: %w", s.opts.Name, err)
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
	db := s.openPool(1, s.begin.migration)
	defer func() { _ = db.Close() }() // only read
	provider, err := s.provide(db, set, fsys, nil)
	if err != nil {
		return 0, 0, err
	}
	sources := provider.ListSources()
	newest = sources[len(sources)-1].Version
	table := versions{table: s.qualified("goose_" + set)}
	there, err := table.TableExists(ctx, db)
	if err != nil || !there {
		return 0, newest, err
	}
	have, err = table.GetLatestVersion(ctx, db)
	if errors.Is(err, database.ErrVersionNotFound) {
		err = nil
	}
	return have, newest, err
}
