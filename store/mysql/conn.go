package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// After a deadlock InnoDB has rolled back the whole transaction, and the connection commits statement by statement; after a wait
// for a lock that was too long it has rolled back one statement and the rest stands. A function that goes on after such an
// error, which it may never have looked at, would commit halves. So every error is seen here, below database/sql, also that of a
// row; from then on the transaction takes no statement but its rollback.

// openPool opens connections that watch their transactions.
func openPool(cfg *mysql.Config, opts Options, c *counts, failed func(error) error) (*sql.DB, error) {
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errDSN
	}
	db := sql.OpenDB(connector{inner, c, cfg.Timeout, opts.CommitTimeout, failed})
	db.SetMaxOpenConns(opts.MaxConns)
	db.SetMaxIdleConns(opts.MaxConns)
	return db, nil
}

// errNoAnswer: a server that holds the connection and says nothing, as one does whose process is stopped.
var errNoAnswer = errors.New("the server does not answer")

type connector struct {
	driver.Connector
	counts          *counts
	connect, commit time.Duration     // how long an answer is waited for
	failed          func(error) error // what is told of a connection that cannot be made; may be nil
}

// Connect implements driver.Connector. The driver bounds the dialing alone: a stopped server's system still takes the connection.
func (c connector) Connect(parent context.Context) (_ driver.Conn, err error) {
	ctx, cancel := context.WithTimeout(parent, c.connect)
	defer cancel()
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil && parent.Err() == nil {
			err = fmt.Errorf("connect within %v: %w: %w", c.connect, errNoAnswer, err)
		}
		if c.failed != nil {
			err = c.failed(err)
		}
		return nil, err
	}
	whole, ok := inner.(wholeConn)
	if !ok {
		_ = inner.Close()
		return nil, fmt.Errorf("the MySQL driver's connection %T lacks a method that is needed; use the version in go.mod", inner)
	}
	// Once for the connection, and not with each transaction: that is a round trip. Of our own connections only.
	if _, err := whole.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil); err != nil {
		_ = inner.Close()
		return nil, err
	}
	return &watchedConn{wholeConn: whole, counts: c.counts, commit: c.commit}, nil
}

// wholeConn is what the driver's connections can do.
type wholeConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type wholeStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
}

// wholeRows is what the driver's rows can do; a wrapper that hid some of it would change what Rows.ColumnTypes says.
type wholeRows interface {
	driver.Rows
	driver.RowsNextResultSet
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// fate is what became of one transaction.
type fate struct {
	end atomic.Pointer[end]
}

// end is why a transaction is over before its commit.
type end struct {
	cause error
	again bool // the database wants it to be repeated
}

func (f *fate) ended() error {
	if e := f.end.Load(); e != nil {
		return fmt.Errorf("%w: %w", ErrAborted, e.cause)
	}
	return nil
}

// fateKey is the context key of a *fate that is to follow the transaction that begins.
type fateKey struct{}

// watchedConn is used by one goroutine at a time, as database/sql does.
type watchedConn struct {
	wholeConn
	counts *counts
	commit time.Duration
	fate   *fate // of the open transaction, or nil
}

// seen looks at an error of a statement.
func (c *watchedConn) seen(err error) error {
	if err == nil || errors.Is(err, driver.ErrSkip) || errors.Is(err, io.EOF) {
		return err
	}
	number := numberOf(err)
	switch number {
	case numberDeadlock:
		c.counts.deadlocks.Add(1)
	case numberLockWait:
		c.counts.waits.Add(1)
	}
	again := number == numberDeadlock || number == numberLockWait
	if c.fate != nil && (again || unreachable(err)) {
		c.fate.end.CompareAndSwap(nil, &end{cause: err, again: again})
	}
	return err
}

// usable tells why the open transaction takes no statement.
func (c *watchedConn) usable() error {
	c.counts.statements.Add(1)
	if c.fate != nil {
		return c.fate.ended()
	}
	return nil
}

// ExecContext implements driver.ExecerContext.
func (c *watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	result, err := c.wholeConn.ExecContext(ctx, query, args)
	return result, c.seen(err)
}

// QueryContext implements driver.QueryerContext.
func (c *watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	rows, err := c.wholeConn.QueryContext(ctx, query, args)
	return c.watch(rows, err)
}

func (c *watchedConn) watch(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, c.seen(err)
	}
	whole, ok := rows.(wholeRows)
	if !ok {
		_ = rows.Close()
		return nil, fmt.Errorf("the MySQL driver's rows %T lack a method that is needed; use the version in go.mod", rows)
	}
	return &watchedRows{whole, c}, nil
}

// PrepareContext implements driver.ConnPrepareContext. The driver asks for it when a statement with its values is too long.
func (c *watchedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	inner, err := c.wholeConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, c.seen(err)
	}
	whole, ok := inner.(wholeStmt)
	if !ok {
		_ = inner.Close()
		return nil, fmt.Errorf("the MySQL driver's statement %T lacks a method that is needed; use the version in go.mod", inner)
	}
	return &watchedStmt{whole, c}, nil
}

// BeginTx implements driver.ConnBeginTx.
func (c *watchedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.counts.statements.Add(1)
	if opts.Isolation == driver.IsolationLevel(sql.LevelReadCommitted) {
		opts.Isolation = driver.IsolationLevel(sql.LevelDefault) // the session's, see Connect
	}
	_, err := c.wholeConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	f, ok := ctx.Value(fateKey{}).(*fate)
	if !ok {
		f = &fate{}
	}
	c.fate = f
	return &watchedTx{c}, nil
}

type watchedTx struct{ conn *watchedConn }

// rollbackTimeout bounds the wait for an answer to ROLLBACK. A connection that is closed meanwhile is rolled back by the server.
const rollbackTimeout = 10 * time.Second

// end sends the statement that ends the transaction. database/sql gives no context for it, so that one whose caller has
// gone is ended too; the bound is ours, and the driver closes the connection at it.
func (t *watchedTx) end(statement string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := t.conn.wholeConn.ExecContext(ctx, statement, nil)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%s within %v: %w: %w", statement, within, errNoAnswer, err)
	}
	return err
}

// Commit implements driver.Tx.
func (t *watchedTx) Commit() error {
	c := t.conn
	if err := c.usable(); err != nil {
		_ = t.Rollback()
		return err
	}
	err := c.seen(t.end("COMMIT", c.commit)) // a cluster answers with a deadlock here when another node was first
	c.fate = nil
	if err == nil {
		c.counts.commits.Add(1)
	}
	return err
}

// Rollback implements driver.Tx.
func (t *watchedTx) Rollback() error {
	t.conn.counts.statements.Add(1)
	t.conn.fate = nil
	return t.end("ROLLBACK", min(rollbackTimeout, t.conn.commit))
}

type watchedRows struct {
	wholeRows
	conn *watchedConn
}

// Next implements driver.Rows.
func (r *watchedRows) Next(dest []driver.Value) error { return r.conn.seen(r.wholeRows.Next(dest)) }

type watchedStmt struct {
	wholeStmt
	conn *watchedConn
}

// ExecContext implements driver.StmtExecContext.
func (s *watchedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.usable(); err != nil {
		return nil, err
	}
	result, err := s.wholeStmt.ExecContext(ctx, args)
	return result, s.conn.seen(err)
}

// QueryContext implements driver.StmtQueryContext.
func (s *watchedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.usable(); err != nil {
		return nil, err
	}
	rows, err := s.wholeStmt.QueryContext(ctx, args)
	return s.conn.watch(rows, err)
}

// unreachable tells whether err says that the server is gone, or takes no writes now.
func unreachable(err error) bool {
	for _, gone := range []error{driver.ErrBadConn, mysql.ErrInvalidConn, io.ErrUnexpectedEOF, errNoAnswer} {
		if errors.Is(err, gone) {
			return true
		}
	}
	var network interface{ Timeout() bool } // net.Error
	if errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch numberOf(err) {
	case numberShutdown, numberReadOnly, numberReadOnly2:
		return true
	}
	return false
}
