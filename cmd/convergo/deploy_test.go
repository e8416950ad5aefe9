package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// commandsIn are the argument lists in a tree of YAML that begin with serve or relay.
func commandsIn(node any) (found [][]string) {
	switch v := node.(type) {
	case map[string]any:
		for _, inner := range v {
			found = append(found, commandsIn(inner)...)
		}
	case []any:
		var words []string
		for _, inner := range v {
			if word, ok := inner.(string); ok {
				words = append(words, word)
			}
			found = append(found, commandsIn(inner)...)
		}
		if len(words) > 0 && len(words) == len(v) && (words[0] == "serve" || words[0] == "relay") {
			found = append(found, words)
		}
	}
	return found
}

// understood parses a command line as the program does, and runs nothing.
func understood(args []string) error {
	var cli commands
	parser, err := programParser(&cli, streams{out: io.Discard, err: io.Discard}, func(int) {})
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err == nil && parsed.Command() == "serve" {
		err = cli.Serve.validate()
	}
	return err
}

func TestTheDeploymentFilesUseSettingsThatExist(t *testing.T) {
	t.Setenv("CONVERGO_DB_PASSWORD", "p")
	t.Setenv("CONVERGO_NATS_PASSWORD", "p")
	inCluster := ""
	seen := 0
	for _, name := range []string{"compose.yaml", "kubernetes/convergo.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var document map[string]any
			if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if data, ok := document["data"].(map[string]any); ok {
				inCluster = configOf(t, data["convergo.yaml"].(string))
			}
			for _, args := range commandsIn(document) {
				for i, arg := range args {
					switch arg {
					case "/etc/convergo.yaml":
						args[i] = "../../deploy/convergo.yaml"
					case "/etc/convergo/convergo.yaml":
						args[i] = inCluster
					}
				}
				if args[0] == "relay" && name != "compose.yaml" { // its addresses come from a secret
					args = append(args, "--database", "postgres://x/y", "--broker", "nats://x")
				}
				if err := understood(args); err != nil {
					t.Errorf("%s: %v: %v", name, args, err)
				}
				seen++
			}
		}
	}
	if seen != 6 {
		t.Errorf("%d commands found, want 6", seen)
	}
	if err := understood([]string{"serve", "--no-such-setting"}); err == nil {
		t.Error("a setting that does not exist was understood")
	}
}

func TestTheUnitsRunCommandsThatExist(t *testing.T) {
	for _, name := range []string{"convergo@.service", "convergo-relay@.service"} {
		text, err := os.ReadFile(filepath.Join("../../deploy/systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		_, after, ok := strings.Cut(string(text), "ExecStart=/usr/local/bin/convergo ")
		line, _, _ := strings.Cut(after, "\n")
		if !ok || line == "" {
			t.Fatalf("%s starts nothing", name)
		}
		line = strings.NewReplacer("/etc/convergo/convergo.yaml", configOf(t, "log: warn\n"), "${CREDENTIALS_DIRECTORY}", t.TempDir(), "%i", "order").Replace(line)
		args := strings.Fields(line)
		if args[0] == "relay" {
			args = append(args, "--database", "postgres://x/y", "--broker", "nats://x")
		}
		if err := understood(args); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheProgramIsStaticWithoutACompilerForC(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	f, err := elf.Open(programFile(t)) // built without cgo
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 || f.Section(".interp") != nil {
		t.Errorf("it needs %v, %v", libraries, err)
	}
}
