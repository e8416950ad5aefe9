package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Errors about a DSN never quote it: what stands where, and so where the password is, is just what could not be told.
var (
	errDSN = errors.New("the DSN cannot be read (it is not shown, for it may hold a password): want " +
		"user:password@tcp(host:port)/database?name=value or mysql://user:password@host:port/database?name=value")
	errFoundRows = errors.New("clientFoundRows=true in the DSN makes a row that was found look like one that was changed: take it out")
	errMulti     = errors.New("multiStatements=true in the DSN lets one value become a second statement: take it out")
)

// configure reads a DSN and fits it to what the store relies on.
func configure(dsn string, opts Options) (*mysql.Config, error) {
	cfg, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	if cfg.ClientFoundRows {
		return nil, errFoundRows
	}
	if cfg.MultiStatements {
		return nil, errMulti
	}
	opts = opts.withDefaults(cfg.DBName)
	if opts.TLS != nil {
		cfg.TLS = opts.TLS.Clone()
		cfg.AllowFallbackToPlaintext = false
		if host, _, err := net.SplitHostPort(cfg.Addr); err == nil && cfg.TLS.ServerName == "" && !cfg.TLS.InsecureSkipVerify {
			cfg.TLS.ServerName = host
		}
	}
	// One round trip a statement. Values are escaped by the driver, which knows the session's mode; utf8mb4 is safe for that.
	cfg.InterpolateParams = true
	if err := cfg.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, err
	}
	cfg.ParseTime, cfg.Loc = true, time.UTC
	cfg.Logger = driverLog{opts.Log}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	// Of our own connections only. A value that does not fit is an error and never cut.
	cfg.Params["time_zone"] = "'+00:00'"
	cfg.Params["sql_mode"] = "'STRICT_ALL_TABLES,ONLY_FULL_GROUP_BY,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
	cfg.Params["innodb_lock_wait_timeout"] = strconv.Itoa(int(opts.LockWait / time.Second))
	return cfg, nil
}

func parse(dsn string) (*mysql.Config, error) {
	if _, rest, ok := strings.Cut(dsn, "://"); ok && strings.HasPrefix(dsn, "mysql://") || strings.HasPrefix(dsn, "mariadb://") {
		return parseURL(rest)
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errDSN
	}
	return cfg, nil
}

// parseURL reads what stands behind "mysql://". The parameters are the driver's; socket=/path replaces host and port.
func parseURL(rest string) (*mysql.Config, error) {
	u, err := url.Parse("mysql://" + rest)
	if err != nil {
		return nil, errDSN
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errDSN
	}
	network, address := "tcp", u.Host
	if socket := values.Get("socket"); socket != "" {
		network, address = "unix", socket
		values.Del("socket")
	}
	cfg, err := mysql.ParseDSN("/?" + values.Encode()) // the parameters alone
	if err != nil {
		return nil, errDSN
	}
	cfg.Net, cfg.Addr, cfg.DBName = network, address, strings.TrimPrefix(u.Path, "/")
	if network == "tcp" && u.Port() == "" {
		cfg.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	if cfg.TLS != nil && !cfg.TLS.InsecureSkipVerify {
		cfg.TLS.ServerName = u.Hostname() // the parser knew no host
	}
	if u.User != nil {
		cfg.User = u.User.Username()
		cfg.Passwd, _ = u.User.Password()
	}
	return cfg, nil
}

// server is what the store has to know of the server.
type server struct {
	mariadb bool
	version string
}

// collation compares texts by their bytes, blanks at the end included. The two servers have it under different names.
func (s server) collation() string {
	if s.mariadb {
		return "utf8mb4_nopad_bin"
	}
	return "utf8mb4_0900_bin"
}

// lookAt asks the server who it is, and refuses one that lacks what the statements need.
func lookAt(ctx context.Context, db *sql.DB) (server, error) {
	var s server
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&s.version); err != nil {
		return s, err
	}
	s.mariadb = strings.Contains(strings.ToLower(s.version), "mariadb")
	oldest := [3]int{8, 0, 17} // CHECK is enforced, there is a binary collation without padding, SKIP LOCKED
	if s.mariadb {
		oldest = [3]int{10, 6, 0} // SKIP LOCKED
	}
	if older(s.version, oldest) {
		return s, fmt.Errorf("version %s: %w", s.version, ErrUnsupported)
	}
	return s, nil
}

func older(version string, than [3]int) bool {
	numbers := strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	for i, least := range than {
		if i >= len(numbers) {
			return true
		}
		n, err := strconv.Atoi(numbers[i])
		if err != nil || n < least {
			return true
		}
		if n > least {
			return false
		}
	}
	return false
}

// CreateDatabase creates the database that the DSN names, when it is not there, with a collation that compares bytes. The user
// must be allowed to.
func CreateDatabase(ctx context.Context, dsn string, opts Options) (err error) {
	cfg, err := configure(dsn, opts)
	if err != nil {
		return fmt.Errorf("mysql: create database: %w", err)
	}
	name := cfg.DBName
	if name == "" || strings.ContainsAny(name, "`\x00") {
		return errors.New("mysql: create database: the DSN names none, or one with a ` in it")
	}
	cfg.DBName = ""
	db, err := openPool(cfg, opts.withDefaults(name), &counts{}, nil)
	if err != nil {
		return fmt.Errorf("mysql: create database %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s, err := lookAt(ctx, db)
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+name+"` CHARACTER SET utf8mb4 COLLATE "+s.collation())
	}
	if err != nil {
		return fmt.Errorf("mysql: create database %s at %s: %w", name, cfg.Addr, explain(err))
	}
	return nil
}

// driverLog takes what the driver would write to standard error by itself. The same errors come back from its calls.
type driverLog struct{ to *slog.Logger }

// Print implements mysql.Logger.
func (l driverLog) Print(v ...any) { l.to.Debug("mysql driver: " + fmt.Sprint(v...)) }
