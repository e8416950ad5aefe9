// Package schema is the rules of migrations that hold on every database: the names of sets, and which program may run with what a newer
// one has migrated. The statements that ask are each store's own.
package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/pressly/goose/v3"
)

// names of sets are parts of tables' names.
var names = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// ValidateName refuses a set whose name cannot be part of a table's.
func ValidateName(set string) error {
	if !names.MatchString(set) {
		return fmt.Errorf("set %q: its name must be lower-case letters, digits and _", set)
	}
	return nil
}

// Engine is the engine's own migrations: those in the folder of this name of a store's files.
func Engine(files fs.FS) (set string, fsys fs.FS, err error) {
	fsys, err = fs.Sub(files, "migrations")
	return "engine", fsys, err
}

// Newest is the newest version that a program knows of a set. A provider has one migration at least.
func Newest(p *goose.Provider) int64 {
	sources := p.ListSources()
	return sources[len(sources)-1].Version
}

// Ahead tells that a newer program has migrated a set further than this one knows, and that this one may run with it: that none of the
// newer migrations are strangers, which do not say so in migration_compatible. Else its error wraps newer. have is the version of the
// database, 0 for none; newest what this program knows. strangers counts them; it is asked only when there are newer migrations.
func Ahead(set string, have, newest int64, strangers func() (int, error), newer error) (ahead bool, err error) {
	if have <= newest {
		return false, nil
	}
	n, err := strangers()
	if err != nil || n > 0 {
		return false, errors.Join(fmt.Errorf("set %s has version %d, this program knows %d: %w", set, have, newest, newer), err)
	}
	return true, nil
}
