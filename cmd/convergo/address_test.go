package main

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestAnAddressIsTakenAsItStandsOrRefused(t *testing.T) {
	for address, says := range map[string]string{
		"nats://h:1/?partitions=0":                "?partitions must be at least 1",
		"nats://h:1/?partitions=":                 "?partitions is not a number",
		"nats://h:1/?partitions=-1":               "?partitions is not a number",
		"kafka://h:1/?replicas=0":                 "?replicas must be at least 1",
		"kafka://h:1/?max_message=0":              "?max_message must be at least 1",
		"rocketmq://h:1/?partitions=0":            "?partitions must be at least 1",
		"amqp://h:1/?partitions=0":                "?partitions must be at least 1",
		"redis://h:1/?partitions=0":               "?partitions must be at least 1",
		"redis://h:1/?db=x":                       "?db is not a number",
		"redis://h:1/?lease=":                     "?lease is not a duration",
		"amqp://h:1/?classic":                     "?classic is neither true nor false",
		"nats://h:1/?partitions=4&partitions=8":   "?partitions stands there 2 times",
		"nats://h:1/?token=hunter2&token=hunter3": "?token stands there 2 times",
		"nats://h:1/?token=hunter2;partitions=8":  "%3B",
		"nats://h:1/?token=%zz":                   "%25",
	} {
		_, err := connectBroker(t.Context(), address, brokerOptions{})
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for address, says := range map[string]string{
		"postgres://h/d?pool=0": "?pool must be at least 1", "mysql://h/d?pool=0": "?pool must be at least 1",
		"postgres://h/d?schema=a&schema=b": "?schema stands there 2 times", "mysql://h/d?tls=true&tls=false": "?tls stands there 2 times",
	} {
		if _, err := openStore(t.Context(), "order", address, nil, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", address, err)
		}
	}
	a, err := parseAddress("redis://h:1/?db=0")
	if err != nil {
		t.Fatal(err)
	}
	if q, err := queryOf(a); err != nil || q.number("db") != 0 || q.end() != nil { // so are no replicas
		t.Errorf("the first database of Redis: %v", err)
	}
	if shown := redacted("nats://h:1/?partitions=8&token=hun;ter2"); strings.Contains(shown, "ter2") || strings.Contains(shown, "hun") {
		t.Errorf("a query that cannot be read is shown: %s", shown)
	}
}

func TestAHostWithoutAPortIsAskedAtTheBrokersOwn(t *testing.T) {
	t.Parallel()
	for address, at := range map[string]string{
		"amqp://nowhere.invalid": "connect to nowhere.invalid:5672:", "amqp://nowhere.invalid/?tls=true": "connect to nowhere.invalid:5671:",
		"rocketmq://nowhere.invalid": "nowhere.invalid:9876:", "redis://nowhere.invalid": "at nowhere.invalid:6379:",
		"amqp://127.0.0.1:1,nowhere.invalid": "connect to nowhere.invalid:5672:",
	} {
		_, err := connectBroker(t.Context(), address, brokerOptions{log: discarded()})
		if err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if a, err := parseAddress("amqp://[::1],[::1]:7/"); err != nil || !slices.Equal(a.servers("5672"), []string{"[::1]:5672", "[::1]:7"}) {
		t.Errorf("%v, %v", a.servers("5672"), err)
	}
	for address, says := range map[string]string{
		"mysql://a,b/d": "several hosts", "redis://a,b": "?primary=NAME", "redis://app@a": "without a password", "kafka://app:hunter2@a": "?sasl",
		"kafka://a/?sasl=plain": "USER:PASSWORD", "redis:/a:1": "must stand '//'", "nats:a": "must stand '//'", "mysql:/u:hunter2@a/b": "must stand '//'",
		"nats://a?token=a#hunter2": "write %23",
	} {
		var err error
		if schemeOf(address) == "mysql" {
			err = checkDatabase(address)
		} else {
			_, err = connectBroker(t.Context(), address, brokerOptions{read: true})
		}
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s is read as if half of it did not stand there: %v", address, err)
		}
	}
}

// What people paste first is what their driver reads.
func TestNoPasswordOfAnAddressThatIsNoURLIsShown(t *testing.T) {
	for _, address := range []string{
		"con:hunter2@tcp(127.0.0.1:3306)/db_order", "host=127.0.0.1 user=u password=hunter2 dbname=x", "hunter2@/x", "hunter2@nats.example", "hunter2@nats.example:4222", "hunter2@nats://h", "con:hunter2",
		"mysql://con:hunter%te2@h/x", "oracle://u:hunter2@h/x", "redis://hunter2@h:1",
		"mysql://con:hunter2", "mysql://con:hunter2/shop", "postgresql://con:hunter2/shop?sslmode=disable", "redis://:hunter2", "kafka://con:hunter2,other:9092",
		"mysql:/con:hunter2@h/x", "postgres:con:hunter2@h/x", "postgres:/con:hunt%zzer2@h/x", "mysql:/con:a://hunter2@h/x", "postgres://u:a]hunter2",
		"postgres://h/x?sslpassword=a#hunter2", "mysql://con:a@h/x#hunter2", "mysql://h/x?password=a#hunter2",
	} {
		plain := !strings.ContainsAny(address, "@=/ ") // as a host and its port are, which other settings have
		if shown := redacted(address); !plain && strings.Contains(shown, "hunter") || strings.Contains(shown, "te2") {
			t.Errorf("%s is shown as %s", address, shown)
		}
		for _, args := range [][]string{
			{"config", "--database", address}, {"serve", "--data", t.TempDir(), "--database", address}, {"doctor", "--database", address},
			{"relay", "--database", address, "--broker", "redis://127.0.0.1:1"}, {"dead", "list", "--database", address},
			{"serve", "--data", t.TempDir(), "--broker", address}, {"config", "--broker", address}, {"doctor", "--data", t.TempDir(), "--broker", address},
			{"relay", "--database", "sqlite:" + filepath.Join(t.TempDir(), "shop.db"), "--broker", address},
		} {
			r := runProgram(t.Context(), args...)
			if said := r.out.String() + r.err.String(); r.code == 0 || strings.Contains(said, "hunter") || strings.Contains(said, "%te") {
				t.Errorf("%v: %d %s", args[0], r.code, said)
			}
		}
	}
}

// A ';' separates the addresses of --databases. In a password it is written %3B, or \; as everywhere between names.
func TestAPasswordMayHaveASemicolon(t *testing.T) {
	const value = `order=postgres://shop:a%3Bb%3D1@db/convergo?schema=order;payment=mysql://shop:a\;b=1@db/convergo_payment`
	databases := func(from string, args ...string) map[string]string {
		var cli commands
		parser, err := programParser(&cli, streams{out: io.Discard, err: io.Discard}, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"serve"}, args...)); err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		return cli.Serve.Databases
	}
	given := map[string]map[string]string{
		"flag":  databases("flag", "--databases", value),
		"flags": databases("flags", "--databases", strings.Split(value, ";payment")[0], "--databases", "payment"+strings.Split(value, ";payment")[1]),
		"file": databases("file", "--config", configOf(t, "databases:\n  order: postgres://shop:a%3Bb%3D1@db/convergo?schema=order\n"+
			"  payment: mysql://shop:a;b=1@db/convergo_payment\n")),
	}
	t.Setenv("CONVERGO_DATABASES", value)
	given["environment"] = databases("environment")
	for from, all := range given {
		if len(all) != 2 {
			t.Errorf("%s: %q", from, all)
			continue
		}
		a, err := parseAddress(all["order"])
		if err != nil {
			t.Fatal(err)
		}
		if _, password := a.account(); password != "a;b=1" {
			t.Errorf("%s: the password of PostgreSQL is %q", from, password)
		}
		dsn, _, _, err := postgresDSN(a)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := pgx.ParseConfig(dsn); err != nil || cfg.Password != "a;b=1" {
			t.Errorf("%s: what the driver of PostgreSQL understands is %v", from, err)
		}
		if a, err = parseAddress(all["payment"]); err != nil {
			t.Fatal(err)
		}
		if cfg, _, err := mysqlConfig(a); err != nil || cfg.Passwd != "a;b=1" {
			t.Errorf("%s: what the driver of MySQL understands is %v", from, err)
		}
	}
}

// The commands of --disturb are given one by one: their semicolons are the shell's.
func TestACommandMayHaveASemicolon(t *testing.T) {
	var cli commands
	parser, err := programParser(&cli, streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"demo", "--disturb", "a=sleep 1; b=2 true", "--disturb", "c=d"}); err != nil {
		t.Fatal(err)
	}
	if d := cli.Demo.Disturb; len(d) != 2 || d["a"] != "sleep 1; b=2 true" || d["c"] != "d" {
		t.Errorf("%q", d)
	}
}

func TestHalfAPasswordIsNotShownWhenASemicolonSplitsIt(t *testing.T) {
	for _, value := range []string{
		"order=postgres://shop:a;hunter2@db/convergo", "order=postgres://shop:a;hunter2=b@db/convergo", "order=sqlite:/x;hunter2", "hunter2",
		"order=postgres://shop:a;order=hunter2@db/convergo",
	} {
		r := runProgram(t.Context(), "config", "--databases", value)
		if r.code == 0 || strings.Contains(r.err.String(), "hunter2") {
			t.Errorf("%s: %d: %s", value, r.code, r.err.String())
		}
	}
	r := runProgram(t.Context(), "config", "--databases", "order=sqlite:/x;hunter2")
	if !strings.Contains(r.err.String(), "part 2") || !strings.Contains(r.err.String(), "%3B") {
		t.Error(r.err.String())
	}
}
