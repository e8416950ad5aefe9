package main

import (
	"errors"
	"fmt"
	"strings"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// refusedLater says what a person can do when the database refuses a new connection of a process that runs, by the setting that its address,
// text, is in. The server's refusal itself is explained by the store.
func (a address) refusedLater(setting, text string) func(err error) string {
	if setting == "" {
		return nil
	}
	return func(err error) string {
		shown := fmt.Sprintf("%s (%s)", setting, redacted(text))
		if what := a.refused(err); what != "" { // a certificate
			return "it is about " + shown + ": " + what
		}
		switch accessRefused(err) {
		case refusesLogin:
			return fmt.Sprintf("it is about %s, and it was let in before: if the user or the password was changed, write the new one into %s and start "+
				"again, or change it back; nothing is lost meanwhile", shown, setting)
		case refusesUse:
			return "it is about " + shown
		}
		return ""
	}
}

const (
	refusesLogin = iota + 1 // the account
	refusesUse              // what it wants there
)

// accessRefused tells what the server's answer to a new connection refuses, 0 when it refuses nothing for good.
func accessRefused(err error) int {
	var postgres *pgconn.PgError
	var mysql *driver.MySQLError
	switch {
	case errors.As(err, &postgres) && strings.HasPrefix(postgres.Code, "28"): // invalid authorization specification
		return refusesLogin
	case errors.As(err, &postgres) && (postgres.Code == "3D000" || postgres.Code == "42501"): // no such database, no right to connect
		return refusesUse
	case !errors.As(err, &mysql):
		return 0
	}
	switch mysql.Number {
	case 1045, 1698, 1130, 1820, 1862, 3118, 4151: // denied, without a password too; the host; expired; locked, on MariaDB too
		return refusesLogin
	case 1044, 1049, 3159: // no right to the database, none of that name, TLS only
		return refusesUse
	}
	return 0
}
