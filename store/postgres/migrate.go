package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/convergo/convergo/store/internal/schema"
)

// Migrate brings a named set of migrations (goose's format: 00001_name.sql with "-- +goose Up") up to date, each in a
// transaction of its own, with a version table "goose_<set>" of its own in the store's schema. A database that has a
// migration which fsys lacks is refused with ErrNewer, before anything is written, unless that migration says in
// migration_compatible that this program may run with it: then the set is left as it is. A migration that is marked NO TRANSACTION must
// name the schema itself.
func (s *Store) Migrate(ctx context.Context, set string, fsys fs.FS) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("postgres store %s: migrate %s: %w", s.opts.Name, set, ErrReadOnly)
	}
	if err := s.migrate(ctx, set, fsys); err != nil {
		return fmt.Errorf("postgres store %s: migrate: %w", s.opts.Name, s.refused(ctx, err))
	}
	return nil
}

// startTries bounds how often processes that migrate at the same moment try again.
const startTries = 8

func (s *Store) migrate(ctx context.Context, set string, fsys fs.FS) error {
	if ahead, err := s.refuseNewer(ctx, set, fsys); err != nil || ahead {
		return err
	}
	db := s.openPool(1, s.begin.migration)
	defer func() { _ = db.Close() }()
	// Processes that start together may both find the schema or a migration missing; the slower one fails, and finds it there
	// when it looks again. No lock is held meanwhile: it would have to be a session's, or need a second connection.
	for try := 1; ; try++ {
		err := s.migrateOnce(ctx, db, set, fsys)
		if err == nil || ctx.Err() != nil || try == startTries || final(err) || codeOf(err) == codeReadOnly {
			return err
		}
		pause := time.NewTimer(time.Duration(rand.Int64N(int64(50 * time.Millisecond * time.Duration(try)))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

func (s *Store) migrateOnce(ctx context.Context, db *sql.DB, set string, fsys fs.FS) error {
	if s.opts.Schema != "" {
		var there bool
		if err := db.QueryRowContext(ctx, "SELECT to_regnamespace($1) IS NOT NULL", `"`+s.opts.Schema+`"`).Scan(&there); err != nil {
			return err
		}
		if !there { // asked first: one who may not make schemas may still use one
			if _, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS "`+s.opts.Schema+`"`); err != nil {
				return fmt.Errorf("make schema %s: %w", s.opts.Schema, err)
			}
		}
	}
	// goose tries for seconds to make its table, whatever the error is; the first one ends it, and migrate tries again.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	provider, err := s.provide(db, set, fsys, giveUp)
	if err != nil {
		return err
	}
	done, err := provider.Up(ctx)
	for _, m := range done {
		s.opts.Log.DebugContext(ctx, "migrated",
			slog.String("store", s.opts.Name), slog.String("set", set), slog.Int64("version", m.Source.Version))
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("set %s: %w", set, err)
	}
	return nil
}

func (s *Store) provide(db *sql.DB, set string, fsys fs.FS, failed func(error)) (*goose.Provider, error) {
	if err := schema.ValidateName(set); err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider("", db, fsys, goose.WithStore(versions{s.qualified("goose_" + set), failed}),
		goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", set, err)
	}
	return provider, nil
}

// refuseNewer looks without writing. ahead tells that a newer program has migrated the set, and that this one may run with it.
func (s *Store) refuseNewer(ctx context.Context, set string, fsys fs.FS) (ahead bool, err error) {
	db := s.openPool(1, s.begin.migration)
	defer func() { _ = db.Close() }()
	provider, err := s.provide(db, set, fsys, nil)
	if err != nil {
		return false, err
	}
	have, err := s.applied(ctx, db, set)
	if err != nil {
		return false, err
	}
	newest := schema.Newest(provider)
	return schema.Ahead(set, have, newest, func() (strangers int, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM "+s.qualified("goose_"+set)+
			" AS g WHERE g.is_applied AND g.version_id > $1 AND NOT EXISTS (SELECT 1 FROM "+s.qualified("migration_compatible")+
			" AS c WHERE c.set_name = $2 AND c.version = g.version_id AND c.least <= $1)", newest, set).Scan(&strangers)
		return strangers, err
	}, ErrNewer)
}

// applied is the version of a set in the database, 0 when it has none.
func (s *Store) applied(ctx context.Context, db *sql.DB, set string) (int64, error) {
	table := versions{table: s.qualified("goose_" + set)}
	there, err := table.TableExists(ctx, db)
	if err != nil || !there {
		return 0, err
	}
	version, err := table.GetLatestVersion(ctx, db)
	if err != nil && !errors.Is(err, database.ErrVersionNotFound) {
		return 0, fmt.Errorf("read the version of set %s: %w", set, err)
	}
	return version, nil
}

// versions is a version table, by its qualified name: goose's own store does not quote a schema's name, and finds the table
// by the search_path, which is nobody's here.
type versions struct {
	table  string
	failed func(error) // is told why the table could not be made
}

var _ database.StoreExtender = versions{}

func (v versions) Tablename() string { return v.table }

func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (there bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", v.table).Scan(&there)
	return there, err
}

func (v versions) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	_, err := db.ExecContext(ctx, "CREATE TABLE "+v.table+` (
		id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, version_id BIGINT NOT NULL UNIQUE, is_applied BOOLEAN NOT NULL,
		tstamp TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp())`)
	if err != nil && v.failed != nil {
		v.failed(err)
	}
	return err
}

func (v versions) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, "INSERT INTO "+v.table+" (version_id, is_applied) VALUES ($1, true)", req.Version)
	return err
}

func (v versions) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+v.table+" WHERE version_id = $1", version)
	return err
}

func (v versions) GetMigration(ctx context.Context, db database.DBTxConn, version int64) (*database.GetMigrationResult, error) {
	var r database.GetMigrationResult
	row := db.QueryRowContext(ctx, "SELECT tstamp, is_applied FROM "+v.table+" WHERE version_id = $1", version)
	err := row.Scan(&r.Timestamp, &r.IsApplied)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("version %d: %w", version, database.ErrVersionNotFound)
	}
	return &r, err
}

func (v versions) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	var version sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT max(version_id) FROM "+v.table).Scan(&version); err != nil {
		return 0, err
	}
	if !version.Valid {
		return 0, database.ErrVersionNotFound
	}
	return version.Int64, nil
}

func (v versions) ListMigrations(ctx context.Context, db database.DBTxConn) (list []*database.ListMigrationsResult, err error) {
	rows, err := db.QueryContext(ctx, "SELECT version_id, is_applied FROM "+v.table+" ORDER BY id DESC")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r database.ListMigrationsResult
		if err = rows.Scan(&r.Version, &r.IsApplied); err != nil {
			return nil, err
		}
		list = append(list, &r)
	}
	return list, rows.Err()
}
