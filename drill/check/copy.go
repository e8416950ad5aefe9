package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is a service's database on a server. Its tables are copied into an SQLite file before each run, so that the same
// equations judge every database.
type Source struct {
	DB       *sql.DB // the checker closes it
	Postgres bool    // and not MySQL or MariaDB
	Schema   string  // with the tables; of MySQL the database
}

// OpenSources is Open for services of which some have their data on a server; the others are files in dir.
func OpenSources(ctx context.Context, dir, world string, sources map[string]Source) (_ *Checker, err error) {
	if len(sources) == 0 {
		return Open(ctx, dir, world)
	}
	c, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.copies, err = os.MkdirTemp("", "convergo-check-"); err != nil {
		return nil, err
	}
	for _, name := range Services() {
		source, ok := sources[name]
		if !ok {
			if err := c.attach(ctx, name, filepath.Join(dir, name+".db")); err != nil {
				return nil, err
			}
			continue
		}
		c.sources = append(c.sources, &original{source, name})
		if _, err := c.conn.ExecContext(ctx, `ATTACH DATABASE ? AS "`+name+`"`, filepath.Join(c.copies, name+".db")); err != nil {
			return nil, err
		}
	}
	if world == "" {
		world = filepath.Join(dir, worldSchema+".db")
	}
	return c, c.attach(ctx, worldSchema, world)
}

// original is a database on a server, and what is needed to copy it.
type original struct {
	Source
	name string
}

// copyAll copies every table of every source; of a table that was copied before, everything again.
func (c *Checker) copyAll(ctx context.Context) error {
	for _, o := range c.sources {
		if err := o.copyTo(ctx, c.conn); err != nil {
			return fmt.Errorf("database of %s: %w", o.name, err)
		}
	}
	return nil
}

// copyTo copies the tables as one snapshot of the original: whatever is written meanwhile is in none of them.
func (o *original) copyTo(ctx context.Context, to *sql.Conn) (err error) {
	from, err := o.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Rollback()) }()
	tables, err := o.tables(ctx, from)
	if err != nil {
		return err
	}
	if len(tables) == 0 {
		return fmt.Errorf("%s has no tables: the platform was never started on it", o.Schema)
	}
	tx, err := to.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	// The copy has SQLite's own memory of the ids that were given: kept asks it.
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS "`+o.name+`".ids (id INTEGER PRIMARY KEY AUTOINCREMENT)`); err != nil {
		return err
	}
	for _, table := range tables {
		if err := o.copyTable(ctx, from, tx, table); err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
	}
	return tx.Commit()
}

func (o *original) tables(ctx context.Context, from *sql.Tx) (names []string, err error) {
	query := "SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND table_type = 'BASE TABLE' ORDER BY table_name"
	if o.Postgres {
		query = strings.Replace(query, "?", "$1", 1)
	}
	err = each(ctx, from, query, func(scan func(...any) error) error {
		var name string
		if err := scan(&name); err != nil {
			return err
		}
		if !strings.HasPrefix(name, "goose_") {
			names = append(names, name)
		}
		return nil
	}, o.Schema)
	return names, err
}

// quoted is a name between the marks that the database wants; names of tables and columns are ours, none has a mark in it.
func (o *original) quoted(name string) string {
	if !o.Postgres {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// holdsBytes tells which columns are bytes: some of the engine's tables. A server may keep text as bytes too (so that no collation
// touches it): SQLite must get text back, or nothing would compare equal.
func holdsBytes(table, column string) bool {
	engine := slices.ContainsFunc([]string{"outbox_", "inbox_", "outside_", "idempotency_"}, func(room string) bool { return strings.HasPrefix(table, room) })
	return engine && (strings.HasSuffix(column, "_digest") || slices.Contains([]string{"payload", "body", "fingerprint", "result"}, column))
}

func (o *original) copyTable(ctx context.Context, from, to *sql.Tx, table string) error {
	rows, err := from.QueryContext(ctx, "SELECT * FROM "+o.quoted(o.Schema)+"."+o.quoted(table))
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	target := `"` + o.name + `"."` + table + `"`
	if _, err := to.ExecContext(ctx, "DROP TABLE IF EXISTS "+target); err != nil {
		return err
	}
	// No types: a value is what it is, as in SQLite's own tables.
	if _, err := to.ExecContext(ctx, "CREATE TABLE "+target+` ("`+strings.Join(columns, `", "`)+`")`); err != nil {
		return err
	}
	insert, err := to.PrepareContext(ctx, "INSERT INTO "+target+" VALUES (?"+strings.Repeat(", ?", len(columns)-1)+")")
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }() // the transaction's end closes it too
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, v := range values {
			values[i] = asSQLite(holdsBytes(table, columns[i]), v)
		}
		if _, err := insert.ExecContext(ctx, values...); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return o.copyLastID(ctx, from, to, table)
}

// asSQLite is the value as SQLite's own table would have it.
func asSQLite(bytes bool, v any) any {
	switch v := v.(type) {
	case []byte:
		if !bytes {
			return string(v)
		}
	case string:
		if bytes {
			return []byte(v)
		}
	case bool:
		if v {
			return int64(1)
		}
		return int64(0)
	}
	return v
}

// copyLastID notes the highest id that the table's counter has given: a table that is empty may have been emptied.
func (o *original) copyLastID(ctx context.Context, from, to *sql.Tx, table string) error {
	query := "SELECT auto_increment - 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"
	if o.Postgres {
		query = "SELECT last_value FROM pg_sequences WHERE schemaname = $1 AND sequencename = $2 || '_id_seq'"
	}
	if !o.Postgres {
		// MySQL keeps the counter in a cache for a day; MariaDB has no such cache and no such variable.
		_, _ = from.ExecContext(ctx, "SET SESSION information_schema_stats_expiry = 0")
	}
	var last sql.NullInt64
	err := from.QueryRowContext(ctx, query, o.Schema, table).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) || (err == nil && last.Int64 == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := to.ExecContext(ctx, `DELETE FROM "`+o.name+`".sqlite_sequence WHERE name = ?`, table); err != nil {
		return err
	}
	_, err = to.ExecContext(ctx, `INSERT INTO "`+o.name+`".sqlite_sequence (name, seq) VALUES (?, ?)`, table, last.Int64)
	return err
}
