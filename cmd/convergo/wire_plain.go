package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
)

// plain is a database for plain SQL, without a store on it.
type plain struct {
	*sql.DB
	source check.Source
}

// openPlain opens the database at the address. For SQLite it opens nothing and says which file it is.
func openPlain(text string) (p plain, file string, err error) {
	source, ok, err := sourceOf(text)
	if err != nil || !ok {
		return p, strings.TrimPrefix(text, "sqlite:"), err
	}
	db, err := sql.Open(source.Driver, source.DSN)
	return plain{db, source}, "", err
}

// databaseFacts are what can be seen of a database from outside.
type databaseFacts struct {
	version   string
	now       time.Time // by its clock
	mayCreate bool      // tables, in the schema
	migrated  bool      // the engine's tables are there
}

func (p plain) facts(ctx context.Context) (f databaseFacts, err error) {
	query := `SELECT CONCAT('MySQL ', VERSION()), CAST(1000000 * UNIX_TIMESTAMP(SYSDATE(6)) AS SIGNED), TRUE,
		EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = 'outbox_event')`
	if p.source.Driver == "pgx" {
		query = `SELECT 'PostgreSQL ' || current_setting('server_version'), CAST(1000000 * extract(epoch FROM clock_timestamp()) AS bigint),
			CASE WHEN to_regnamespace($1) IS NULL THEN has_database_privilege(current_database(), 'CREATE') ELSE has_schema_privilege($1, 'CREATE') END,
			EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'outbox_event')`
	}
	var now int64
	if err := p.QueryRowContext(ctx, query, p.source.Schema).Scan(&f.version, &now, &f.mayCreate, &f.migrated); err != nil {
		return f, err
	}
	f.now = time.UnixMicro(now)
	return f, nil
}

// sourceOf is the database at the address for programs that speak plain SQL; ok is false for SQLite, which is a file.
func sourceOf(text string) (source check.Source, ok bool, err error) {
	a, err := parseAddress(text)
	if err != nil {
		return source, false, err
	}
	switch a.Scheme {
	case "postgres":
		dsn, schema := postgresDSN(a)
		return check.Source{Driver: "pgx", DSN: dsn, Schema: schema}, true, nil
	case "mysql":
		cfg, err := mysqlConfig(a)
		if err != nil {
			return source, false, err
		}
		return check.Source{Driver: "mysql", DSN: cfg.FormatDSN(), Schema: cfg.DBName}, true, nil
	}
	return source, false, nil
}

// postgresDSN is the address for the driver, and the schema that it names.
func postgresDSN(a address) (dsn, schema string) {
	query := a.Query()
	schema = query.Get("schema")
	query.Del("schema")
	u := a.URL
	u.Host, u.RawQuery = strings.Join(a.hosts, ","), query.Encode()
	if schema == "" {
		schema = "public"
	}
	return u.String(), schema
}

// mysqlConfig is the address for the driver: mysql://USER:PASSWORD@HOST:PORT/DATABASE, or ?socket=PATH instead of a host.
func mysqlConfig(a address) (*driver.Config, error) {
	q, err := queryOf(a)
	if err != nil {
		return nil, err
	}
	cfg := driver.NewConfig()
	cfg.User, cfg.Passwd = a.account()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", a.host("3306"), strings.TrimPrefix(a.Path, "/")
	if socket := q.text("socket"); socket != "" {
		cfg.Net, cfg.Addr = "unix", socket
	}
	cfg.TLS = q.tls()
	if cfg.DBName == "" {
		return nil, errors.New("the address names no database: mysql://USER:PASSWORD@HOST/DATABASE")
	}
	return cfg, q.end()
}

// openChecker opens the databases of all services for the checker; those that are files are in dir.
func openChecker(ctx context.Context, b backends, dir, world string) (*check.Checker, error) {
	sources := map[string]check.Source{}
	for _, name := range serviceNames() {
		text := b.databaseURL(dir, name)
		source, ok, err := sourceOf(text)
		if err != nil {
			return nil, fmt.Errorf("database of %s: %w", name, err)
		}
		if ok {
			sources[name] = source
		}
	}
	return check.OpenSources(ctx, dir, world, sources)
}

// poison slips an event that no handler can read into the outbox at the address.
func poison(ctx context.Context, text string, n int) (err error) {
	source, ok, err := sourceOf(text)
	if err != nil {
		return err
	}
	table := source.Schema + ".outbox_event"
	if !ok {
		uri := url.URL{Scheme: "file", Opaque: url.PathEscape(strings.TrimPrefix(text, "sqlite:")), RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
		source, table = check.Source{Driver: "sqlite", DSN: uri.String()}, "outbox_event"
	}
	db, err := sql.Open(source.Driver, source.DSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return drill.Poison(ctx, db, table, source.Driver == "pgx", n, time.Now())
}
