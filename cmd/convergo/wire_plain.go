package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/convergo/convergo/drill"
	"github.com/convergo/convergo/drill/check"
)

// databaseFacts are what can be seen of a database from outside.
type databaseFacts struct {
	version   string
	now       time.Time // by its clock
	mayCreate bool      // tables, in the schema
	writable  bool      // the server takes writes
	migrated  bool      // the engine's tables are there
	grant     string    // what would let the account make tables; "" where that cannot be seen
}

func factsOf(ctx context.Context, source check.Source) (f databaseFacts, err error) {
	query := `SELECT CONCAT('MySQL ', VERSION()), CAST(1000000 * UNIX_TIMESTAMP(SYSDATE(6)) AS SIGNED), TRUE, CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'),
		EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = 'outbox_event'), ''`
	if source.Postgres {
		query = `SELECT 'PostgreSQL ' || current_setting('server_version'), CAST(1000000 * extract(epoch FROM clock_timestamp()) AS bigint),
			CASE WHEN to_regnamespace($1) IS NULL THEN has_database_privilege(current_database(), 'CREATE') ELSE has_schema_privilege($1, 'CREATE') END,
			NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off',
			EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'outbox_event'),
			CASE WHEN to_regnamespace($1) IS NULL THEN 'CREATE ON DATABASE ' || quote_ident(current_database()) ELSE 'USAGE, CREATE ON SCHEMA ' || quote_ident($1) END
			|| ' TO ' || quote_ident(current_user)`
	}
	var now int64
	if err := source.DB.QueryRowContext(ctx, query, source.Schema).Scan(&f.version, &now, &f.mayCreate, &f.writable, &f.migrated, &f.grant); err != nil {
		return f, err
	}
	f.now = time.UnixMicro(now)
	if !source.Postgres && !f.migrated {
		f.mayCreate, f.grant = mayCreate(ctx, source.DB, source.Schema)
	}
	return f, nil
}

// openSource opens the database at the address for plain SQL. For SQLite it opens nothing and says which file it is.
func openSource(text string) (source check.Source, file string, err error) {
	if path, ok := strings.CutPrefix(text, "sqlite:"); ok {
		return source, path, nil
	}
	a, err := parseAddress(text)
	if err != nil {
		return source, "", err
	}
	if a.Scheme == "postgres" {
		dsn, schema, _, err := postgresDSN(a)
		if err != nil {
			return source, "", err
		}
		if schema == "" {
			schema = "public"
		}
		db, err := sql.Open("pgx", dsn)
		return check.Source{DB: db, Postgres: true, Schema: schema}, "", err
	}
	cfg, _, err := mysqlConfig(a)
	if err != nil {
		return source, "", err
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return source, "", err
	}
	return check.Source{DB: sql.OpenDB(connector), Schema: cfg.DBName}, "", nil
}

// postgresDSN is the address for the driver, and what the address says that the driver does not understand: ?schema=, ?pool=.
func postgresDSN(a address) (dsn, schema string, pool int, err error) {
	q, err := queryOf(a)
	if err != nil {
		return "", "", 0, err
	}
	for _, name := range []string{"tls", "ca", "cert", "key", "server_name"} { // the driver would set them in the session
		if q.values.Has(name) {
			q.errs = append(q.errs, fmt.Errorf("?%s is not PostgreSQL's: write ?sslmode=verify-full&sslrootcert=FILE, and &sslcert=FILE&sslkey=FILE", name))
		}
	}
	schema, pool = q.text("schema"), q.count("pool")
	if err := errors.Join(q.errs...); err != nil {
		return "", "", 0, err
	}
	q.values.Del("schema")
	q.values.Del("pool")
	u := a.URL
	u.Host, u.RawQuery = strings.Join(a.hosts, ","), q.values.Encode()
	return u.String(), schema, pool, nil
}

// mysqlConfig is the address for the driver: mysql://USER:PASSWORD@HOST:PORT/DATABASE, or ?socket=PATH instead of a host; and ?pool=.
func mysqlConfig(a address) (cfg *driver.Config, pool int, err error) {
	q, err := queryOf(a)
	if err != nil {
		return nil, 0, err
	}
	cfg = driver.NewConfig()
	cfg.User, cfg.Passwd = a.account()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", a.host("3306"), strings.TrimPrefix(a.Path, "/")
	if socket := q.text("socket"); socket != "" {
		cfg.Net, cfg.Addr = "unix", socket
	}
	cfg.TLS, pool = q.tls(), q.count("pool")
	cfg.Logger = &driver.NopLogger{} // its errors come back from its calls
	if len(a.hosts) > 1 {
		return nil, 0, errors.New("the address names several hosts: one is the primary, which takes writes")
	}
	if cfg.DBName == "" {
		return nil, 0, errors.New("the address names no database: mysql://USER:PASSWORD@HOST/DATABASE")
	}
	return cfg, pool, q.end()
}

// isUsed tells whether an event was ever written to the database at the address.
func isUsed(ctx context.Context, text string) (used bool, err error) {
	source, file, err := openSource(text)
	if err != nil {
		return false, err
	}
	if file != "" {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0, nil
	}
	defer func() { err = errors.Join(err, source.DB.Close()) }()
	facts, err := factsOf(ctx, source)
	if err != nil || !facts.migrated {
		return false, err
	}
	err = source.DB.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+outboxOf(source)+")").Scan(&used)
	return used, err
}

// outboxOf is the outbox's table by its full name; "order" is a word of SQL.
func outboxOf(source check.Source) string {
	if source.Postgres {
		return `"` + strings.ReplaceAll(source.Schema, `"`, `""`) + `".outbox_event`
	}
	return "`" + strings.ReplaceAll(source.Schema, "`", "``") + "`.outbox_event"
}

// openChecker opens the databases of all services for the checker; those that are files are in dir.
func openChecker(ctx context.Context, b backends, dir, world string) (_ *check.Checker, err error) {
	sources := map[string]check.Source{}
	defer func() {
		for _, source := range sources {
			if err != nil {
				err = errors.Join(err, source.DB.Close())
			}
		}
	}()
	for _, name := range serviceNames() {
		source, file, err := openSource(b.databaseURL(dir, name))
		if err != nil {
			return nil, fmt.Errorf("database of %s: %w", name, err)
		}
		if file == "" {
			sources[name] = source
		}
	}
	return check.OpenSources(ctx, dir, world, sources)
}

// poison slips an event that no handler can read into the outbox at the address.
func poison(ctx context.Context, text string, n int) (err error) {
	source, file, err := openSource(text)
	if err != nil {
		return err
	}
	table := outboxOf(source)
	if file != "" {
		uri := url.URL{Scheme: "file", Opaque: url.PathEscape(file), RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
		if source.DB, err = sql.Open("sqlite", uri.String()); err != nil {
			return err
		}
		table = "outbox_event"
	}
	defer func() { err = errors.Join(err, source.DB.Close()) }()
	return drill.Poison(ctx, source.DB, table, source.Postgres, n, time.Now())
}
