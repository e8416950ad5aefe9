package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// certifiedRole makes a role of PostgreSQL that is let in with a certificate of the authority only, and one that is let in with a password
// under TLS only, and returns a new database of theirs. Nobody else is let in otherwise than before.
func certifiedRole(t *testing.T, s *testserver.Postgres, p papers) (database string) {
	t.Helper()
	exec := func(statement string) { t.Helper(); testserver.Must(t, s.Exec("postgres", statement)) }
	database = must[string](t)(s.Database("secure"))
	for _, role := range []string{clientName, "app"} {
		exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", role, password))
		exec(fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", database, role))
	}
	file := filepath.Join(s.Dir, "data", "pg_hba.conf")
	info, rules := must[os.FileInfo](t)(os.Stat(file)), textOf(t, file)
	reload := func(rules, setting string) {
		testserver.Must(t, os.WriteFile(file, []byte(rules), info.Mode())) // it keeps its owner
		exec("ALTER SYSTEM " + setting)
		exec("SELECT pg_reload_conf()")
	}
	reload(fmt.Sprintf("hostssl all %s 127.0.0.1/32 cert\nhostssl all app 127.0.0.1/32 scram-sha-256\nhost all app 127.0.0.1/32 reject\n", clientName)+rules,
		fmt.Sprintf("SET ssl_ca_file = '%s'", p.ca))
	t.Cleanup(func() { reload(rules, "RESET ssl_ca_file") })
	return database
}

func TestEachAddressOfPostgreSQLOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	s := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
	database := certifiedRole(t, s, p)
	port := fmt.Sprint(s.Port)
	account := fmt.Sprintf("postgres://app:%s@127.0.0.1:%s/%s?", password, port, database)
	certified := fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s?sslmode=verify-full&sslrootcert=%s", clientName, port, database, s.CertFile)
	trusting := "sslmode=verify-full&sslrootcert=" + s.CertFile
	stale := p.issued(t, "stale", expire)
	door{
		opens: []string{
			account + trusting + "&schema=one&pool=3", account + "sslmode=require&schema=two", account + "schema=three", // TLS is preferred
			strings.Replace(account, "postgres:", "postgresql:", 1) + "sslmode=verify-ca&sslrootcert=" + s.CertFile + "&schema=four",
			strings.Replace(account, "@127.0.0.1:", "@127.0.0.1:1,localhost:", 1) + trusting + "&schema=five",
			certified + "&schema=six&sslcert=" + p.clientCert + "&sslkey=" + p.clientKey,
			s.TCP(database, "disable") + "&schema=seven",
		},
		closed: map[string]string{
			strings.Replace(account, password, wrongPassword, 1) + trusting:  "the role or its password is wrong",
			account + "sslmode=disable":                                      "whose lines can ask for TLS (sslmode)",
			account + "sslmode=verify-full":                                  "name the file of its authority with ?sslrootcert=FILE",
			account + "sslmode=verify-full&sslrootcert=" + p.strange:         "not signed by the authority of ?sslrootcert: name the file",
			account + "sslmode=verify-full&sslrootcert=/nowhere":             "/nowhere",
			account + "tls=true":                                             "?tls is not PostgreSQL's: write ?sslmode=verify-full&sslrootcert=FILE",
			certified:                                                        "or a client certificate (sslcert and sslkey)",
			certified + "&sslcert=" + p.strangeCert + "&sslkey=" + p.keyOfIt: "client certificate (sslcert and sslkey)",
			certified + "&sslcert=" + stale.cert + "&sslkey=" + stale.key:    "the client certificate of ?sslcert expired on " + expired(),
			strings.Replace(certified, clientName, "app", 1) + "&sslcert=" + p.clientCert + "&sslkey=" + p.clientKey: "the role or its password is wrong",
		},
	}.ofDatabase(t)
	own := identity{cert: s.CertFile, key: filepath.Join(s.Dir, "server.key")} // in files that only the server may read
	shows := func(t *testing.T, cert, key string) {
		write(t, own.cert, cert)
		write(t, own.key, key)
		testserver.Must(t, s.Exec("postgres", "SELECT pg_reload_conf()"))
	}
	cert, key := textOf(t, own.cert), textOf(t, own.key)
	t.Cleanup(func() { shows(t, cert, key) })
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			shows(t, textOf(t, shown.cert), textOf(t, shown.key))
			awaitShown(t, "127.0.0.1:"+port, shown.cert, asksPostgresForTLS)
			toldOfDatabase(t, account+"sslmode=verify-full&sslrootcert="+p.ca, shown.told(serverCertificate, "?sslmode, ?sslrootcert"))
		})
	}
}

// asksPostgresForTLS sends an SSLRequest, which a server answers with S before it speaks TLS.
func asksPostgresForTLS(conn net.Conn) error {
	answer := make([]byte, 1)
	if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, answer)
	return err
}

// secureMySQL makes users who are let in under TLS only: app with a password, certified with a certificate too.
func secureMySQL(t *testing.T, s *testserver.MySQL) (database func() string) {
	t.Helper()
	for name, require := range map[string]string{"app": "SSL", clientName: "X509"} {
		testserver.Must(t, s.Exec(
			fmt.Sprintf("CREATE USER '%s'@'127.0.0.1' IDENTIFIED BY '%s' REQUIRE %s", name, password, require),
			fmt.Sprintf("GRANT ALL ON *.* TO '%s'@'127.0.0.1'", name)))
	}
	return func() string { return must[string](t)(s.Database()) }
}

func TestEachAddressOfMySQLAndMariaDBOpensOrSaysWhatToDo(t *testing.T) {
	rereads := map[string]string{"mysql": "ALTER INSTANCE RELOAD TLS", "mariadb": "FLUSH SSL"}
	for name, open := range map[string]func(t *testing.T, p papers) *testserver.MySQL{
		"mysql": func(t *testing.T, p papers) *testserver.MySQL {
			s := testserver.Shared(t, &servers, "mysql", testserver.OpenMySQL)
			testserver.Must(t, s.Exec(fmt.Sprintf("SET GLOBAL ssl_ca = '%s', ssl_cert = '%s', ssl_key = '%s'", p.ca, p.cert, p.key), rereads["mysql"]))
			return s
		},
		"mariadb": func(t *testing.T, p papers) *testserver.MySQL {
			return testserver.Own(t, testserver.OpenMariaDBWith("--ssl-ca="+p.ca, "--ssl-cert="+p.cert, "--ssl-key="+p.key))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := papersFor(t)
			s := open(t, p)
			database := secureMySQL(t, s)
			empty := database()
			app, certified := "mysql://app:"+password+"@", "mysql://"+clientName+":"+password+"@"
			at, local := s.Addr+"/"+empty+"?", "localhost:"+portOf(t, s.Addr)+"/"+empty+"?"
			door{
				opens: []string{
					app + s.Addr + "/" + database() + "?tls=true&" + p.trusting() + "&pool=3",
					certified + s.Addr + "/" + database() + "?" + p.showing(),
					app + "localhost:" + portOf(t, s.Addr) + "/" + database() + "?server_name=" + serverName + "&" + p.trusting(),
					"mysql://root@/" + database() + "?socket=" + s.Socket,
				},
				closed: map[string]string{
					"mysql://app:" + wrongPassword + "@" + at + p.trusting(): "the user or its password is wrong",
					app + at:                      "TLS only",
					app + at + "tls=true":         "name the file of its authority with ?ca=FILE",
					app + at + "ca=" + p.strange:  "not signed by the authority of ?ca: name the file",
					app + at + "ca=/nowhere":      "?ca: open /nowhere",
					certified + at + p.trusting(): "client certificate (cert and key)",
					certified + at + p.lying():    "accept the client certificate of ?cert",
					certified + at + p.stale(t):   "the client certificate of ?cert expired on " + expired(),
					app + local + p.trusting():    "or as ?server_name=NAME",
				},
			}.ofDatabase(t)
			for _, shown := range p.unfit(t) {
				t.Run("shows "+shown.name, func(t *testing.T) {
					if shown.name == "expired" && name == "mysql" {
						shown = p.expiring(t, func() error { return s.Exec(rereads[name]) })
					} else {
						p.replace(t, shown)
						testserver.Must(t, s.Exec(rereads[name]))
					}
					eventually(t, time.Minute, "it has expired", func() bool { return shown.name != "expired" || time.Now().After(shown.until) })
					toldOfDatabase(t, app+at+p.trusting(), shown.told(serverCertificate, "?ca"))
				})
			}
			saysAlone(t, "relay", "--database", certified+at+p.lying(), "--broker", "redis://127.0.0.1:1")
			saysAlone(t, "doctor", "--data", t.TempDir(), "--services", "order", "--databases", "order="+certified+at+p.lying())
		})
	}
}

func TestAnAddressThatAsksForTLSOfADatabaseWithoutItSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	s := testserver.Own(t, testserver.OpenMariaDBWith("--skip-ssl"))
	database := must[string](t)(s.Database())
	postgres := testserver.Own(t, func() (*testserver.Postgres, error) { return testserver.OpenPostgres("ssl=off") })
	for address, says := range map[string]string{
		"mysql://root@" + s.Addr + "/" + database + "?" + p.trusting(): "the server offers none",
		postgres.TCP("postgres", "require"):                            "the server offers none",
	} {
		toldOfDatabase(t, address, says)
	}
}
