package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/convergo/convergo/internal/freeport"
)

// MySQL is a MySQL or a MariaDB server that syncs every commit to disk. Its user root has no password, on the socket and on
// the port.
type MySQL struct {
	*Process
	Socket string // a unix socket
	Addr   string // "127.0.0.1:port"

	dir       string
	databases atomic.Int64
}

// OpenMySQL starts a server of the real MySQL: binary log with GTIDs, synced at every commit.
func OpenMySQL() (*MySQL, error) { return openMySQL(nil) }

// OpenMySQLWith is OpenMySQL with more options, which come last and so win: {"--sync-binlog=0"}.
func OpenMySQLWith(options ...string) func() (*MySQL, error) {
	return func() (*MySQL, error) { return openMySQL(options) }
}

func openMySQL(options []string) (*MySQL, error) {
	tree, err := Installed("mysql")
	if err != nil {
		return nil, err
	}
	// The program comes from another release of Debian: it is run by its own loader, with its own libraries.
	loaders, err := filepath.Glob(filepath.Join(tree, "lib*", "ld-linux-*.so.*"))
	if err != nil || len(loaders) == 0 {
		return nil, fmt.Errorf("MySQL's own loader below %s: %w", tree, ErrMissing)
	}
	libraries, err := filepath.Glob(filepath.Join(tree, "usr", "lib", "*-linux-gnu"))
	if err != nil || len(libraries) == 0 {
		return nil, fmt.Errorf("MySQL's own libraries below %s: %w", tree, ErrMissing)
	}
	program := []string{
		loaders[0], "--library-path", libraries[0], filepath.Join(tree, "usr", "sbin", "mysqld"), "--no-defaults",
		"--basedir=" + filepath.Join(tree, "usr"), "--lc-messages-dir=" + filepath.Join(tree, "usr", "share", "mysql"),
		"--character-sets-dir=" + filepath.Join(tree, "usr", "share", "mysql", "charsets"),
		"--plugin-dir=" + filepath.Join(tree, "usr", "lib", "mysql", "plugin"), "--secure-file-priv=NULL",
	}
	create := func(data string) *exec.Cmd {
		args := append(append([]string{}, program[1:]...), "--initialize-insecure", "--datadir="+data)
		return exec.Command(program[0], append(args, asRoot()...)...)
	}
	server, err := openServer("mysql", program, create, append([]string{
		"--mysqlx=OFF", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-bin-trust-function-creators=ON",
		"--pid-file=mysqld.pid", "--sync-binlog=1",
	}, options...))
	if err != nil {
		return nil, err
	}
	// A new folder knows root on the socket alone.
	err = server.Exec("CREATE USER IF NOT EXISTS 'root'@'127.0.0.1'", "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION")
	if err != nil {
		return nil, errors.Join(err, server.Kill())
	}
	return server, nil
}

// asRoot: both servers refuse to run as root unless they are told to.
func asRoot() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

// openServer makes a data folder and starts a server on it.
func openServer(name string, program []string, create func(data string) *exec.Cmd, options []string) (*MySQL, error) {
	dir, err := Folder(name)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	// A server that starts removes what looks like its temporary tables, in a folder that others use too.
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	install := create(data)
	install.Args = append(install.Args, "--tmpdir="+filepath.Join(dir, "tmp"))
	if output, err := install.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: make a data folder: %w\n%s", name, err, tailOf(output)), os.RemoveAll(dir))
	}
	var failures []error
	for range 3 { // the port may be taken between the look and the start
		m, err := startServer(name, dir, data, program, options)
		if err == nil {
			return m, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(append(failures, os.RemoveAll(dir))...)
}

func tailOf(output []byte) []byte { return output[max(0, len(output)-2000):] }

func startServer(name, dir, data string, program, options []string) (*MySQL, error) {
	port, err := freeport.Next()
	if err != nil {
		return nil, err
	}
	m := &MySQL{Socket: filepath.Join(dir, "sock"), Addr: "127.0.0.1:" + strconv.Itoa(port), dir: dir}
	args := append(append([]string{}, program[1:]...), asRoot()...)
	args = append(args, "--datadir="+data, "--tmpdir="+filepath.Join(dir, "tmp"), "--socket="+m.Socket, "--port="+strconv.Itoa(port), "--bind-address=127.0.0.1",
		"--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=256M", "--max-connections=300", "--skip-name-resolve")
	if m.Process, err = start(dir, name, Command{Path: program[0], Args: append(args, options...)}); err != nil {
		return nil, err
	}
	if err := m.Ready(); err != nil {
		return nil, errors.Join(err, m.Kill())
	}
	return m, nil
}

// Ready waits until the server answers and is the one that was started here.
func (m *MySQL) Ready() error {
	db, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // what counts is known by then
	return m.Await(60*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		var data string
		if err := db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&data); err != nil {
			return err
		}
		if filepath.Clean(data) != filepath.Join(m.dir, "data") {
			return fmt.Errorf("%s is another server, with its data in %s", m.Socket, data)
		}
		return nil
	})
}

func (m *MySQL) open(database string) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(m.DSN(database))
	if err != nil {
		return nil, err
	}
	cfg.Logger = log.New(io.Discard, "", 0) // it is asked before it is ready
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// DSN is the source name of a database, by the socket, in the driver's form.
func (m *MySQL) DSN(database string) string { return "root@unix(" + m.Socket + ")/" + database }

// TCP is DSN by the port.
func (m *MySQL) TCP(database string) string { return "root@tcp(" + m.Addr + ")/" + database }

// Database makes an empty database whose name is new and returns the name. Its default collation ignores case and accents:
// what needs better says so itself.
func (m *MySQL) Database() (string, error) {
	name := "test_" + strconv.FormatInt(m.databases.Add(1), 10)
	return name, m.Exec("CREATE DATABASE " + name + " CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
}

// Exec runs statements as root, outside of any database.
func (m *MySQL) Exec(statements ...string) error {
	db, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // what counts is known by then
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%.80s: %w", statement, err)
		}
	}
	return nil
}

// Restart starts the server again after it was stopped or killed, on the same data and port.
func (m *MySQL) Restart() error {
	if err := m.Start(); err != nil {
		return err
	}
	return m.Ready()
}

// Close ends the server and removes its data.
func (m *MySQL) Close() error {
	return errors.Join(m.Stop(syscall.SIGTERM, 20*time.Second), os.RemoveAll(m.dir))
}
