package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/sqlite"
	"github.com/convergo/convergo/trade"
)

// databasesFile names the databases that the folder has had, one a line. One of them that is not there any more is lost,
// not new: a platform that began it anew would run without its orders or its stock, and nobody would be told.
const databasesFile = "DATABASES"

func (f *folder) databases() ([]string, error) {
	text, err := os.ReadFile(f.file(databasesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w", f.path, err)
	}
	return strings.Fields(string(text)), nil
}

// remember adds names to the databases that the folder has.
func (f *folder) remember(names []string) error {
	had, err := f.databases()
	if err != nil {
		return err
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(had, names))))
	if len(all) == len(had) {
		return nil
	}
	return writeDurably(f.file(databasesFile), []byte(strings.Join(all, "\n")+"\n"))
}

// refuseLost refuses, before anything is written, to go on without a database that the folder had.
func (f *folder) refuseLost(names []string) error {
	had, err := f.databases()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.Contains(had, name) {
			continue
		}
		info, err := os.Stat(f.file(name + ".db"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return f.lost(name, "is not there any more")
		case err == nil && info.Size() == 0:
			return f.lost(name, "is empty")
		}
	}
	return nil
}

// refuseOther refuses the database of another service, and one that has lost its tables.
func (f *folder) refuseOther(ctx context.Context, name string, store *sqlite.Store) error {
	var sets []string
	err := store.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return sqlscan.Select(ctx, tx, &sets, "SELECT substr(name, 7) FROM sqlite_schema WHERE type = 'table' AND name GLOB 'goose_*'")
	})
	if err != nil {
		return err
	}
	for _, other := range sets {
		if other != name && (slices.Contains(serviceNames(), other) || other == "world") {
			return fmt.Errorf("%s is the database of %s, not of %s: give the files back the names that they had", f.file(name+".db"), other, name)
		}
	}
	had, err := f.databases()
	if err != nil {
		return err
	}
	if slices.Contains(had, name) && !slices.Contains(sets, name) {
		return f.lost(name, "has lost its tables")
	}
	return nil
}

// refuseTaken refuses a database outside that has a platform's tables when this folder is new: with secrets of its own this process would
// be another platform there, whose events stop the first one's consumers. The secrets that were made for it are not kept, so that the
// next try does not find them: see keepSecrets.
func (f *folder) refuseTaken(ctx context.Context, address string, store *opened) error {
	if !f.made {
		return nil
	}
	have, _, err := store.Version(ctx, "trade", trade.Migrations())
	if err != nil || have == 0 {
		return err
	}
	return fmt.Errorf("%s has the tables of a platform, and the data folder %s has no secrets: %s", redacted(address), f.path, takenRemedy)
}

const takenRemedy = "start it with that platform's data folder (--data) or with its secrets (--secrets FILE); if they are lost, " +
	"`convergo secrets --data DIR` makes new ones: sessions and links of before end, and --platform-id keeps the id of before"

func (f *folder) lost(name, what string) error {
	return fmt.Errorf("%s %s, though this platform has used it: restore the whole folder from a copy; "+
		"or, to go on without what was in it, take the line %q out of %s", f.file(name+".db"), what, name, f.file(databasesFile))
}
