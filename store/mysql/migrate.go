package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/convergo/convergo/store/internal/schema"
)

// Migrate brings a named set of migrations (goose's format: 00001_name.sql with "-- +goose Up") up to date, with a version table
// "goose_<set>" of its own. Processes that start together do it one after another. A database that has a migration which fsys
// lacks is refused with ErrNewer, before anything is written, unless that migration says in migration_compatible that this program
// may run with it: then the set is left as it is.
//
// Portable text is fitted to the server: a CREATE TABLE that names no collation gets the one that compares bytes, whatever the
// database's default is, and InnoDB; TEXT becomes LONGTEXT, for MySQL's holds 64 KiB only. MySQL commits at each statement that
// changes the schema, so a migration that was interrupted is half done; write statements that can be run again, or restore.
func (s *Store) Migrate(ctx context.Context, set string, fsys fs.FS) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("mysql store %s: migrate %s: %w", s.opts.Name, set, ErrReadOnly)
	}
	if err := s.migrate(ctx, set, fsys); err != nil {
		return refused(err, s.fail("migrate", err))
	}
	return nil
}

// migrationWait is how long a process waits for another one that migrates the same database.
const migrationWait = 2 * time.Minute

func (s *Store) migrate(ctx context.Context, set string, fsys fs.FS) (err error) {
	if ahead, err := s.refuseNewer(ctx, set, fsys); err != nil || ahead {
		return err
	}
	// Connections of its own: one has the lock while another migrates, and the store's pool may have a single one.
	opts := s.opts
	opts.MaxConns = 2
	db, err := openPool(s.cfg, opts, &s.counts, s.unconnected)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	provider, err := s.provide(db, set, fsys, giveUp)
	if err != nil {
		return err
	}
	unlock, err := lockMigrations(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	done, err := provider.Up(ctx)
	for _, m := range done {
		s.opts.Log.DebugContext(ctx, "migrated",
			slog.String("store", s.opts.Name), slog.String("set", set), slog.Int64("version", m.Source.Version))
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("set %s: %w", set, err) // explained by those who call
	}
	return nil
}

// lockMigrations takes a named lock of the server; it belongs to a connection, which is kept for as long.
func lockMigrations(ctx context.Context, db *sql.DB) (unlock func() error, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(CONCAT('convergo.', LEFT(SHA2(DATABASE(), 256), 40)), ?)",
		int64(migrationWait/time.Second)).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another process is migrating the database and does not come to an end")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK(CONCAT('convergo.', LEFT(SHA2(DATABASE(), 256), 40)))")
		return errors.Join(err, conn.Close())
	}, nil
}

func (s *Store) provide(db *sql.DB, set string, fsys fs.FS, failed func(error)) (*goose.Provider, error) {
	if err := schema.ValidateName(set); err != nil {
		return nil, err
	}
	store, err := database.NewStore(goose.DialectMySQL, "goose_"+set)
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", set, err)
	}
	table, ok := store.(database.StoreExtender)
	if !ok {
		return nil, fmt.Errorf("goose's store %T lacks a method that is needed; use the version in go.mod", store)
	}
	provider, err := goose.NewProvider("", db, fitted{fsys, s.server.collation()},
		goose.WithStore(versions{table, failed}), goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", set, err)
	}
	return provider, nil
}

// refuseNewer looks without writing. ahead tells that a newer program has migrated the set, and that this one may run with it.
func (s *Store) refuseNewer(ctx context.Context, set string, fsys fs.FS) (ahead bool, err error) {
	provider, err := s.provide(s.db, set, fsys, nil)
	if err != nil {
		return false, err
	}
	have, err := s.applied(ctx, set)
	if err != nil {
		return false, err
	}
	newest := schema.Newest(provider)
	return schema.Ahead(set, have, newest, func() (strangers int, err error) {
		err = s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM goose_"+set+` AS g WHERE g.is_applied = 1 AND g.version_id > ? AND NOT EXISTS (
			SELECT 1 FROM migration_compatible AS c WHERE c.set_name = ? AND c.version = g.version_id AND c.least <= ?)`,
			newest, set, newest).Scan(&strangers)
		return strangers, err
	}, ErrNewer)
}

// applied is the version of a set in the database, 0 when it has none.
func (s *Store) applied(ctx context.Context, set string) (version int64, err error) {
	var there int
	err = s.db.QueryRowContext(ctx,
		"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?", "goose_"+set).Scan(&there)
	if err != nil {
		return 0, fmt.Errorf("read the schema: %w", err)
	}
	if there == 0 {
		return 0, nil
	}
	err = s.db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM goose_"+set+" WHERE is_applied = 1").Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("read the version of set %s: %w", set, err)
	}
	return version, nil
}
