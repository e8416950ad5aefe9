package mysql_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// refuses opens a store that cannot be opened. It must say so at once: the time is far below that of any series of tries.
func refuses(t *testing.T, what, dsn string, verdict convergo.Verdict, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	s, err := mysql.Open(ctx, dsn, mysql.Options{})
	if err == nil {
		must(t, s.Close())
		err = errors.New("it was opened")
	}
	if ctx.Err() != nil || convergo.VerdictOf(err) != verdict {
		t.Errorf("%s: the verdict is %v, or it took too long: %v", what, convergo.VerdictOf(err), err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %q is not in %v", what, word, err)
		}
	}
}

func TestWhatAnotherTryCannotChangeIsFinalAtOpen(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := testserver.Own(t, k.open)
			name, err := server.Database()
			must(t, err)
			must(t, server.Exec("CREATE USER 'plain'@'%' IDENTIFIED BY 'hunter2'", "CREATE USER 'reader'@'%' IDENTIFIED BY 'hunter2'",
				"GRANT SELECT ON "+name+".* TO 'reader'@'%'", "CREATE USER 'writer'@'%' IDENTIFIED BY 'hunter2'",
				"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER ON "+name+".* TO 'writer'@'%'"))
			by := func(user, database, parameters string) string {
				return user + ":hunter2@tcp(" + server.Addr + ")/" + database + parameters
			}
			refuses(t, "a wrong password", strings.Replace(by("plain", name, ""), "hunter2", "wrong", 1), convergo.Park, "password is wrong")
			refuses(t, "a database that is not there", server.DSN("absent"), convergo.Park, "create the database first")
			refuses(t, "no privilege", by("plain", name, ""), convergo.Park, "GRANT SELECT, INSERT", "plain")
			refuses(t, "a database that is not there, and no right to make one", by("plain", "absent", ""), convergo.Park, "GRANT SELECT, INSERT",
				"or the database does not exist")
			refuses(t, "reading only", by("reader", name, ""), convergo.Park, "GRANT SELECT, INSERT", "CREATE command denied", "reader")
			open(t, by("writer", name, ""), mysql.Options{}) // what the error names is enough

			must(t, server.Exec("SET GLOBAL read_only = ON"))
			refuses(t, "a server that takes no writes", by("writer", name, ""), convergo.Outage, "takes no writes")
			must(t, server.Exec("SET GLOBAL read_only = OFF"))
			must(t, server.Exec("SET GLOBAL require_secure_transport = ON"))
			refuses(t, "a server that takes TLS only", by("writer", name, ""), convergo.Park, "TLS")
		})
	}
}

func TestASettingUnderWhichNothingCanBeWrittenIsNamedAtOpen(t *testing.T) {
	for i, k := range []func(...string) func() (*testserver.MySQL, error){testserver.OpenMariaDBWith, testserver.OpenMySQLWith} {
		t.Run(kinds[i].name, func(t *testing.T) {
			options := []string{"--log-bin=binlog", "--binlog-format=STATEMENT", "--server-id=1"}
			if kinds[i].name == "mariadb" {
				options = append(options, "--skip-ssl")
			}
			server := testserver.Own(t, k(options...))
			dsn := fresh(t, server)
			refuses(t, "a binary log of statements", dsn, convergo.Park, "binlog_format", "ROW")
			if kinds[i].name == "mariadb" {
				name, err := server.Database()
				must(t, err)
				refuses(t, "a server without TLS", server.TCP(name)+"?tls=true", convergo.Park, "server offers none")
			}
		})
	}
}
