package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/internal/freeport"
)

// PgBouncer is a connection pooler in transaction mode in front of a PostgreSQL test server.
type PgBouncer struct {
	*Process
	Dir  string
	Port int
}

// OpenPgBouncer starts a pooler with at most size server connections for each database.
func OpenPgBouncer(server *Postgres, size int) (_ *PgBouncer, err error) {
	path, err := lookPath("pgbouncer")
	if err != nil {
		return nil, err
	}
	dir, err := Folder("pgb")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{Dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("pgbouncer: %w", err), b.Close())
		}
	}()
	if b.Port, err = freeport.Next(); err != nil {
		return nil, err
	}
	settings := strings.Join([]string{
		"[databases]", fmt.Sprintf("* = host=%s port=%d", server.Dir, server.Port),
		"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", b.Port), "unix_socket_dir = " + dir,
		"auth_type = trust", "auth_file = " + filepath.Join(dir, "users"), "admin_users = postgres",
		"pool_mode = transaction", fmt.Sprintf("default_pool_size = %d", size), "max_client_conn = 500", "server_reset_query_always = 0",
		"query_wait_timeout = 60", "",
	}, "\n")
	config := filepath.Join(dir, "pgbouncer.ini")
	if err = os.WriteFile(config, []byte(settings), 0o644); err != nil {
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(dir, "users"), []byte("\"postgres\" \"\"\n"), 0o644); err != nil {
		return nil, err
	}
	if err = os.Chmod(dir, 0o777); err != nil { // it makes its socket here, as another user
		return nil, err
	}
	b.Process, err = start(dir, "pgbouncer", Command{Path: path, Args: []string{config}, User: postgresUser})
	if err != nil {
		return nil, err
	}
	return b, b.Await(30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, b.DSN("postgres")+"&default_query_exec_mode=exec")
		if err != nil {
			return err
		}
		var data string
		err = conn.QueryRow(ctx, "SHOW data_directory").Scan(&data)
		if want := filepath.Join(server.Dir, "data"); err == nil && data != want {
			err = fmt.Errorf("another server answers: its data is in %s, not %s", data, want)
		}
		return errors.Join(err, conn.Close(ctx))
	})
}

// DSN reaches a database through the pooler's unix socket.
func (b *PgBouncer) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=%d", database, url.QueryEscape(b.Dir), b.Port)
}

// Close implements Server.
func (b *PgBouncer) Close() error {
	var err error
	if b.Process != nil {
		err = b.Stop(syscall.SIGINT, 10*time.Second)
	}
	return errors.Join(err, os.RemoveAll(b.Dir))
}
