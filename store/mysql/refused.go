package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3/database"

	"github.com/convergo/convergo"
)

// Numbers of refusals: asked again, the server says the same
// (https://dev.mysql.com/doc/mysql-errors/9.3/en/server-error-reference.html).
const (
	numberNoRight      = 1044 // ER_DBACCESS_DENIED_ERROR
	numberPassword     = 1045 // ER_ACCESS_DENIED_ERROR
	numberNoDB         = 1049 // ER_BAD_DB_ERROR
	numberSyntax       = 1064 // ER_PARSE_ERROR
	numberHost         = 1130 // ER_HOST_NOT_PRIVILEGED
	numberNoTable      = 1142 // ER_TABLEACCESS_DENIED_ERROR
	numberNoPower      = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
	numberNoSuper      = 1419 // ER_BINLOG_CREATE_ROUTINE_NEED_SUPER
	numberNewPassword  = 1820 // ER_MUST_CHANGE_PASSWORD
	numberNewPassword2 = 1862 // ER_MUST_CHANGE_PASSWORD_LOGIN
	numberLocked       = 3118 // ER_ACCOUNT_HAS_BEEN_LOCKED; MariaDB says 4151
	numberLocked2      = 4151
	numberWantsTLS     = 3159 // ER_SECURE_TRANSPORT_REQUIRED; MariaDB says 1045
)

// errStatements: with such a binary log InnoDB takes no write at READ COMMITTED.
var errStatements = errors.New("the server's binlog_format is STATEMENT, with which InnoDB refuses every write at READ COMMITTED: " +
	"set it to ROW or MIXED")

// final tells whether err stays the same until a person changes something.
func final(err error) bool {
	switch numberOf(err) {
	case numberNoRight, numberPassword, numberNoDB, numberSyntax, numberHost, numberNoTable, numberNoPower, numberNoSuper,
		numberNewPassword, numberNewPassword2, numberLocked, numberLocked2, numberWantsTLS:
		return true
	}
	for _, same := range []error{ErrUnsupported, ErrNewer, errStatements, mysql.ErrNoTLS, mysql.ErrUnknownPlugin, mysql.ErrOldProtocol} {
		if errors.Is(err, same) {
			return true
		}
	}
	return false
}

const grants = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER ON the database TO the user that the error names"

// remedy is what a person can do about an error of the server, "" for nothing that is known.
func remedy(err error) string {
	switch numberOf(err) {
	case numberNoSuper:
		return "the server lets only a privileged user create a trigger while it writes a binary log: " +
			"SET GLOBAL log_bin_trust_function_creators = ON, or open the store once as such a user"
	case numberNoDB:
		return "create the database first"
	case numberNoRight: // what a user without rights hears of any database, also of one that is not there
		return "the user lacks a privilege, or the database does not exist (then create it first): " + grants
	case numberNoTable, numberNoPower:
		return "the user lacks a privilege: " + grants
	case numberPassword:
		return "the user or its password is wrong, or the user is let in with TLS only, or with a client certificate (cert and key)"
	case numberHost:
		return "the server knows no user who may come from this host"
	case numberNewPassword, numberNewPassword2:
		return "the user's password has expired: set a new one"
	case numberLocked, numberLocked2:
		return "the user is locked: ALTER USER … ACCOUNT UNLOCK"
	case numberWantsTLS:
		return "the server takes connections with TLS only: add tls=true to the DSN"
	case numberReadOnly, numberReadOnly2:
		return "the server takes no writes (a replica?): name the primary, or open the store for reading only"
	}
	if errors.Is(err, mysql.ErrNoTLS) {
		return "the DSN asks for TLS and the server offers none: give it a certificate, or take tls out"
	}
	return ""
}

// explain adds what can be done about an error of the server.
func explain(err error) error {
	if r := remedy(err); r != "" {
		return fmt.Errorf("%s: %w", r, err)
	}
	return err
}

// unconnected is why a connection could not be made, with what Options.Refused adds; what the server's number means is added by explain.
func (s *Store) unconnected(err error) error {
	if s.opts.Refused == nil || !s.isOpen.Load() {
		return err
	}
	if what := s.opts.Refused(err); what != "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// refused gives an error of Open or Migrate its verdict: what stays the same is not asked again.
func refused(cause, err error) error {
	switch {
	case final(cause):
		return convergo.Permanent(err)
	case unreachable(cause):
		return convergo.Unreachable(err)
	}
	return err
}

// writable asks whether a transaction that writes could begin. A read-only server says no, but to a user who is above that.
func writable(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err = conn.ExecContext(ctx, "START TRANSACTION READ WRITE"); err == nil {
		_, err = conn.ExecContext(ctx, "ROLLBACK")
	}
	if err != nil {
		return err
	}
	settings := map[string]string{}
	_, err = list(ctx, conn, func(rows *sql.Rows) (none struct{}, err error) {
		var name, value string
		err = rows.Scan(&name, &value)
		settings[strings.ToLower(name)] = value
		return none, err
	}, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')")
	if err == nil && on(settings["log_bin"]) && strings.EqualFold(settings["binlog_format"], "STATEMENT") {
		err = errStatements
	}
	return err
}

// versions is goose's version table. goose tries for seconds to make it, whatever the error is: the first one is told.
type versions struct {
	database.StoreExtender
	failed func(error)
}

// CreateVersionTable implements database.Store.
func (v versions) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	err := v.StoreExtender.CreateVersionTable(ctx, db)
	if err != nil {
		v.failed(err)
	}
	return err
}
