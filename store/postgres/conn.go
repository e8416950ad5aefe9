package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// look connects once to find out who answers. A pooler gives another number for the server's process at the start than the
// process that then answers has: through one no statement may be prepared in a session, because the next transaction has another.
func (s *Store) look(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.cfg.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_backend_pid(), current_setting('server_version_num'), pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	row := results[0].Rows[0]
	if version := string(row[1]); len(version) < 6 || version < "120000" && len(version) == 6 {
		return fmt.Errorf("version %s: %w", version, ErrTooOld)
	}
	if string(row[2]) == "t" && !s.opts.ReadOnly {
		return errStandby
	}
	s.pooled = string(row[0]) != fmt.Sprint(conn.PgConn().PID())
	if s.pooled && s.cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		s.cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	s.mode = s.cfg.DefaultQueryExecMode
	return nil
}

// beginTexts are the ways to begin a transaction, each one message to the server. What they set ends with the transaction.
func (s *Store) beginTexts() {
	var set string
	if s.opts.Schema != "" {
		set += `; SET LOCAL search_path TO "` + s.opts.Schema + `"`
	}
	s.begin.migration = "BEGIN READ WRITE" + set // may take long, but never stands still
	idle := ""
	if s.opts.IdleInTransaction > 0 {
		idle = fmt.Sprintf("; SET LOCAL idle_in_transaction_session_timeout TO %d", max(s.opts.IdleInTransaction.Milliseconds(), 1))
	}
	set += idle
	s.begin.write = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" + set
	s.begin.view = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" + set
	s.begin.claim = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" + idle // the engine's statements name the schema
}

// openPool opens a pool of connections; begin, when given, is how its transactions begin that database/sql is asked for.
func (s *Store) openPool(size int, begin string) *sql.DB {
	inner := stdlib.GetConnector(*s.cfg, stdlib.OptionAfterConnect(func(_ context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[stateKey] = &connState{}
		s.floors.forget() // it may be another server that answers from now on
		return nil
	}))
	db := sql.OpenDB(connector{inner, s, begin})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	db.SetConnMaxLifetime(time.Hour)
	return db
}

type connector struct {
	driver.Connector
	store *Store
	begin string
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, c.store.unconnected(err)
	}
	return &connection{conn.(*stdlib.Conn), c.begin}, nil
}

// connection is pgx's, but for the way in which its transactions begin.
type connection struct {
	*stdlib.Conn
	begin string
}

func (c *connection) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if c.begin == "" {
		return c.Conn.BeginTx(ctx, opts)
	}
	if _, err := simple(ctx, c.Conn.Conn(), c.begin); err != nil {
		return nil, err
	}
	return plainTx{ctx, c.Conn.Conn()}, nil
}

type plainTx struct {
	ctx  context.Context
	conn *pgx.Conn
}

func (t plainTx) Commit() error { return commit(t.ctx, t.conn) }

func (t plainTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackTimeout)
	defer cancel()
	_, err := simple(ctx, t.conn, "ROLLBACK")
	return err
}

// simple sends a text in one message and returns the last command's tag.
func simple(ctx context.Context, conn *pgx.Conn, text string) (string, error) {
	results, err := conn.PgConn().Exec(ctx, text).ReadAll()
	if err != nil || len(results) == 0 {
		return "", err
	}
	return results[len(results)-1].CommandTag.String(), nil
}

// commit commits; a COMMIT that the server has turned into a ROLLBACK is an error.
func commit(ctx context.Context, conn *pgx.Conn) error {
	tag, err := simple(ctx, conn, "COMMIT")
	if err == nil && tag != "COMMIT" {
		if failed := stateOf(conn).failed; failed != nil {
			return fmt.Errorf("%w: %w", ErrRolledBack, failed)
		}
		return ErrRolledBack
	}
	return err
}

// connState is what we know of a connection's transaction.
type connState struct {
	failed error // the first statement that the server refused, also when its error was passed over
}

const stateKey = "convergo"

func stateOf(conn *pgx.Conn) *connState {
	if s, ok := conn.PgConn().CustomData()[stateKey].(*connState); ok {
		return s
	}
	return &connState{}
}

// tracer counts statements and remembers what the server refused.
type tracer struct{ statements *atomic.Int64 }

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	t.statements.Add(1)
	return ctx
}

func (t *tracer) TraceQueryEnd(_ context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	note(conn, data.Err)
}

func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	t.statements.Add(int64(data.Batch.Len()))
	return ctx
}

func (t *tracer) TraceBatchQuery(_ context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	note(conn, data.Err)
}

func (t *tracer) TraceBatchEnd(_ context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	note(conn, data.Err)
}

func note(conn *pgx.Conn, err error) {
	var refused *pgconn.PgError
	if err == nil || !errors.As(err, &refused) {
		return
	}
	if state := stateOf(conn); state.failed == nil {
		state.failed = err
	}
}

// Codes of errors (https://www.postgresql.org/docs/current/errcodes-appendix.html).
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeNotSupported  = "0A000"
)

// again tells whether the database asks to run the transaction again from its start.
func again(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case codeSerialization, codeDeadlock:
		return true
	case codeNotSupported: // a prepared statement whose tables were migrated since; pgx has forgotten it by now
		return e.Routine == "RevalidateCachedQuery"
	}
	return false
}

// lost tells whether the connection is gone, and not because of ctx.
func lost(ctx context.Context, conn *sql.Conn) bool {
	return ctx.Err() == nil && gone(conn)
}

func gone(conn *sql.Conn) bool {
	closed := true
	_ = conn.Raw(func(c any) error { closed = c.(*connection).Conn.Conn().IsClosed(); return nil })
	return closed
}

// session is a connection on which the store's own statements run, in a transaction or each in its own.
type session struct {
	store *Store
	conn  *sql.Conn
}

// raw runs fn with pgx's connection.
func (c session) raw(fn func(conn *pgx.Conn) error) error {
	return c.conn.Raw(func(inner any) error { return fn(inner.(*connection).Conn.Conn()) })
}

// prepared are statements that are run for each event or message and have one plan only. All others are planned each time, with
// the sizes that their tables then have: a plan made while a queue was empty would be a bad one for a backlog.
var prepared = map[string]bool{
	"InsertEvent": true, "InsertDelayed": true, "InsertMark": true, "FindMark": true, "RaiseVersion": true, "BlockedOf": true, "AddCall": true,
	"FinishCall": true, "FindRequest": true, "RecordRequest": true, "EnqueueMessage": true, "DeleteMessage": true, "BlockConsumerOnce": true,
	"JoinRelays": true, "RenewLanes": true, "NextDue": true,
}

// arguments puts the way of running in front, where pgx wants it.
func (s *Store) arguments(name string, args []any) []any {
	if s.mode == pgx.QueryExecModeCacheStatement && !prepared[name] {
		return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
	}
	return args
}

// exec runs a named statement and returns how many rows it affected.
func (c session) exec(ctx context.Context, name string, args ...any) (affected int64, err error) {
	err = c.raw(func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, c.store.sql.Get(name), c.store.arguments(name, args)...)
		affected = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return affected, nil
}

// each calls row with every row of a named query.
func (c session) each(ctx context.Context, name string, args []any, row func(rows pgx.Rows) error) error {
	err := c.raw(func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, c.store.sql.Get(name), c.store.arguments(name, args)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := row(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// one reads the first row of a named query; found is false when there is none.
func (c session) one(ctx context.Context, name string, args []any, dest ...any) (found bool, err error) {
	err = c.each(ctx, name, args, func(rows pgx.Rows) error {
		if found {
			return nil
		}
		found = true
		return rows.Scan(dest...)
	})
	return found, err
}
