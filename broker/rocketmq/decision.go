package rocketmq

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

// Store is the database of the local transactions: any of the SQL stores.
type Store interface {
	// Update runs fn in one write transaction, from its start again when the database asks for it.
	Update(ctx context.Context, fn func(ctx context.Context, tx convergo.Tx) error) error
	// Migrate brings the named set of migrations up to date.
	Migrate(ctx context.Context, set string, fsys fs.FS) error
	Dialect() sqltext.Dialect
}

//go:embed migrations/*.sql queries.sql
var files embed.FS

// decision is what was decided about a transactional message, for good.
type decision int

const (
	commit   decision = 1
	rollback decision = 2
)

func (d decision) String() string {
	if d == commit {
		return "commit"
	}
	return "roll back"
}

// decisions is the table of them.
type decisions struct {
	store Store
	texts sqltext.Set
	now   func() time.Time
}

func openDecisions(ctx context.Context, store Store, now func() time.Time) (*decisions, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx, "rocketmq", migrations); err != nil {
		return nil, err
	}
	texts, err := sqltext.Load(files, "queries.sql", store.Dialect())
	if err != nil {
		return nil, err
	}
	return &decisions{store: store, texts: texts, now: now}, nil
}

// make inserts the decision in tx and tells whether it stands: not when another one was there.
func (d *decisions) make(ctx context.Context, tx convergo.Tx, id string, what decision) (bool, error) {
	result, err := tx.ExecContext(ctx, d.texts.Get("Decide"), id, int(what), convergo.Micros(d.now()))
	if err != nil {
		return false, fmt.Errorf("record the decision to %s %s: %w", what, id, err)
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("record the decision to %s %s: %w", what, id, err)
	}
	return rows == 1, nil
}

// settle decides to roll back what nothing was decided about, and tells what stands.
func (d *decisions) settle(ctx context.Context, id string) (stands decision, err error) {
	err = d.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		stands = rollback
		first, err := d.make(ctx, tx, id, rollback)
		if err != nil || first {
			return err
		}
		if err := tx.QueryRowContext(ctx, d.texts.Get("Decision"), id).Scan(&stands); err != nil {
			return fmt.Errorf("the decision about %s: %w", id, err)
		}
		if stands != commit && stands != rollback {
			return fmt.Errorf("the decision about %s is %d, which is none", id, stands)
		}
		return nil
	})
	return stands, err
}

// delivered takes the event's delayed copy out of the outbox.
func (d *decisions) delivered(ctx context.Context, key convergo.Key) error {
	digest := key.Digest()
	return d.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var event int64
		err := tx.QueryRowContext(ctx, d.texts.Get("EventID"), digest[:]).Scan(&event)
		if errors.Is(err, sql.ErrNoRows) {
			return nil // too old: a retention job has let it go
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, d.texts.Get("Delivered"), event)
		return err
	})
}

// purge forgets up to most decisions that were made before a time.
func (d *decisions) purge(ctx context.Context, before time.Time, most int) (n int, err error) {
	err = d.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		ids, err := d.old(ctx, tx, before, most)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, d.texts.Get("Forget"), id); err != nil {
				return err
			}
		}
		n = len(ids)
		return nil
	})
	return n, err
}

func (d *decisions) old(ctx context.Context, tx convergo.Tx, before time.Time, most int) (ids []string, err error) {
	rows, err := tx.QueryContext(ctx, d.texts.Get("OldDecisions"), convergo.Micros(before), most)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
