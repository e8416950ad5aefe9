package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/convergo/convergo/testserver"
)

// PostgreSQL's own tools write postgresql:// and take postgres://; so does every command here, wherever the address stands.
func TestPostgresqlIsTakenForPostgresByEveryCommand(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
	address := strings.Replace(server.TCP(must[string](t)(server.Database("named")), "disable"), "postgres://", "postgresql://", 1) + "&schema=order"
	service := []string{"--services", "order", "--databases", "order=" + address}

	says(t, findings(t, 0, service...), "database of order", levelChange, "empty: serve will make its tables")
	if used, err := isUsed(t.Context(), address); used || err != nil {
		t.Errorf("used %v, %v", used, err)
	}
	dir := t.TempDir()
	startPlatform(t, dir, service...).end(0)
	service = append(service, "--secrets", filepath.Join(dir, secretsFile))
	says(t, findings(t, 0, service...), "database of order", levelOK, "its tables are those of this version")
	if err := poison(t.Context(), address, 1); err != nil {
		t.Error(err)
	}
	if used, err := isUsed(t.Context(), address); !used || err != nil {
		t.Errorf("used %v, %v", used, err)
	}
	for _, args := range [][]string{
		append([]string{"replay", "--since", "1h", "--data", dir}, service[:4]...),
		{"replay", "--since", "1h", "--outbox", address},
		{"dead", "list", "--database", address},
		{"dead", "list", "--service", "order", "--databases", "order=" + address},
		{"dead", "list", "--config", configOf(t, "database: "+address+"\n")},
	} {
		if r := runProgram(t.Context(), args...); r.code != 0 {
			t.Errorf("%v: %d: %s", args, r.code, r.err.String())
		}
	}
	refused(t, 1, []string{"broker redis://127.0.0.1:1"}, "relay", "--database", address, "--broker", "redis://127.0.0.1:1")
}

func TestNoSecretOfAPostgresqlAddressIsShown(t *testing.T) {
	const address = "postgresql://shop:hunter2@h/d?schema={service}&sslpassword=hunter3"
	t.Setenv("CONVERGO_DATABASE", address)
	for _, args := range [][]string{{}, {"--database", address}, {"--config", configOf(t, "database: "+address+"\n")}} {
		r := runProgram(t.Context(), append([]string{"config"}, args...)...)
		if shown := r.out.String(); r.code != 0 || !strings.Contains(shown, "postgres://shop:xxxxx@h/d?schema={service}&sslpassword=xxxxx") {
			t.Errorf("%v: %d: %s%s", args, r.code, shown, r.err.String())
		}
	}
	refused(t, 2, []string{`postgresql:`, "%2F"}, "config", "--database", "postgresql://shop:hun/ter2@h/d?schema={service}")
	refused(t, 2, []string{"postgres://h/d?sslpassword=xxxxx", "{service}"}, "config", "--database", "postgresql://h/d?sslpassword=hunter3")
}
