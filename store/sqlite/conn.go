package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	driverlib "modernc.org/sqlite"
)

// connector opens the driver's connections and gives each a cache of prepared statements. The cache lies below
// database/sql because only there the end of a statement's rows is known: a *sql.Stmt of our own would be run again
// while a caller still reads its rows.
type connector struct {
	driver.Connector
	opened func(driverlib.HookRegisterer) // nil, or called with each new connection
	ran    *atomic.Int64                  // counts the statements of all connections
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	whole, ok := inner.(wholeConn)
	if !ok {
		_ = inner.Close()
		return nil, fmt.Errorf("the SQLite driver's connection %T lacks a method that is needed; use the version in go.mod", inner)
	}
	if c.opened != nil {
		c.opened(whole)
	}
	return &cachingConn{wholeConn: whole, kept: make(map[string]*keptStmt, 64), ran: c.ran}, nil
}

// wholeConn is what the driver's connections can do, as far as it is used here.
type wholeConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driverlib.HookRegisterer
	driverlib.DBStatus
}

type wholeStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// wholeRows is what the driver's rows can do; a wrapper that hid some of it would change what Rows.ColumnTypes says.
type wholeRows interface {
	driver.Rows
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeLength
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// keptStatements bounds the cache of one connection. A program has some dozens of statements.
const keptStatements = 256

// cachingConn is a connection that keeps its statements prepared. Used by one goroutine at a time, as database/sql does.
type cachingConn struct {
	wholeConn
	kept map[string]*keptStmt
	args []driver.NamedValue // used again by exec and each
	ran  *atomic.Int64
}

type keptStmt struct {
	stmt wholeStmt
	busy bool // it runs, or its rows are being read
	keep bool
}

// take returns a prepared statement that nobody uses. While one is busy, the same text gets another, used once.
func (c *cachingConn) take(ctx context.Context, query string) (*keptStmt, error) {
	c.ran.Add(1)
	if k := c.kept[query]; k != nil && !k.busy {
		k.busy = true
		return k, nil
	}
	prepared, err := c.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	stmt, ok := prepared.(wholeStmt)
	if !ok {
		_ = prepared.Close()
		return nil, fmt.Errorf("the SQLite driver's statement %T lacks a method that is needed; use the version in go.mod", prepared)
	}
	k := &keptStmt{stmt: stmt, busy: true}
	if c.kept[query] == nil && worthKeeping(query) && c.room() {
		k.keep = true
		c.kept[query] = k
	}
	return k, nil
}

// worthKeeping: a PRAGMA may act while it is prepared, so it is prepared anew each time.
func worthKeeping(query string) bool {
	if query == "" {
		return false
	}
	switch query[0] | 0x20 {
	case 's', 'i', 'u', 'd', 'w', 'b', 'c', 'r':
		return true
	}
	return false
}

// room makes room for one more statement; false when all are busy.
func (c *cachingConn) room() bool {
	if len(c.kept) < keptStatements {
		return true
	}
	for query, k := range c.kept {
		if !k.busy {
			delete(c.kept, query)
			_ = k.stmt.Close()
			return true
		}
	}
	return false
}

func (c *cachingConn) give(k *keptStmt) error {
	k.busy = false
	if k.keep {
		return nil
	}
	return k.stmt.Close()
}

// ExecContext implements driver.ExecerContext.
func (c *cachingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	k, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	result, err := k.stmt.ExecContext(ctx, args)
	if closing := c.give(k); err == nil {
		err = closing
	}
	return result, err
}

// QueryContext implements driver.QueryerContext.
func (c *cachingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	k, err := c.take(ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := k.stmt.QueryContext(ctx, args)
	if err != nil {
		_ = c.give(k)
		return nil, err
	}
	whole, ok := rows.(wholeRows)
	if !ok {
		_ = rows.Close()
		_ = c.give(k)
		return nil, fmt.Errorf("the SQLite driver's rows %T lack a method that is needed; use the version in go.mod", rows)
	}
	return &keptRows{wholeRows: whole, conn: c, stmt: k}, nil
}

// Close implements driver.Conn.
func (c *cachingConn) Close() error {
	for _, k := range c.kept {
		_ = k.stmt.Close()
	}
	c.kept = nil
	return c.wholeConn.Close()
}

// keptRows gives its statement back when it is closed.
type keptRows struct {
	wholeRows
	conn *cachingConn
	stmt *keptStmt
}

// Close implements driver.Rows.
func (r *keptRows) Close() error {
	err := r.wholeRows.Close()
	if r.stmt != nil {
		if closing := r.conn.give(r.stmt); err == nil {
			err = closing
		}
		r.stmt = nil
	}
	return err
}
