package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func configOf(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "convergo.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// effective is what `convergo config` prints.
func effective(t *testing.T, args ...string) map[string]any {
	t.Helper()
	r := runProgram(t.Context(), append([]string{"config"}, args...)...)
	if r.code != 0 {
		t.Fatalf("config %v: %s", args, r.err.String())
	}
	got := map[string]any{}
	if err := yaml.Unmarshal([]byte(r.out.String()), &got); err != nil {
		t.Fatalf("%v\n%s", err, r.out.String())
	}
	return got
}

func TestAFlagBeatsTheEnvironmentWhichBeatsTheFileWhichBeatsTheDefault(t *testing.T) {
	file := configOf(t, "lease: 5s\nretry-base: 2s\npayment-window: 10m\nservices: [order, payment]\nrate: 7\nlog-json: true\ndatabases:\n  order: sqlite:/x/order.db\n")
	t.Setenv("CONVERGO_RETRY_BASE", "3s")
	t.Setenv("CONVERGO_PAYMENT_WINDOW", "11m")
	got := effective(t, "--config", file, "--payment-window", "12m")
	for key, want := range map[string]any{"lease": "5s", "retry-base": "3s", "payment-window": "12m0s", "retry-cap": "1h0m0s", "rate": 7, "log-json": true} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if s := got["services"]; len(s.([]any)) != 2 || s.([]any)[1] != "payment" {
		t.Errorf("services: %v", s)
	}
	if d := got["databases"].(map[string]any); d["order"] != "sqlite:/x/order.db" {
		t.Errorf("databases: %v", d)
	}
}

func TestThePrintedSettingsAreAConfigurationFileThatMeansTheSame(t *testing.T) {
	first := runProgram(t.Context(), "config", "--lease", "9s", "--services", "order,risk", "--databases", "order=sqlite:/x/o.db")
	again := runProgram(t.Context(), "config", "--config", configOf(t, first.out.String()))
	if first.out.String() == "" || again.out.String() != first.out.String() {
		t.Errorf("%s\n%s\nthen\n%s", again.err.String(), first.out.String(), again.out.String())
	}
}

func TestNoSecretIsPrintedWhereverItStands(t *testing.T) {
	t.Setenv("SHOP_PASSWORD", "hunter2")
	file := configOf(t, "database: postgres://shop:${SHOP_PASSWORD}@db/convergo?schema={service}&sslpassword=hunter2\n"+
		"databases:\n  order: mysql://shop:hunter2@one,two/convergo_order\nbroker: nats://shop:hunter2@a:1,b:2/?token=hunter2\n")
	r := runProgram(t.Context(), "config", "--config", file)
	if strings.Contains(r.out.String()+r.err.String(), "hunter2") {
		t.Errorf("%s%s", r.out.String(), r.err.String())
	}
	for _, want := range []string{"shop:xxxxx@db/convergo", "schema={service}", "shop:xxxxx@one,two/convergo_order"} {
		if r.code == 0 && !strings.Contains(r.out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, r.out.String())
		}
	}
	for _, args := range [][]string{
		{"--database", "postgres://shop:hunter2@db:notaport/{service}"}, {"--database", "oracle://shop:hunter2@db/{service}"},
		{"--database", "postgres://shop:hunter2@db/convergo"}, {"--broker", "carrier-pigeon://shop:hunter2@loft"}, {"--broker", "nats://shop:hunter2@[::bad"},
		{"--peers", "order=http://shop:hunter2@host"}, {"--database", "postgres://shop:hunter2/1@db/{service}"},
		{"--database", "mysql://shop:hunter2?1@db/convergo_{service}"}, {"--broker", "nats://shop:hunter2#1@a:1"},
	} {
		r := runProgram(t.Context(), append([]string{"config"}, args...)...)
		if strings.Contains(r.out.String()+r.err.String(), "hunter2") {
			t.Errorf("%v: %s%s", args, r.out.String(), r.err.String())
		}
	}
}

func TestAConfigurationFileThatIsWrongIsRefusedWithTheReason(t *testing.T) {
	for text, says := range map[string]string{
		"colour: red\n":                      `"colour"`,
		"lease: [\n":                         "not valid",
		"lease: soon\n":                      "lease",
		"database: ${NO_SUCH_VARIABLE_HERE}": "${NO_SUCH_VARIABLE_HERE} is not in the environment",
		"databases: {orders: sqlite:/x}\n":   `no service "orders"`,
		"services: [order, order]\n":         "twice",
		"database: {order: x}\n":             "database wants one value",
		"rate: 1\n---\nrate: 2\n":            "second document",
		strings.Repeat("# \n", 1<<19):        "larger than",
		"config: other.yaml\n":               `"config"`,
		"servces: [order]\n":                 `"servces", which is no setting (did you mean "services"?)`,
		"- lease: 5s\n":                      "has no settings: each is a line KEY: VALUE",
		"order\n":                            "has no settings",
		"a: 1\na: 2\n":                       "not valid",
	} {
		file := configOf(t, text)
		r := runProgram(t.Context(), "config", "--config", file)
		ours := strings.Contains(says, "service") || says == "twice" || text == "lease: soon\n" // what a value is wrong for may stand elsewhere too
		if r.code != 2 || !strings.Contains(r.err.String(), says) || !ours && !strings.Contains(r.err.String(), file) {
			t.Errorf("%q: code %d, %q does not say %q", text, r.code, r.err.String(), says)
		}
	}
	r := runProgram(t.Context(), "config", "--config", "/no/such/file.yaml")
	if r.code == 0 || !strings.Contains(r.err.String(), "/no/such/file.yaml") {
		t.Errorf("%d: %s", r.code, r.err.String())
	}
}

// What the program refuses when it starts is refused here too, as far as nobody else has to be asked.
func TestConfigRefusesTheAddressesThatServeRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"broker: nats://a:1/?partition=8":                       "?partition is not understood; there are",
		"broker: kafka://a:1/?partitions=100":                   "?partitions=100: at most 64",
		"broker: redis://a:1/?partitions=0":                     "?partitions must be at least 1",
		"addr: 8080":                                            `--addr "8080" is not HOST:PORT`,
		"addr: 127.0.0.1:http-or-so":                            "is not HOST:PORT",
		"database: mysql://u@h/c_{service}?schema=x":            "?schema is not understood",
		"database: postgres://u@h/c?schema={service}&pool=many": "database of order: ?pool is not a number",
	} {
		for _, command := range []string{"config", "serve"} {
			r := runProgram(t.Context(), command, "--data", t.TempDir(), "--config", configOf(t, text))
			if r.code == 0 || !strings.Contains(r.err.String(), says) {
				t.Errorf("%s, %q: code %d, %q does not say %q", command, text, r.code, r.err.String(), says)
			}
		}
		found := findings(t, 1, "--config", configOf(t, text))["settings"]
		if len(found) != 1 || !strings.Contains(found[0].Detail, says) {
			t.Errorf("doctor, %q: %v does not say %q", text, found, says)
		}
	}
	if r := runProgram(t.Context(), "config", "--addr", ":http", "--broker", "nats://a:1,b:1/?partitions=64"); r.code != 0 {
		t.Errorf("what fits is refused: %s", r.err.String())
	}
}

func TestAMistypedVariableIsTold(t *testing.T) {
	t.Setenv("CONVERGO_PAYMENT_WINDOWS", "5m")
	t.Setenv("CONVERGO_DB_HOST", "db")
	t.Setenv("CONVERGO_QUITE_OTHER", "x")
	t.Setenv("CONVERGO_DB_PASSWORD", "hunter2") // for ${…} of a file
	t.Setenv("CONVERGO_PORT_8080_TCP_ADDR", "10.1.2.3")
	t.Setenv("CONVERGO_LEASE", "9s")
	r := runProgram(t.Context(), "config", "--config", configOf(t, "public-url: http://${CONVERGO_DB_HOST}\n"))
	want := `convergo: the environment has CONVERGO_PAYMENT_WINDOWS, which is no setting (did you mean "CONVERGO_PAYMENT_WINDOW"?): it is not used
convergo: the environment has CONVERGO_QUITE_OTHER, which is no setting: it is not used
`
	if r.code != 0 || r.err.String() != want {
		t.Errorf("%d: %s", r.code, r.err.String())
	}
	if r := runProgram(t.Context(), "version"); r.err.String() != "" {
		t.Errorf("version says %s", r.err.String())
	}
}
