package tradetest

import (
	"context"
	"reflect"
	"strings"

	"github.com/convergo/convergo"
)

// seeds are the rows that migrations wrote, by table: what an empty database is not empty of.
type seeds map[string][][]any

// rows reads all rows of the tables that have any, but for the migrations' own tables.
func (k kind) rows(ctx context.Context, store Store) (seeds, error) {
	found := seeds{}
	err := store.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		names, err := rowsOf(ctx, tx, k.tables)
		if err != nil {
			return err
		}
		var looks []string
		for _, row := range names {
			if name := text(row[0]); !strings.HasPrefix(name, "goose_") {
				looks = append(looks, "(SELECT '"+name+"' FROM "+name+" LIMIT 1)")
			}
		}
		if names, err = rowsOf(ctx, tx, strings.Join(looks, " UNION ALL ")); err != nil {
			return err
		}
		for _, row := range names {
			name := text(row[0])
			if found[name], err = rowsOf(ctx, tx, "SELECT * FROM "+name); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// clear removes all rows but the seeds, and puts those back that were changed.
func (k kind) clear(ctx context.Context, store Store, seeds seeds) error {
	now, err := k.rows(ctx, store)
	if err != nil {
		return err
	}
	return store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		for table, rows := range now {
			if reflect.DeepEqual(rows, seeds[table]) {
				continue
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+table); err != nil {
				return err
			}
			for _, row := range seeds[table] {
				marks := "?" + strings.Repeat(", ?", len(row)-1)
				if _, err := tx.ExecContext(ctx, "INSERT INTO "+table+" VALUES ("+marks+")", row...); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// rowsOf is a query's rows.
func rowsOf(ctx context.Context, tx convergo.Tx, query string) (all [][]any, err error) {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// text is a value of a text column; MySQL's driver gives it as bytes.
func text(value any) string {
	if b, is := value.([]byte); is {
		return string(b)
	}
	return value.(string)
}
