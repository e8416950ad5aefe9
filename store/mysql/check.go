package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// setting is one of the server's variables, and under which values something can be lost.
type setting struct {
	name  string
	fine  func(value string, all map[string]string) bool
	want  string
	loses string
}

func is(wanted ...string) func(string, map[string]string) bool {
	return func(value string, _ map[string]string) bool {
		for _, w := range wanted {
			if strings.EqualFold(value, w) {
				return true
			}
		}
		return false
	}
}

func on(value string) bool { return value == "1" || strings.EqualFold(value, "ON") }

// packetLeast holds the largest event, every byte of it escaped, in one statement.
const packetLeast = 2*(convergo.MaxPayloadBytes+convergo.MaxHeaderBytes) + 1<<20

// settings: a variable that the server does not have is not looked at.
func settings() []setting {
	return []setting{
		{"innodb_flush_log_at_trx_commit", is("1", "3"), "1",
			"a crash of the machine, with 0 one of the server too, loses commits of the last second that were confirmed"},
		{"sync_binlog", func(v string, all map[string]string) bool { return v == "1" || !on(all["log_bin"]) }, "1",
			"a crash of the machine loses the newest part of the binary log: replicas and change readers never see those commits"},
		// MySQL knows more values than on and off; MariaDB from 11.0.6 on too.
		{"innodb_doublewrite", is("1", "ON", "DETECT_AND_RECOVER", "FAST"), "ON",
			"a crash in the middle of writing a page leaves a page that nothing can repair"},
		{"sql_mode", func(v string, _ map[string]string) bool { return strings.Contains(strings.ToUpper(v), "STRICT_") },
			"STRICT_ALL_TABLES",
			"another program's values that do not fit are cut, without an error; this store's own connections are strict all the same"},
		{"binlog_format", func(v string, all map[string]string) bool {
			return !on(all["log_bin"]) || !strings.EqualFold(v, "STATEMENT")
		}, "ROW",
			"READ COMMITTED does not work with it: every write is refused"},
		{"autocommit", is("1", "ON"), "1", "another program's writes are not committed when it believes them to be"},
		{"max_allowed_packet", func(v string, _ map[string]string) bool {
			n, err := strconv.ParseInt(v, 10, 64)
			return err != nil || n >= packetLeast
		}, strconv.Itoa(packetLeast), "an event of the largest size that is allowed cannot be written"},
		{"default_storage_engine", is("InnoDB"), "InnoDB", "a table made without naming an engine has no transactions"},
	}
}

// Check looks for settings of the server under which something that was committed can be lost or an event be refused, and at
// the collations of the database's columns. It changes nothing.
func (s *Store) Check(ctx context.Context) ([]relay.Warning, error) {
	var found []relay.Warning
	wanted := settings()
	names := make([]string, len(wanted))
	for i, w := range wanted {
		names[i] = "'" + w.name + "'"
	}
	values := map[string]string{}
	_, err := list(ctx, s.db, func(rows *sql.Rows) (none struct{}, err error) {
		var name, value string
		err = rows.Scan(&name, &value)
		values[strings.ToLower(name)] = value
		return none, err
	}, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin',"+strings.Join(names, ",")+")")
	if err != nil {
		return nil, s.fail("check", err)
	}
	for _, w := range wanted {
		if value, has := values[w.name]; has && !w.fine(value, values) {
			found = append(found, relay.Warning{Setting: w.name, Value: orEmpty(value), Want: w.want, Loses: w.loses})
		}
	}
	columns, err := s.looseColumns(ctx)
	if err != nil {
		return nil, s.fail("check", err)
	}
	found = append(found, columns...)
	engines, err := s.otherEngines(ctx)
	if err != nil {
		return nil, s.fail("check", err)
	}
	return append(found, engines...), nil
}

func orEmpty(value string) string {
	if value == "" {
		return "empty"
	}
	return value
}

// looseColumns are texts that are compared by something else than their bytes.
func (s *Store) looseColumns(ctx context.Context) ([]relay.Warning, error) {
	return list(ctx, s.db, func(rows *sql.Rows) (w relay.Warning, err error) {
		var table, column string
		w.Want = s.server.collation()
		w.Loses = "two different texts, such as keys that differ in case, in an accent or in an emoji, count as one: " +
			"the second is taken for a duplicate"
		err = rows.Scan(&table, &column, &w.Value)
		w.Setting = fmt.Sprintf("collation of %s.%s", table, column)
		return w, err
	}, `SELECT table_name, column_name, collation_name FROM information_schema.columns
 WHERE table_schema = DATABASE() AND collation_name IS NOT NULL AND collation_name NOT LIKE '%bin' ORDER BY table_name, ordinal_position`)
}

func (s *Store) otherEngines(ctx context.Context) ([]relay.Warning, error) {
	return list(ctx, s.db, func(rows *sql.Rows) (w relay.Warning, err error) {
		var table string
		w.Want, w.Loses = "InnoDB", "its rows are not rolled back with a transaction, and may be lost in a crash"
		err = rows.Scan(&table, &w.Value)
		w.Setting = "engine of " + table
		return w, err
	}, `SELECT table_name, engine FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB' ORDER BY table_name`)
}
