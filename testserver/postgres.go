package testserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo/internal/freeport"
)

// PostgresPassword is the superuser's password in PostgreSQL test servers; it is asked for on TCP, not on the unix socket.
const PostgresPassword = "let-me-in"

// Postgres is a PostgreSQL server with one superuser, "postgres": durable (fsync on), wal_level logical, TLS offered on TCP.
// It listens on 127.0.0.1 (password, scram) and on a unix socket (trusted) in its folder.
type Postgres struct {
	*Process
	Dir  string // socket, certificate, data folder "data"
	Port int
	// CertFile is the server's certificate, its own authority, for 127.0.0.1 and localhost.
	CertFile string

	made atomic.Int64
}

// postgresUser is whom the package made: PostgreSQL refuses to run as root.
const postgresUser = "postgres"

// OpenPostgres makes and starts a server. settings are added to its configuration ("name=value").
func OpenPostgres(settings ...string) (_ *Postgres, err error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	dir, err := Folder("pg")
	if err != nil {
		return nil, err
	}
	p := &Postgres{Dir: dir, CertFile: filepath.Join(dir, "server.crt")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("postgres: %w", err), p.Close())
		}
	}()
	if p.Port, err = freeport.Next(); err != nil {
		return nil, err
	}
	if err = p.prepare(bin); err != nil {
		return nil, err
	}
	args := []string{
		"-D", filepath.Join(dir, "data"), "-k", dir, "-p", strconv.Itoa(p.Port), "-c", "listen_addresses=127.0.0.1",
		"-c", "wal_level=logical", "-c", "max_connections=200", "-c", "max_prepared_transactions=10", "-c", "ssl=on",
		"-c", "ssl_cert_file=" + p.CertFile, "-c", "ssl_key_file=" + filepath.Join(dir, "server.key"), "-c", "password_encryption=scram-sha-256",
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	p.Process, err = start(dir, "postgres", Command{Path: filepath.Join(bin, "postgres"), Args: args, User: postgresUser})
	if err != nil {
		return nil, err
	}
	return p, p.Ready()
}

// OpenDefaultPostgres is OpenPostgres without settings, in the form that Shared and Own want.
func OpenDefaultPostgres() (*Postgres, error) { return OpenPostgres() }

// postgresBin is the newest of Debian's versioned folders.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("postgresql: %w", ErrMissing)
	}
	version := func(path string) int { n, _ := strconv.Atoi(strings.Split(path, "/")[4]); return n }
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// prepare fills the folder, as the user who is to own it.
func (p *Postgres) prepare(bin string) error {
	if err := os.WriteFile(filepath.Join(p.Dir, "password"), []byte(PostgresPassword), 0o644); err != nil {
		return err
	}
	if err := certificate(p.CertFile, filepath.Join(p.Dir, "server.key")); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := p.giveAway(); err != nil {
			return err
		}
	}
	cmd, err := command(Command{
		Path: filepath.Join(bin, "initdb"), Dir: p.Dir, User: postgresUser,
		Args: []string{
			"-D", filepath.Join(p.Dir, "data"), "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions",
			"--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile=" + filepath.Join(p.Dir, "password"),
		},
	})
	if err != nil {
		return err
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, output)
	}
	return nil
}

func (p *Postgres) giveAway() error {
	account, err := user.Lookup(postgresUser)
	if err != nil {
		return fmt.Errorf("postgresql: %w: %w", ErrMissing, err)
	}
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return err
	}
	return filepath.WalkDir(p.Dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, -1)
	})
}

// certificate writes a self-signed certificate and its key.
func certificate(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err = os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644); err != nil {
		return err
	}
	return os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)
}

// Ready waits until the server answers, and checks that it is ours. For use after a restart too.
func (p *Postgres) Ready() error {
	return p.Await(time.Minute, func() error {
		return p.with(p.DSN("postgres"), func(ctx context.Context, conn *pgx.Conn) error {
			var data string
			if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
				return err
			}
			if want := filepath.Join(p.Dir, "data"); data != want {
				return fmt.Errorf("another server answers: its data is in %s, not %s", data, want)
			}
			return nil
		})
	})
}

func (p *Postgres) with(dsn string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, conn), conn.Close(ctx))
}

// Exec runs SQL as the superuser.
func (p *Postgres) Exec(database, query string) error {
	return p.with(p.DSN(database), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, query)
		return err
	})
}

// DSN reaches a database through the unix socket, as the superuser.
func (p *Postgres) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=%d", database, url.QueryEscape(p.Dir), p.Port)
}

// TCP reaches a database through 127.0.0.1 with the password. sslmode is "disable", "require", "verify-full"…
func (p *Postgres) TCP(database, sslmode string) string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?sslmode=%s", PostgresPassword, p.Port, database, sslmode)
}

// Name is a name that nothing on this server has yet, for a database or a schema.
func (p *Postgres) Name(prefix string) string { return fmt.Sprintf("%s_%d", prefix, p.made.Add(1)) }

// Database makes an empty database and returns its name.
func (p *Postgres) Database(prefix string) (string, error) {
	name := p.Name(prefix)
	return name, p.Exec("postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

// Kill ends the server as a power cut does: the postmaster and all its children, which are in sessions of their own, and waits
// until they are gone. Their shared memory would keep the next start from succeeding.
func (p *Postgres) Kill() error {
	text, err := os.ReadFile(filepath.Join(p.Dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	family := children(first)
	if err := p.Process.Kill(); err != nil {
		return err
	}
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL) // some have ended by themselves
	}
	for deadline := time.Now().Add(10 * time.Second); len(family) > 0; {
		if state, _ := state(fmt.Sprint("/proc/", family[0], "/stat")); state == "" || state == "Z" {
			family = family[1:]
			continue
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("postgres: process %d does not end", family[0])
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// Pause stops the postmaster and all its children, which are in sessions of their own, and returns when they stand still; Resume lets them
// go on. Between the two new connections are taken by the system, and nobody answers.
func (p *Postgres) Pause() error {
	if err := p.Process.Pause(); err != nil { // first: it starts no more children then
		return err
	}
	pids, err := p.signalChildren(syscall.SIGSTOP)
	if err != nil {
		return err
	}
	return stopped(pids...)
}

// Resume lets a paused server go on.
func (p *Postgres) Resume() error {
	if _, err := p.signalChildren(syscall.SIGCONT); err != nil {
		return err
	}
	return p.Process.Resume()
}

func (p *Postgres) signalChildren(s syscall.Signal) (pids []int, err error) {
	text, err := os.ReadFile(filepath.Join(p.Dir, "data", "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	postmaster, _, _ := strings.Cut(string(text), "\n")
	pids = children(postmaster)
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // some have ended by themselves
	}
	return pids, nil
}

// children are the processes whose parent it is, as /proc/<pid>/stat says.
func children(parent string) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is a good one
	for _, path := range stats {
		if _, its := state(path); its == parent {
			if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// state reads a process's state and its parent; both empty when it is gone. "Z" is one that has ended and that nobody waits for.
func state(path string) (state, parent string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", ""
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return "", ""
	}
	return fields[0], fields[1]
}

// Close implements Server.
func (p *Postgres) Close() error {
	var err error
	if p.Process != nil {
		err = p.Stop(syscall.SIGINT, 20*time.Second) // "fast" shutdown: does not wait for clients
	}
	return errors.Join(err, os.RemoveAll(p.Dir))
}

// lookPath is exec.LookPath, also in the folders of system programs.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, ErrMissing)
}
