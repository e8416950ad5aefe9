package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/convergo/convergo/testserver"
)

// findings are what the doctor says, by subject.
func findings(t *testing.T, code int, args ...string) map[string][]finding {
	t.Helper()
	r := runProgram(t.Context(), append([]string{"doctor", "--json", "--data", t.TempDir()}, args...)...)
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(r.out.String()), &report); err != nil || r.code != code {
		t.Fatalf("%v: exit code %d, want %d, %v\n%s%s", args, r.code, code, err, r.out.String(), r.err.String())
	}
	if strings.Contains(r.out.String()+r.err.String(), "hunter2") {
		t.Errorf("%v: the password is shown: %s", args, r.out.String())
	}
	found := map[string][]finding{}
	for _, f := range report.Findings {
		found[f.Subject] = append(found[f.Subject], f)
	}
	return found
}

// says tells whether a finding of the subject has the level and says the words.
func says(t *testing.T, found map[string][]finding, subject, level, words string) {
	t.Helper()
	for _, f := range found[subject] {
		if f.Level == level && strings.Contains(f.Detail, words) {
			return
		}
	}
	t.Errorf("%s: no %s that says %q in %v", subject, level, words, found[subject])
}

func TestTheDoctorFindsNothingWrongWithNothingSetUp(t *testing.T) {
	t.Parallel()
	for subject, list := range findings(t, 0) {
		for _, f := range list {
			if f.Level != levelOK && !(f.Level == levelChange && strings.Contains(f.Detail, "not there yet: serve will make it")) {
				t.Errorf("%s: %+v", subject, f)
			}
		}
	}
}

func TestTheDoctorTellsWhatWouldKeepThePlatformFromRunning(t *testing.T) {
	t.Parallel()
	found := findings(t, 1, "--database", "postgres://shop:hunter2@127.0.0.1:1/convergo?schema={service}&connect_timeout=1",
		"--broker", "redis://:hunter2@127.0.0.1:1", "--services", "order", "--lease", "1s", "--keep-sent", "1h")
	says(t, found, "database of order", levelError, "does not answer")
	says(t, found, "broker", levelError, "127.0.0.1:1")
	says(t, found, "settings", levelWarning, "--world")
	says(t, found, "leases", levelWarning, "--lease 1s")
	says(t, found, "retention", levelWarning, "--keep-sent")
	says(t, findings(t, 1, "--keep-inbox", "1h"), "settings", levelError, "--keep-inbox")
}

func TestTheDoctorLooksAtADatabaseBeforeAndAfterItsFirstStart(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
	address := server.TCP("postgres", "disable") + "&schema=" + server.Name("doctor")
	args := []string{"--services", "order", "--databases", "order=" + address}
	says(t, findings(t, 0, args...), "database of order", levelChange, "empty: serve will make its tables")
	store, err := openStore(t.Context(), "order", address, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	found := findings(t, 0, args...)
	says(t, found, "database of order", levelOK, "PostgreSQL")
	says(t, found, "database of order", levelOK, "durable")
}

func TestTheDoctorSaysOnceWhatToDoAboutAPassword(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, &servers, "postgres", testserver.OpenDefaultPostgres)
	role := server.Name("role")
	address := strings.Replace(server.TCP("postgres", "disable"), "//postgres:", "//"+role+":", 1) + "&schema={service}"
	r := runProgram(t.Context(), "doctor", "--data", t.TempDir(), "--database", address)
	lines := strings.Split(r.out.String(), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, "the role or its password is wrong") })
	if len(lines) != 1 || !strings.Contains(lines[0], "databases of order, payment") {
		t.Errorf("%d: %s", r.code, r.out.String())
	}
}

func TestTheDoctorSaysWhoElseCanReadTheSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, secretsFile)
	r := runProgram(t.Context(), "secrets", "--data", dir)
	if r.code != 0 {
		t.Fatal(r.out.String(), r.err.String())
	}
	for mode, level := range map[fs.FileMode]string{
		0o600: levelOK, 0o400: levelOK, 0o440: levelOK, 0o640: levelOK, 0o660: levelWarning, 0o644: levelWarning, 0o604: levelWarning,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		says(t, findings(t, 0, "--secrets", path), "secrets", level, "secrets.json")
	}
}
