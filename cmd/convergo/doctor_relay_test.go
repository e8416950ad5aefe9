package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/convergo/convergo/testserver"
)

func TestTheDoctorOfPlatformsSaysWhoseSettingsTheseAreAndHowARelayIsLookedAt(t *testing.T) {
	for _, text := range []string{
		"database: postgres://shop:hunter2@db/shop\nbroker: nats://n1\npoll: 50ms\n", "database: sqlite:shop.db\nbroker: webhook:endpoints.yaml\n",
	} {
		says(t, findings(t, 1, "--config", configOf(t, text)), "settings", levelError, "if these are the settings of `convergo relay`, ask `convergo doctor --relay`")
	}
	found := findings(t, 1, "--database", "postgres://h/d?schema={service}", "--broker", "ftp://h")["settings"]
	if len(found) != 1 || strings.Contains(found[0].Detail, "--relay") {
		t.Errorf("a platform's settings: %v", found)
	}
	found = findings(t, 1, "--relay", "--database", "postgres://h/d?schema={service}", "--broker", "nats://n1")["settings"]
	if len(found) != 1 || !strings.Contains(found[0].Detail, "ask without --relay") {
		t.Errorf("a platform's settings, asked about as a relay's: %v", found)
	}
}

func TestTheDoctorLooksAtARelaysOutboxAndBrokerAndChangesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, &servers, "nats", testserver.OpenNATS)
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.db")
	relay := func(more string) []string {
		return []string{"--relay", "--config", configOf(t, "database: sqlite:"+file+"\nbroker: "+server.URL+"?prefix=shop&stream=SHOP\npoll: 50ms\nname: shop\n"+more)}
	}
	found := findings(t, 0, relay("")...)
	says(t, found, outboxSubject, levelChange, "is not there yet: the relay will make it")
	says(t, found, "broker", levelOK, "answers")
	says(t, found, "retention", levelOK, "replayable for 336h")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the doctor made the database: %v", err)
	}
	if len(found["secrets"]) > 0 {
		t.Errorf("a relay has no secrets: %v", found)
	}

	store, write := outboxIn(t, file)
	write("A")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	found = findings(t, 0, relay("keep-sent: 24h\n")...)
	says(t, found, outboxSubject, levelOK, "its tables are those of this version")
	says(t, found, "retention", levelWarning, "--keep-sent 24h0m0s is shorter than --keep-broker")

	says(t, findings(t, 1, append(relay(""), "--broker", "nats://127.0.0.1:1")...), "broker", levelError, "127.0.0.1:1")
	says(t, findings(t, 1, append(relay(""), "--unclaimed", "order")...), "settings", levelError, "--unclaimed")
	says(t, findings(t, 1, append(relay(""), "--broker", "embedded:")...), "settings", levelError, "a relay needs a broker that others can reach")
	says(t, findings(t, 1, "--relay"), "settings", levelError, "--database or --broker is empty")
	r := runProgram(t.Context(), append([]string{"doctor"}, append(relay(""), "--broker", "nats://127.0.0.1:1")...)...)
	if !strings.Contains(r.err.String(), "would keep the relay from running") {
		t.Errorf("says %s", r.err.String())
	}
}

func TestTheDoctorReadsARelaysEndpointsAndAsksNone(t *testing.T) {
	dir := t.TempDir()
	endpoints := filepath.Join(dir, "endpoints.yaml")
	text := "endpoints:\n  - name: shop\n    url: https://shop.example/hooks\n    secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]\n    disabled: true\n"
	if err := os.WriteFile(endpoints, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--relay", "--database", "sqlite:" + filepath.Join(dir, "shop.db"), "--broker", "webhook:" + endpoints, "--unclaimed", "order.*"}
	found := findings(t, 0, args...)
	says(t, found, "broker", levelOK, "its endpoints are not asked")
	says(t, found, "broker", levelWarning, "endpoint shop")
	says(t, found, "broker", levelWarning, "unclaimed (Config.Unclaimed) order.*")
}

// What convergo relay refuses to start with is a finding, in its words: nothing that it takes is left out.
func TestTheDoctorSaysOfARelaysSettingsWhatTheRelaySays(t *testing.T) {
	dir := t.TempDir()
	endpoints := filepath.Join(dir, "endpoints.yaml")
	if err := os.WriteFile(endpoints, []byte("endpoints:\n  - name: shop\n    url: https://shop.example/hooks\n    secrets: [whsec_short]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(more string) string {
		return configOf(t, "database: sqlite:"+filepath.Join(dir, "shop.db")+"\n"+more)
	}
	for more, subject := range map[string]string{
		"workers: 0": "settings", "batch: -1": "settings", "max-attempts: 0": "settings", "poll: 0s": "settings", "max-wait: -1h": "settings",
		"retry-base: 0s": "settings", "retry-cap: -1s": "settings", "lease: 0s": "settings", "ready-lag: 0s": "settings", "keep-sent: 0s": "settings",
		"keep-broker: 0s": "settings", "unclaimed: [order]": "settings", "addr: nowhere": "settings", "platform-id: two words": "settings",
		"broker: webhook:" + endpoints: "broker", "broker: webhook:" + dir + "/none.yaml": "broker", "broker: nats://h/?partition=8": "broker",
	} {
		if !strings.HasPrefix(more, "broker: ") {
			more += "\nbroker: nats://127.0.0.1:1\n"
		}
		relay := runProgram(t.Context(), "relay", "--config", with(more))
		said := strings.TrimSpace(strings.TrimPrefix(relay.err.String(), "convergo: "))
		found := findings(t, 1, "--relay", "--config", with(more))
		if relay.code == 0 || said == "" || !strings.HasSuffix(said, lastError(found[subject])) {
			t.Errorf("%q: relay (%d) says %q, the doctor %v", more, relay.code, said, found[subject])
		}
	}
}

func lastError(list []finding) string {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Level == levelError {
			return list[i].Detail
		}
	}
	return "no error"
}

func TestEverySettingOfARelayReachesTheCommandThatTheDoctorAsks(t *testing.T) {
	var cli commands
	parser, err := programParser(&cli, streams{}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"doctor", "--relay"}
	for _, node := range parser.Model.Children {
		if node.Name != "relay" {
			continue
		}
		for _, flag := range node.Flags {
			value := map[string]string{"config": "", "addr": "h:1", "log": "debug"}
			switch text, special := value[flag.Name]; {
			case flag.Name == "config":
			case special:
				args = append(args, "--"+flag.Name+"="+text)
			case flag.IsBool():
				args = append(args, "--"+flag.Name)
			case flag.Target.Kind() == reflect.Int:
				args = append(args, "--"+flag.Name+"=77")
			case flag.Target.Kind() == reflect.Int64: // a duration
				args = append(args, "--"+flag.Name+"=77h")
			default:
				args = append(args, "--"+flag.Name+"=given")
			}
		}
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	asked := cli.Doctor.relay()
	if _, err := parser.Parse(append([]string{"relay"}, args[2:]...)); err != nil {
		t.Fatal(err)
	}
	want := cli.Relay
	want.Config, asked.Config = kong.ConfigFlag(""), kong.ConfigFlag("")
	if !reflect.DeepEqual(asked, want) || len(args) < 18 {
		t.Errorf("%d arguments: the doctor asks of %+v, the relay runs with %+v", len(args), asked, want)
	}
}
