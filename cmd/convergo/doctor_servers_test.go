package main

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo/testserver"
)

// patient is a server that a doctor looks at.
type patient struct {
	address string          // with a '?'
	things  func() []string // everything that there is
}

// unchanged is what the doctor finds; it fails when there is other than before.
func (p patient) unchanged(t *testing.T, code int, args ...string) map[string][]finding {
	t.Helper()
	before := p.things()
	found := findings(t, code, args...)
	if after := p.things(); !slices.Equal(before, after) {
		t.Errorf("the doctor changed something: before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	return found
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func brokerPatients(t *testing.T) map[string]func(t *testing.T) patient {
	t.Helper()
	return map[string]func(t *testing.T) patient{
		"nats": func(t *testing.T) patient {
			server := testserver.Own(t, testserver.OpenNATS)
			conn := must[*nats.Conn](t)(nats.Connect(server.URL))
			t.Cleanup(conn.Close)
			js := must[jetstream.JetStream](t)(jetstream.New(conn))
			return patient{server.URL + "/?lease=2s", func() (names []string) {
				list := js.StreamNames(t.Context())
				for name := range list.Name() {
					names = append(names, name)
				}
				if err := list.Err(); err != nil {
					t.Fatal(err)
				}
				slices.Sort(names)
				return names
			}}
		},
		"kafka": func(t *testing.T) patient {
			server := testserver.Own(t, testserver.OpenKafka)
			client := must[*kgo.Client](t)(kgo.NewClient(kgo.SeedBrokers(server.Addr)))
			t.Cleanup(client.Close)
			admin := kadm.NewClient(client)
			return patient{"kafka://" + server.Addr + "?replicas=1", func() []string {
				return must[kadm.TopicDetails](t)(admin.ListTopicsWithInternal(t.Context())).Names()
			}}
		},
		"rabbitmq": func(t *testing.T) patient {
			server := testserver.Own(t, func() (*testserver.RabbitMQ, error) { return testserver.OpenRabbitMQ() })
			return patient{fmt.Sprintf("amqp://%s:%s@%s?", server.User, server.Password, server.Addr), func() (names []string) {
				for _, what := range []string{"queues", "exchanges"} {
					lines := strings.Split(must[string](t)(server.Control("-q", "list_"+what, "name")), "\n")
					slices.Sort(lines)
					names = append(names, lines...)
				}
				return names
			}}
		},
		"redis": func(t *testing.T) patient {
			server := testserver.Own(t, testserver.OpenRedis)
			client := goredis.NewClient(&goredis.Options{Addr: server.Addr})
			t.Cleanup(func() { _ = client.Close() })
			return patient{"redis://" + server.Addr + "?", func() []string {
				keys := must[[]string](t)(client.Keys(t.Context(), "*").Result())
				slices.Sort(keys)
				return keys
			}}
		},
		"rocketmq": func(t *testing.T) patient {
			server := testserver.Own(t, testserver.OpenRocketMQ)
			return patient{fmt.Sprintf("rocketmq://%s?cluster=%s&lease=%v", server.NameServer, server.Cluster, server.LockTerm), func() []string {
				// Those for retries belong to the consumers that have read there, and come a while after these.
				return slices.DeleteFunc(must[[]string](t)(server.Topics()), func(name string) bool { return strings.HasPrefix(name, "%RETRY%") })
			}}
		},
	}
}

// The doctor may be asked before a roll-out, on a broker that others use: it makes nothing there, says what serve would make, and names
// another number of partitions.
func TestTheDoctorLeavesABrokerAsItIs(t *testing.T) {
	for name, open := range brokerPatients(t) {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			args := []string{"--services", "order,inventory,risk", "--broker"}
			found := p.unchanged(t, 0, append(args, p.address)...)
			says(t, found, "broker", levelOK, "answers")
			says(t, found, "broker", levelChange, "serve will make ")
			says(t, found, "settings", levelOK, "")
			for _, f := range found["broker"] {
				if strings.Contains(f.Detail, "is there already") {
					t.Errorf("nothing is there: %v", f)
				}
			}
			shares(t, t.TempDir(), p.address).end(0)
			found = p.unchanged(t, 0, append(args, p.address)...)
			says(t, found, "broker", levelOK, "with as many partitions as here")
			says(t, found, "broker", levelWarning, "the databases are new, but the place for the events of topic ")
			found = p.unchanged(t, 1, append(args, p.address+"&partitions=3")...)
			says(t, found, "broker", levelError, "3")
			says(t, found, "broker", levelError, remedies[name])
			if name == "nats" {
				found = p.unchanged(t, 1, append(args, p.address+"&stream=SECOND")...)
				says(t, found, "broker", levelError, "stream CONVERGO has the subjects ev.*.*.* already")
			}
		})
	}
}

var remedies = map[string]string{
	"nats": "has 8 partitions and partitions (Config.Partitions) is 3: set that to 8", "kafka": "has 8 partitions and partitions (Config.Partitions) is 3",
	"rabbitmq": "partitions (Config.Partitions) is 3 and others with prefix", "redis": "made with 8 partitions and partitions (Config.Partitions) is 3",
	"rocketmq": "has 8 queues, and partitions (Config.Queues) is 3",
}

func TestTheDoctorSaysThatATopicCannotBeMade(t *testing.T) {
	p := brokerPatients(t)["kafka"](t)
	found := p.unchanged(t, 1, "--services", "order", "--broker", strings.Replace(p.address, "replicas=1", "replicas=3", 1))
	says(t, found, "broker", levelError, "to their number")
}

// atDatabase opens the database at the address for plain SQL, once.
func atDatabase(t *testing.T, address string, do func(db *sql.DB, prefix string)) {
	t.Helper()
	source, file, err := openSource(address)
	if err != nil {
		t.Fatal(err)
	}
	prefix := ""
	if file != "" {
		source.DB = must[*sql.DB](t)(sql.Open("sqlite", file))
	} else if source.Postgres {
		prefix = source.Schema + "."
	}
	defer func() { _ = source.DB.Close() }()
	do(source.DB, prefix)
}

// namesIn are the answers of a query for names.
func namesIn(t *testing.T, address, query string, args ...any) func() []string {
	return func() (names []string) {
		atDatabase(t, address, func(db *sql.DB, _ string) {
			rows := must[*sql.Rows](t)(db.QueryContext(t.Context(), query, args...))
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
		})
		return names
	}
}

func databasePatients() map[string]func(t *testing.T) patient {
	onServer := func(name string, open func() (*testserver.MySQL, error)) func(t *testing.T) patient {
		return func(t *testing.T) patient {
			server := testserver.Shared(t, &servers, name, open)
			database := must[string](t)(server.Database())
			address := "mysql://root@/" + database + "?socket=" + server.Socket
			return patient{address, namesIn(t, address, "SELECT table_name FROM information_schema.tables WHERE table_schema = ? ORDER BY 1", database)}
		}
	}
	return map[string]func(t *testing.T) patient{
		"postgres": func(t *testing.T) patient {
			server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
			schema := server.Name("looked")
			address := server.TCP("postgres", "disable") + "&schema=" + schema
			return patient{address, namesIn(t, address, `SELECT nspname::text FROM pg_namespace WHERE nspname = $1::text
				UNION ALL SELECT relname::text FROM pg_class WHERE relnamespace::regnamespace::text = $1::text ORDER BY 1`, schema)}
		},
		"mysql":   onServer("mysql", testserver.OpenMySQL),
		"mariadb": onServer("mariadb", testserver.OpenMariaDB),
		"sqlite": func(t *testing.T) patient {
			dir := t.TempDir()
			return patient{"sqlite:" + filepath.Join(dir, "order.db"), func() (names []string) {
				for _, entry := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
					text := must[[]byte](t)(os.ReadFile(filepath.Join(dir, entry.Name())))
					names = append(names, fmt.Sprintf("%s %x", entry.Name(), sha256.Sum256(text)))
				}
				return names
			}}
		},
	}
}

// The same on databases: an empty one stays empty, one of before gets its migrations from serve, one of later is refused.
func TestTheDoctorLeavesADatabaseAsItIs(t *testing.T) {
	for name, open := range databasePatients() {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			args := []string{"--services", "order", "--databases", "order=" + p.address}
			change := func(statement string) {
				atDatabase(t, p.address, func(db *sql.DB, prefix string) {
					must[sql.Result](t)(db.ExecContext(t.Context(), strings.ReplaceAll(statement, "{}", prefix)))
				})
			}
			says(t, p.unchanged(t, 0, args...), "database of order", levelChange, "serve will make ")
			first, second := t.TempDir(), t.TempDir()
			startPlatform(t, first, args...).end(0)
			says(t, p.unchanged(t, 1, args...), "secrets", levelError, "tables of a platform: start it with that")
			for range 2 { // the second try finds nothing that the first has left
				refused(t, 1, []string{"tables of a platform", second, "--secrets FILE"}, append([]string{"serve", "--addr", "127.0.0.1:0", "--data", second}, args...)...)
			}
			args = append(args, "--secrets", filepath.Join(first, secretsFile))
			says(t, p.unchanged(t, 0, args...), "database of order", levelOK, "its tables are those of this version")
			change("DELETE FROM {}goose_order WHERE version_id > 0")
			says(t, p.unchanged(t, 0, args...), "database of order", levelChange, "serve will apply the migrations order 1")
			change("INSERT INTO {}goose_order (version_id, is_applied) VALUES (1000, TRUE)")
			says(t, p.unchanged(t, 1, args...), "database of order", levelError, "newer version")
		})
	}
}
