package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
