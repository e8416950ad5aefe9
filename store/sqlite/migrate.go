package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/pressly/goose/v3"

	"github.com/convergo/convergo/store/internal/schema"
)

// Migrate brings a named set of migrations (goose's format: 00001_name.sql with "-- +goose Up") up to date, each in a
// transaction of its own, with a version table "goose_<set>" of its own. A database that has a migration which fsys lacks
// is refused with ErrNewer, before anything is written, unless that migration says in migration_compatible that this program
// may run with it: then the set is left as it is.
func (s *Store) Migrate(ctx context.Context, set string, fsys fs.FS) error {
	if s.writer == nil {
		return fmt.Errorf("sqlite store %s: migrate %s: %w", s.opts.Name, set, ErrReadOnly)
	}
	if err := s.migrate(ctx, set, fsys); err != nil {
		return fmt.Errorf("sqlite store %s: migrate: %w", s.opts.Name, s.explain(err))
	}
	return nil
}

func (s *Store) migrate(ctx context.Context, set string, fsys fs.FS) error {
	if ahead, err := s.refuseNewer(ctx, set, fsys); err != nil || ahead {
		return err
	}
	db, err := s.openPool(s.writeDSN(), 1, nil)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	provider, err := provide(db, set, fsys)
	if err != nil {
		return err
	}
	// Two processes that start together may both find a migration missing; the slower one fails, and finds it there when it
	// looks again.
	for attempt := 1; ; attempt++ {
		var done []*goose.MigrationResult
		done, err = provider.Up(ctx)
		for _, m := range done {
			s.opts.Log.DebugContext(ctx, "migrated",
				slog.String("store", s.opts.Name), slog.String("set", set), slog.Int64("version", m.Source.Version))
		}
		if err == nil || ctx.Err() != nil || attempt == 3 {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", set, err)
	}
	return nil
}

func provide(db *sql.DB, set string, fsys fs.FS) (*goose.Provider, error) {
	if err := schema.ValidateName(set); err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, fsys,
		goose.WithTableName("goose_"+set), goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", set, err)
	}
	return provider, nil
}

// refuseNewer looks without writing: the connection is query_only and does not set the journal mode. ahead tells that a newer
// program has migrated the set, and that this one may run with it.
func (s *Store) refuseNewer(ctx context.Context, set string, fsys fs.FS) (ahead bool, err error) {
	if info, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false, nil
	}
	db, err := s.openPool(s.readDSN(), 1, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = db.Close() }()
	provider, err := provide(db, set, fsys)
	if err != nil {
		return false, err
	}
	have, err := applied(ctx, db, set)
	if err != nil {
		return false, err
	}
	newest := schema.Newest(provider)
	return schema.Ahead(set, have, newest, func() (strangers int, err error) {
		err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM goose_"+set+` AS g WHERE g.is_applied = 1 AND g.version_id > ? AND NOT EXISTS (
			SELECT 1 FROM migration_compatible AS c WHERE c.set_name = ? AND c.version = g.version_id AND c.least <= ?)`,
			newest, set, newest).Scan(&strangers)
		return strangers, err
	}, ErrNewer)
}

// applied is the version of a set in the database, 0 when it has none.
func applied(ctx context.Context, db *sql.DB, set string) (version int64, err error) {
	var there int
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = ?", "goose_"+set).Scan(&there)
	if err != nil {
		return 0, fmt.Errorf("read the schema: %w", err)
	}
	if there == 0 {
		return 0, nil
	}
	err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM goose_"+set+" WHERE is_applied = 1").Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("read the version of set %s: %w", set, err)
	}
	return version, nil
}
