package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/convergo/convergo"
)

// Codes of refusals: asked again, the server says the same.
const (
	codePassword   = "28P01"
	codeLogin      = "28000" // pg_hba.conf, an unknown role
	codeNoDatabase = "3D000"
	codeNoSchema   = "3F000"
	codePrivilege  = "42501"
	codeReadOnly   = "25006"
	codeSyntax     = "42601"
)

// errStandby: nothing can be written here until somebody promotes the server.
var errStandby = errors.New("the server is a standby, which takes no writes: name the primary, or all hosts with " +
	"target_session_attrs=read-write, or open the store for reading only")

// codeOf is the server's code of an error, "" for one that is not the server's.
func codeOf(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// final tells whether err stays the same until a person changes something.
func final(err error) bool {
	switch codeOf(err) {
	case codePassword, codeLogin, codeNoDatabase, codeNoSchema, codePrivilege, codeSyntax:
		return true
	}
	return errors.Is(err, ErrTooOld) || errors.Is(err, ErrNewer) || refusesTLS(err)
}

// refusesTLS: pgx has no error of its own for it.
func refusesTLS(err error) bool {
	return strings.Contains(err.Error(), "server refused TLS connection")
}

// refused is an error of Open or Migrate with its verdict and with what a person can do.
func (s *Store) refused(ctx context.Context, err error) error {
	what := remedy(err)
	if code := codeOf(err); code == codePrivilege || code == codeNoSchema {
		what = s.missingGrant(ctx)
	}
	if what != "" && !errors.As(err, new(unconnectedError)) {
		err = fmt.Errorf("%s: %w", what, err)
	}
	if final(err) {
		return convergo.Permanent(err)
	}
	return err
}

// remedy is what a person can do about an error, as far as the server need not be asked for it.
func remedy(err error) string {
	switch codeOf(err) {
	case codePassword:
		return "the role or its password is wrong"
	case codeLogin:
		return "the server lets this role not in from here: see its pg_hba.conf, whose lines can ask for TLS (sslmode) or " +
			"a client certificate (sslcert and sslkey), and whether the role exists and may log in"
	case codeNoDatabase:
		return "create the database first"
	case codeReadOnly:
		return "the server takes no writes now: is it a standby, or default_transaction_read_only set?"
	case codeSyntax:
		return "the statement must be changed"
	}
	if refusesTLS(err) {
		return "the DSN asks for TLS and the server offers none: set ssl=on there, or another sslmode here"
	}
	return ""
}

// unconnectedError is that of a connection of the pool which could not be made. It says already what can be done.
type unconnectedError struct{ error }

func (e unconnectedError) Unwrap() error { return e.error }

// unconnected is why a connection of the pool could not be made, with what Open would say of it: the server let us in before.
func (s *Store) unconnected(err error) error {
	what := remedy(err)
	if s.opts.Refused != nil {
		if more := s.opts.Refused(err); more != "" && what != "" {
			what += "; " + more
		} else {
			what += more
		}
	}
	if what == "" {
		return err
	}
	return unconnectedError{fmt.Errorf("%s: %w", what, err)}
}

// missingGrant names what the role may not do, as the statement that would let it.
func (s *Store) missingGrant(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const unknown = "the role lacks a privilege"
	conn, err := pgx.ConnectConfig(ctx, s.cfg.Copy())
	if err != nil {
		return unknown
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var (
		role, database, schema            string
		there, makeSchemas, using, making bool
	)
	// A role that may not use the one schema of its search_path has no current one.
	err = conn.QueryRow(ctx, `WITH s AS (SELECT coalesce(nullif($1, ''), current_schema(), 'public') AS name)
		SELECT current_user, current_database(), s.name, n.oid IS NOT NULL, has_database_privilege(current_database(), 'CREATE'),
		coalesce(has_schema_privilege(n.oid, 'USAGE'), false), coalesce(has_schema_privilege(n.oid, 'CREATE'), false)
		FROM s LEFT JOIN pg_namespace AS n ON n.nspname = s.name`, pgx.QueryExecModeExec, s.opts.Schema,
	).Scan(&role, &database, &schema, &there, &makeSchemas, &using, &making)
	if err != nil {
		return unknown
	}
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	switch {
	case !there && !makeSchemas:
		return fmt.Sprintf("role %s may make no schema here: GRANT CREATE ON DATABASE %s TO %s, or CREATE SCHEMA %s AUTHORIZATION %s",
			role, quoted(database), quoted(role), quoted(schema), quoted(role))
	case there && (!using || !making):
		return fmt.Sprintf("role %s may make no tables in schema %s: GRANT USAGE, CREATE ON SCHEMA %s TO %s",
			role, schema, quoted(schema), quoted(role))
	default:
		return fmt.Sprintf("the tables in schema %s are another role's: have that one migrate, and GRANT SELECT, INSERT, UPDATE, DELETE ON "+
			"ALL TABLES IN SCHEMA %s TO %s; GRANT USAGE ON ALL SEQUENCES IN SCHEMA %s TO %s",
			schema, quoted(schema), quoted(role), quoted(schema), quoted(role))
	}
}
