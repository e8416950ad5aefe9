package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// servers are those that the tests of this package share.
var servers testserver.Pool

// converges runs the demo on a platform of many processes and fails unless it converged. Crashes are what else is killed and started
// again in the middle of the day, by name.
func converges(t *testing.T, crashes map[string]func() error, args ...string) {
	t.Helper()
	mux := http.NewServeMux()
	for name, crash := range crashes {
		mux.HandleFunc("/"+name, func(w http.ResponseWriter, _ *http.Request) {
			if err := crash(); err != nil {
				t.Errorf("%s: %v", name, err)
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	where, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"demo", "--keep", t.TempDir() + "/data", "--json", "--timeout", "7m", "--count", "40", "--buyers", "12", "--kills", fmt.Sprint(len(crashes) + 3)}
	for name := range crashes {
		// The shell's own client: a bare machine has no other.
		all = append(all, "--disturb", fmt.Sprintf(`%s=bash -c 'exec 3<>/dev/tcp/127.0.0.1/%s; printf "GET /%s HTTP/1.0\r\n\r\n" >&3; grep -q " 200 " <&3'`, name, where.Port(), name))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	r := runChild(ctx, t, append(all, args...)...)
	var report struct {
		Verdict string
		Reasons []string
		Faults  map[string]int
		Orders  map[string]int

		Equations []struct {
			Name, Detail string
			Broken       int
		}
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.Verdict != "CONVERGED" || r.code != 0 {
		text, _ := os.ReadFile(all[2] + "/platform.log")
		for _, e := range report.Equations {
			if e.Broken > 0 {
				t.Errorf("%s: %d broken: %s", e.Name, e.Broken, e.Detail)
			}
		}
		t.Fatalf("exit code %d, %v, %q, faults %v\n%s\n%s", r.code, err, report.Reasons, report.Faults, r.err, text[max(0, len(text)-6000):])
	}
	for name := range crashes {
		if report.Faults[name] == 0 {
			t.Errorf("%s was never crashed", name)
		}
	}
	t.Logf("orders %v, faults %v", report.Orders, report.Faults)
}

func TestADayOnManyProcessesConvergesOnPostgreSQLAndNATS(t *testing.T) {
	database, cluster := testserver.Own(t, testserver.OpenDefaultPostgres), testserver.Own(t, testserver.OpenNATSCluster)
	var hosts []string
	for _, node := range cluster.Nodes {
		_, host, _ := strings.Cut(node.URL, "@")
		hosts = append(hosts, host)
	}
	user, _, _ := strings.Cut(cluster.Nodes[0].URL, "@")
	converges(t, map[string]func() error{
		"broker":   func() error { return again(cluster.Nodes[0].Kill, cluster.Nodes[0].Start, cluster.Ready) },
		"database": func() error { return again(database.Kill, func() error { return startPostgres(database) }) },
	}, "--database", database.TCP("postgres", "disable")+"&schema={service}", "--broker", user+"@"+strings.Join(hosts, ","))
}

func TestADayOnManyProcessesConvergesOnPostgreSQLAndKafka(t *testing.T) {
	database, broker := testserver.Own(t, testserver.OpenDefaultPostgres), testserver.Own(t, testserver.OpenKafka)
	where := []string{"--database", database.TCP("postgres", "disable") + "&schema={service}", "--broker", "kafka://" + broker.Addr + "?replicas=1"}
	converges(t, map[string]func() error{
		"broker":   func() error { return again(broker.Kill, broker.Restart) },
		"database": func() error { return again(database.Kill, func() error { return startPostgres(database) }) },
	}, where...)
	refused(t, 1, []string{"is not empty", "false orders"}, append([]string{"demo"}, where...)...)
}

// startPostgres starts a server that was killed: it does not start before the last of its old processes has noticed.
func startPostgres(p *testserver.Postgres) (err error) {
	for range 20 {
		if err = again(p.Start, p.Ready); err == nil {
			return nil
		}
	}
	return err
}

// again kills a server and starts it on its data.
func again(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func TestADayOnManyProcessesConvergesOnMariaDBAndRabbitMQ(t *testing.T) {
	database, broker := testserver.Own(t, testserver.OpenMariaDB), testserver.Own(t, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
	makeDatabases(t, database)
	config, file := inFile(t, "mysql://root@"+database.Addr+"/convergo_{service}", fmt.Sprintf("amqp://%s:%s@%s", broker.User, broker.Password, broker.Addr))
	converges(t, map[string]func() error{"broker": broker.Crash, "database": func() error { return again(database.Kill, database.Restart) }}, config, file)
}

// inFile is a configuration file with these settings, as flags.
func inFile(t *testing.T, database, broker string) (config, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "convergo.yaml")
	text := fmt.Sprintf("database: %q\nbroker: %q\n", database, broker)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--config", file
}

func makeDatabases(t *testing.T, server *testserver.MySQL) {
	t.Helper()
	for _, service := range serviceNames() {
		if err := server.Exec("CREATE DATABASE convergo_" + service); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADayOnManyProcessesConvergesOnMySQLAndRocketMQ(t *testing.T) {
	database, broker := testserver.Own(t, testserver.OpenMySQL), testserver.Own(t, testserver.OpenRocketMQ)
	makeDatabases(t, database)
	config, file := inFile(t, "mysql://root@/convergo_{service}?socket="+database.Socket,
		fmt.Sprintf("rocketmq://%s?cluster=%s&lease=%v", broker.NameServer, broker.Cluster, broker.LockTerm))
	converges(t, map[string]func() error{
		"broker":   func() error { return again(broker.Kill, broker.Start) },
		"database": func() error { return again(database.Kill, database.Restart) },
	}, config, file)
}

func TestADayOnManyProcessesConvergesOnSQLiteAndRedis(t *testing.T) {
	broker := testserver.Own(t, testserver.OpenRedis)
	converges(t, map[string]func() error{"broker": func() error { return again(broker.Kill, broker.Restart) }}, "--broker", "redis://"+broker.Addr)
}

// What stands around the demo must not make two platforms of its services and its relays.
func TestAllProcessesOfADemoAreOnePlatform(t *testing.T) {
	t.Setenv("CONVERGO_PLATFORM_ID", "somebody-elses")
	dir := t.TempDir()
	shared := must[secrets](t)(loadSecrets(dir))
	c := demoCommand{Instances: 2, Relays: 3}
	c.Broker = "nats://127.0.0.1:1"
	f := must[*fleet](t)(c.newFleet("convergo", dir, dir+"/"+secretsFile, "http://127.0.0.1:1", "127.0.0.1:2", io.Discard))
	for _, m := range slices.Concat(f.services, f.relays) {
		at := slices.Index(m.Args, "--platform-id")
		if at < 0 || m.Args[at+1] != shared.PlatformID {
			t.Errorf("%s is not told its platform %s: %v", m.name, shared.PlatformID, m.Args)
		}
	}
	if len(f.services) != 18 || len(f.relays) != 3 {
		t.Errorf("%d services, %d relays", len(f.services), len(f.relays))
	}
}
