package trade

import (
	"context"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Migrations is the goose set "trade": the tables that every service has, whatever it does. The files lie at its root.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Parsed once per dialect and never changed.
var (
	sqliteQueries   = sync.OnceValues(func() (sqltext.Set, error) { return sqltext.Load(queryFile, "queries.sql", sqltext.SQLite) })
	postgresQueries = sync.OnceValues(func() (sqltext.Set, error) { return sqltext.Load(queryFile, "queries.sql", sqltext.Postgres) })
	mysqlQueries    = sync.OnceValues(func() (sqltext.Set, error) { return sqltext.Load(queryFile, "queries.sql", sqltext.MySQL) })
)

func queriesFor(d sqltext.Dialect) (sqltext.Set, error) {
	switch d {
	case sqltext.SQLite:
		return sqliteQueries()
	case sqltext.Postgres:
		return postgresQueries()
	case sqltext.MySQL:
		return mysqlQueries()
	}
	return nil, fmt.Errorf("dialect %d has no statements", d)
}

// Effect is one business effect as a row: something that happened to an order exactly once. A compensation is another
// effect that names the one it reverses; of one effect there is at most one compensation.
type Effect struct {
	Key      convergo.Key // identity, unique in the service's database, for example "ORDER_POINT:O-1"
	OrderNo  string
	Kind     string       // for example "points.grant"; at most 64 bytes
	Reverses convergo.Key // the effect that this one undoes; empty for none
	Cause    convergo.Key // the event, request or transaction that led to it
	Detail   string       // JSON or a short text; at most 2,000 bytes
	At       time.Time
}

// RecordEffect writes e in tx. fresh is false, and nothing is written, when an effect with e.Key, or another
// compensation of e.Reverses, is there already: the caller then changes nothing either. Durable when tx commits. The
// transaction stays usable.
func RecordEffect(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, e Effect) (fresh bool, err error) {
	set, err := queriesFor(d)
	if err != nil {
		return false, err
	}
	if err := e.Key.Validate(); err != nil {
		return false, convergo.Permanent(fmt.Errorf("effect key %q: %w", shorten(string(e.Key)), err))
	}
	if len(e.Kind) > 64 || len(e.Detail) > 2000 {
		return false, convergo.Permanent(fmt.Errorf("effect %s: kind or detail too long: %w", e.Key, convergo.ErrInvalid))
	}
	var reverses any // NULL for none: NULLs are not equal in a unique index
	if e.Reverses != "" {
		reverses = hexDigest(e.Reverses)
	}
	res, err := tx.ExecContext(ctx, set.Get("InsertEffect"), hexDigest(e.Key), string(e.Key), e.OrderNo, e.Kind,
		string(e.Reverses), reverses, string(e.Cause), e.Detail, convergo.Micros(e.At))
	if err != nil {
		return false, fmt.Errorf("record effect %s: %w", e.Key, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("record effect %s: %w", e.Key, err)
	}
	return n == 1, nil
}

// FindEffect returns the effect with the key, or nil.
func FindEffect(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, key convergo.Key) (*Effect, error) {
	found, err := effects(ctx, tx, d, "FindEffect", hexDigest(key))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// CompensationOf returns the effect that reverses key, or nil.
func CompensationOf(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, key convergo.Key) (*Effect, error) {
	found, err := effects(ctx, tx, d, "FindCompensation", hexDigest(key))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// EffectsOf returns the order's effects in this database, oldest first.
func EffectsOf(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, orderNo string) ([]Effect, error) {
	return effects(ctx, tx, d, "EffectsOfOrder", orderNo)
}

func effects(ctx context.Context, tx convergo.Tx, d sqltext.Dialect, statement, arg string) (found []Effect, err error) {
	set, err := queriesFor(d)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, set.Get(statement), arg)
	if err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var e Effect
		var at int64
		if err := rows.Scan(&e.Key, &e.OrderNo, &e.Kind, &e.Reverses, &e.Cause, &e.Detail, &at); err != nil {
			return nil, fmt.Errorf("read effects: %w", err)
		}
		e.At = convergo.FromMicros(at)
		found = append(found, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read effects: %w", err)
	}
	return found, nil
}

// hexDigest is how a digest is kept where one SQL text has to fit three databases: 64 lower-case hexadecimal characters.
func hexDigest(k convergo.Key) string {
	d := k.Digest()
	return hex.EncodeToString(d[:])
}
