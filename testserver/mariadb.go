package testserver

import (
	"fmt"
	"os/exec"
)

// OpenMariaDB starts a server of MariaDB, without a binary log, as Debian sets it up.
func OpenMariaDB() (*MySQL, error) { return openMariaDB(nil) }

// OpenMariaDBWith is OpenMariaDB with more options, which come last and so win: {"--log-bin", "--sync-binlog=1"}.
func OpenMariaDBWith(options ...string) func() (*MySQL, error) {
	return func() (*MySQL, error) { return openMariaDB(options) }
}

func openMariaDB(options []string) (*MySQL, error) {
	program, err := exec.LookPath("mariadbd")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil { // not on the path of everybody
			return nil, fmt.Errorf("mariadbd: %w", ErrMissing)
		}
	}
	installer, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w", ErrMissing)
	}
	create := func(data string) *exec.Cmd {
		args := []string{"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db"}
		return exec.Command(installer, append(args, asRoot()...)...)
	}
	return openServer("mariadb", []string{program, "--no-defaults"}, create, options)
}
