package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// atServers are the databases that have a clock and accounts.
func atServers() map[string]func(t *testing.T) patient {
	all := databasePatients()
	delete(all, "sqlite")
	return all
}

func TestTheDoctorTellsAClockThatDiffersFromADatabases(t *testing.T) {
	for name, open := range atServers() {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			for _, c := range []struct {
				ahead time.Duration // the database's clock, of this machine's
				told  bool
			}{{time.Hour, true}, {-time.Hour, true}, {2 * time.Second, true}, {900 * time.Millisecond, false}, {0, false}} {
				e := &examination{now: func() time.Time { return time.Now().Add(-c.ahead) }}
				e.Databases = map[string]string{"order": p.address}
				e.database(t.Context(), "order")
				told := false
				for _, f := range e.findings {
					_, skew, ok := strings.Cut(f.Detail, "its clock differs from this machine's by ")
					if !ok {
						continue
					}
					text, _, _ := strings.Cut(skew, ":")
					by := must[time.Duration](t)(time.ParseDuration(text))
					told = told || f.Level == levelWarning && (by-c.ahead).Abs() < 500*time.Millisecond
				}
				if told != c.told {
					t.Errorf("%v ahead: told %v, %v", c.ahead, told, e.findings)
				}
			}
		})
	}
}

// account is one with few rights on a server of its own database.
type account struct {
	address  string
	exec     func(statement string) // as one who may do everything
	readOnly func()                 // from now on the account, or the server, takes no writes
}

const password = "hunter2" // which findings must not show

func accounts() map[string]func(t *testing.T) account {
	onMySQL := func(open func() (*testserver.MySQL, error)) func(t *testing.T) account {
		return func(t *testing.T) account {
			server := testserver.Own(t, open)
			exec := func(statement string) { t.Helper(); testserver.Must(t, server.Exec(statement)) }
			exec("CREATE DATABASE shop_1")
			exec("CREATE USER 'o''brien'@'127.0.0.1' IDENTIFIED BY '" + password + "'")
			exec("GRANT SELECT ON shop_1.* TO 'o''brien'@'127.0.0.1'")
			exec("GRANT CREATE ON `shop\\_2`.* TO 'o''brien'@'127.0.0.1'")
			return account{
				"mysql://o%27brien:" + password + "@" + server.Addr + "/shop_1", exec, func() { exec("SET GLOBAL read_only = 1") },
			}
		}
	}
	return map[string]func(t *testing.T) account{
		"postgres": func(t *testing.T) account {
			server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
			database := must[string](t)(server.Database("rights"))
			role := server.Name("Clerk")
			exec := func(statement string) { t.Helper(); testserver.Must(t, server.Exec(database, statement)) }
			exec(fmt.Sprintf(`CREATE ROLE %q LOGIN PASSWORD '%s'`, role, password))
			t.Cleanup(func() { exec(fmt.Sprintf(`DROP OWNED BY %q CASCADE; DROP ROLE %q`, role, role)) })
			address := fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/%s?sslmode=disable", role, password, server.Port, database)
			return account{address, exec, func() { exec(fmt.Sprintf(`ALTER ROLE %q SET default_transaction_read_only = on`, role)) }}
		},
		"mysql":   onMySQL(testserver.OpenMySQL),
		"mariadb": onMySQL(testserver.OpenMariaDB),
	}
}

// granted is the GRANT that the doctor advises.
func granted(t *testing.T, found map[string][]finding) string {
	t.Helper()
	says(t, found, "database of order", levelError, "the account may not make tables in ")
	for _, f := range found["database of order"] {
		if _, grant, ok := strings.Cut(f.Detail, "before the first start "); ok {
			return grant
		}
	}
	t.Fatal("nothing is advised")
	return ""
}

// An account that may not make tables is told before the first start, and what the doctor advises is enough; that a server takes no writes
// is told too.
func TestTheDoctorTellsWhatAnAccountMayNotAndWhatHelps(t *testing.T) {
	for name, open := range accounts() {
		t.Run(name, func(t *testing.T) {
			a := open(t)
			order := func(query string) []string {
				return []string{"--services", "order", "--databases", "order=" + a.address + query}
			}
			address := order("")
			if name == "postgres" {
				a.exec(granted(t, findings(t, 1, order("&schema=yet_to_be_made")...)))
				says(t, findings(t, 0, order("&schema=yet_to_be_made")...), "database of order", levelChange, "serve will make its tables")
				a.exec(`CREATE SCHEMA made`)
				address = order("&schema=made")
			}
			a.exec(granted(t, findings(t, 1, address...)))
			says(t, findings(t, 0, address...), "database of order", levelChange, "serve will make its tables")
			dir := t.TempDir()
			startPlatform(t, dir, address...).end(0)
			address = append(address, "--secrets", filepath.Join(dir, secretsFile))
			says(t, findings(t, 0, address...), "database of order", levelOK, "its tables are those of this version")
			a.readOnly()
			says(t, findings(t, 1, address...), "database of order", levelError, "takes no writes: it is a replica, or read only; name the primary")
		})
	}
}

func TestTheRightToMakeTablesIsReadFromGrants(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		may  bool
	}{
		{"GRANT USAGE ON *.* TO `a`@`%`", false},
		{"GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION", true},
		{"GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`", true},
		{"GRANT SELECT, INSERT, CREATE, DROP ON `shop`.* TO `a`@`%`", true},
		{"GRANT SELECT, CREATE ON \"shop\".* TO \"a\"@\"%\"", true},
		{"GRANT SELECT, CREATE ON `sh%`.* TO `a`@`%`", true},
		{"GRANT CREATE ON `sho_`.* TO `a`@`%`", true},
		{"GRANT CREATE ON `sho\\_`.* TO `a`@`%`", false},
		{"GRANT CREATE ON `shops`.* TO `a`@`%`", false},
		{"GRANT CREATE ROLE, CREATE USER ON *.* TO `a`@`%`", false},
		{"GRANT CREATE VIEW, SELECT ON `shop`.* TO `a`@`%`", false},
		{"GRANT ALL PRIVILEGES ON `shop`.`orders` TO `a`@`%`", false},
		{"GRANT CREATE, SELECT ON `shop`.`orders` TO `a`@`%`", false},
		{"GRANT USAGE ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*00'", false},
		{"GRANT PROXY ON ``@`` TO `root`@`localhost`", false},
		{"GRANT `staff`@`%` TO `a`@`%`", true}, // a role may
		{"REVOKE CREATE ON `shop`.* FROM `a`@`%`", false},
	} {
		if may := allowsTables([]string{"GRANT USAGE ON *.* TO `a`@`%`", c.line}, "shop"); may != c.may {
			t.Errorf("%s: %v", c.line, may)
		}
	}
}
