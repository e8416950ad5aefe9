package sqlite

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/convergo/convergo/store/internal/schema"
)

// Version tells how far a set of migrations has come here, 0 when none of it was applied, and the newest that fsys has. It writes
// nothing, and works with Options.ReadOnly. With a nil fsys it is about the engine's own tables, whatever set says. The error of a
// database that this program must not run with wraps ErrNewer; have may be above newest when it may.
func (s *Store) Version(ctx context.Context, set string, fsys fs.FS) (have, newest int64, err error) {
	if fsys == nil {
		if set, fsys, err = schema.Engine(migrationFiles); err != nil {
			return 0, 0, err
		}
	}
	if have, newest, err = s.version(ctx, set, fsys); err != nil {
		return 0, 0, fmt.Errorf("sqlite store %s: version: %w", s.opts.Name, s.explain(err))
	}
	return have, newest, nil
}

func (s *Store) version(ctx context.Context, set string, fsys fs.FS) (have, newest int64, err error) {
	if _, err := s.refuseNewer(ctx, set, fsys); err != nil {
		return 0, 0, err
	}
	provider, err := provide(s.read, set, fsys)
	if err != nil {
		return 0, 0, err
	}
	have, err = applied(ctx, s.read, set)
	return have, schema.Newest(provider), err
}
