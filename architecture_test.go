package convergo_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/convergo/convergo"

// engine is the rooms of the engine: they speak the vocabulary and know nobody else.
var engine = []string{"outbox", "relay", "inbox", "outside", "machine", "idempotency", "retain", "sqltext", "reconcile", "ops"}

// row is what the packages of a folder may import beside the standard library. Folders are relative to the module; "." is
// the vocabulary, "x/*" every folder directly below x. An import stands for itself and, for other modules, all below it.
type row struct {
	folders string   // separated by blanks
	ours    []string // folders of this module
	others  []string // other modules, or packages of them
}

// table is the house: who may import whom. Of two rows that fit a folder the first one counts. Test files are free: only
// cmd, drill and tests introduce people.
func table() []row {
	words := []string{"."}
	rooms := slices.Concat(words, engine)
	sql := slices.Concat(rooms, []string{"store/internal/stored", "store/internal/schema"}) // rules that hold on every SQL database
	web := []string{"github.com/danielgtaylor/huma/v2", "github.com/georgysavva/scany/v2", "github.com/google/uuid"}
	return []row{
		{".", nil, nil},
		{"outbox relay inbox outside machine idempotency retain sqltext reconcile ops", words, nil},

		{"store/storetest", rooms, []string{"pgregory.net/rapid"}},
		{"store/memory", rooms, nil},
		{"store/internal/stored", rooms, nil},
		{"store/internal/schema", nil, []string{"github.com/pressly/goose/v3"}},
		{"store/sqlite", sql, []string{"modernc.org/sqlite", "github.com/pressly/goose/v3"}},
		{"store/postgres", sql, []string{"github.com/jackc/pgx/v5", "github.com/pressly/goose/v3"}},
		{"store/mysql", sql, []string{"github.com/go-sql-driver/mysql", "github.com/pressly/goose/v3"}},

		{"broker/brokertest", rooms, nil},
		{"broker/memory broker/webhook", rooms, nil},
		{"broker/embedded", slices.Concat(rooms, []string{"broker/nats"}), []string{"github.com/gofrs/flock", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go"}},
		{"broker/nats", rooms, []string{"github.com/nats-io/nats.go"}},
		{"broker/kafka", rooms, []string{"github.com/twmb/franz-go"}},
		{"broker/rabbitmq", rooms, []string{"github.com/rabbitmq/amqp091-go"}},
		{"broker/redis", rooms, []string{"github.com/redis/go-redis/v9"}},
		{"broker/rocketmq", rooms, []string{"github.com/apache/rocketmq-client-go/v2"}},

		// The words of the platform, and those of the payment channels, which the payment service and the simulated outside
		// world share. A service knows no other service.
		{"trade", rooms, web},
		{"trade/channel", slices.Concat(words, []string{"trade"}), web},
		{"trade/payment", slices.Concat(rooms, []string{"trade", "trade/channel"}), web},
		{"trade/simulate", []string{".", "sqltext", "trade", "trade/channel"}, web},
		{"trade/tradetest", slices.Concat(rooms, []string{"trade", "store/sqlite", "store/postgres", "store/mysql", "testserver"}),
			slices.Concat(web, []string{"pgregory.net/rapid"})},
		{"trade/*", slices.Concat(rooms, []string{"trade"}), web},

		// The checker is a path of its own: nothing of ours, so that it cannot share a fault with what it checks.
		{"drill/check", nil, []string{"modernc.org/sqlite", "github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql"}},
		{"drill drill/*", []string{"*"}, []string{"*"}},
		{"testlog internal/freeport", nil, nil},
		{"testserver", []string{"internal/freeport"}, []string{"github.com/jackc/pgx/v5", "github.com/go-sql-driver/mysql", "github.com/twmb/franz-go",
			"github.com/rabbitmq/amqp091-go", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "github.com/redis/go-redis/v9",
			"github.com/apache/rocketmq-client-go/v2"}},
		{"console", []string{".", "ops"}, []string{"github.com/alexedwards/scs/v2", "github.com/coreos/go-oidc/v3", "golang.org/x/oauth2"}},
		{"cmd/*", []string{"*"}, []string{"*"}},
		{"bench", []string{"*"}, []string{"*"}},
		{"examples/transactions/* examples/transactions/ent/schema", []string{"*"}, []string{"*"}}, // some are modules of their own
	}
}

func TestEveryPackageKeepsToItsRowOfTheImportTable(t *testing.T) {
	for file, imports := range importsOfTheModule(t) {
		folder := path.Dir(file)
		r, ok := rowOf(folder)
		if !ok {
			t.Errorf("%s: the folder is in no row of the table: add one, with what it may import", folder)
			continue
		}
		for _, imported := range imports {
			if !r.allows(imported) {
				t.Errorf("%s imports %s, which the row of %s does not allow", file, imported, folder)
			}
		}
	}
}

func TestOnlyTheWiringNamesDrivers(t *testing.T) {
	for file, imports := range importsOfTheModule(t) {
		if !strings.HasPrefix(file, "cmd/convergo/") || strings.HasPrefix(path.Base(file), "wire") {
			continue
		}
		for _, imported := range imports {
			if strings.HasPrefix(imported, module+"/store/") || strings.HasPrefix(imported, module+"/broker/") {
				t.Errorf("%s imports %s: stores and brokers are named in cmd/convergo/wire*.go only", file, imported)
			}
		}
	}
}

func TestTheTableRefusesWhatItShould(t *testing.T) {
	for _, c := range []struct {
		folder, imported string
		allowed          bool
	}{
		{"outbox", module, true}, {"outbox", module + "/relay", false}, {"relay", "github.com/google/uuid", false},
		{"trade/order", module + "/trade", true}, {"trade/order", module + "/trade/payment", false},
		{"trade/order", module + "/store/sqlite", false}, {"trade/order", "modernc.org/sqlite", false},
		{"trade/payment", module + "/trade/channel", true}, {"trade/order", module + "/trade/channel", false},
		{"store/sqlite", module + "/store/internal/stored", true}, {"store/memory", module + "/store/internal/stored", false},
		{"store/sqlite", module + "/relay", true}, {"store/sqlite", module + "/broker/memory", false},
		{"broker/embedded", "github.com/nats-io/nats.go/jetstream", true}, {"broker/embedded", "github.com/nats-io/nats.going", false},
		{"drill/check", module + "/relay", false}, {"drill", module + "/relay", true}, {"drill", module + "/cmd/convergo", false}, {".", module + "/outbox", false},
	} {
		r, ok := rowOf(c.folder)
		if !ok || r.allows(c.imported) != c.allowed {
			t.Errorf("%s imports %s: allowed %v, want %v", c.folder, c.imported, !c.allowed, c.allowed)
		}
	}
	if _, ok := rowOf("helpers"); ok {
		t.Error("a folder that nobody knows has a row")
	}
}

func rowOf(folder string) (row, bool) {
	for _, r := range table() {
		for _, pattern := range strings.Fields(r.folders) {
			if fits, err := path.Match(pattern, folder); err == nil && fits {
				return r, true
			}
		}
	}
	return row{}, false
}

func (r row) allows(imported string) bool {
	if imported == module {
		return slices.Contains(r.ours, ".") || slices.Contains(r.ours, "*")
	}
	if ours, is := strings.CutPrefix(imported, module+"/"); is {
		everything := slices.Contains(r.ours, "*") && !strings.HasPrefix(ours, "cmd/") // nobody imports a program
		return slices.Contains(r.ours, ours) || everything
	}
	for _, other := range r.others {
		if other == "*" || imported == other || strings.HasPrefix(imported, other+"/") {
			return true
		}
	}
	return false
}

// importsOfTheModule is what each file that is no test imports from outside the standard library, by the file's path.
func importsOfTheModule(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, file := range sources(t, ".go") {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "bench/peers/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		all[file] = nil
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") {
				all[file] = append(all[file], imported)
			}
		}
	}
	return all
}

// sources is the files of the project whose names end in one of the endings, as slash-separated paths.
func sources(t *testing.T, endings ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			generated := filepath.ToSlash(file) == "examples/transactions/ent/ent" // by ent, to its taste
			if name := entry.Name(); generated || slices.Contains([]string{".git", "bin", "convergo-data", "testdata"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.ContainsFunc(endings, func(ending string) bool { return strings.HasSuffix(file, ending) }) {
			files = append(files, filepath.ToSlash(file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
