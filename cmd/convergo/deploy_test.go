package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	natsserver "github.com/nats-io/nats-server/v2/server"
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
				if args[0] == "relay" { // its addresses come from the environment
					args = append(args, "--database", "postgres://x/y", "--broker", "nats://x")
				}
				if err := understood(args); err != nil {
					t.Errorf("%s: %v: %v", name, args, err)
				}
				seen++
			}
		}
	}
	if seen != 6 { // three of each
		t.Errorf("%d commands found, want 6", seen)
	}
	if err := understood([]string{"serve", "--no-such-setting"}); err == nil {
		t.Error("a setting that does not exist was understood")
	}
}

func TestThePasswordsOfTheComposeFileStandOnNoCommandLine(t *testing.T) {
	text, err := os.ReadFile("../../deploy/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Command, Entrypoint any
			Healthcheck         any
			Environment         map[string]string
			Volumes             []string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for name, s := range file.Services {
		if words := fmt.Sprint(s.Command, s.Entrypoint, s.Healthcheck); strings.Contains(words, "PASSWORD") {
			t.Errorf("%s: who lists the processes reads a password: %s", name, words)
		}
	}
	s := file.Services["nats"]
	if want := []any{"--config", "/etc/convergo-nats.conf"}; !reflect.DeepEqual(s.Command, want) || !slices.Contains(s.Volumes, "./nats.conf:/etc/convergo-nats.conf:ro") {
		t.Errorf("the server is told %v and has %v", s.Command, s.Volumes)
	}
	// As Compose puts the password in, and as the server reads it: all of these are texts.
	for _, password := range []string{"s3cret", "1234", "12k", "true", "007"} {
		t.Setenv("NATS_PASSWORD", strings.Replace(s.Environment["NATS_PASSWORD"], "${CONVERGO_NATS_PASSWORD:?set it in deploy/.env}", password, 1))
		o, err := natsserver.ProcessConfigFile("../../deploy/nats.conf")
		if err != nil {
			t.Fatal(err)
		}
		if o.Username != "convergo" || o.Password != password || !o.JetStream || o.StoreDir != "/data" || o.HTTPPort != 8222 || o.Authorization != "" {
			t.Errorf("with %q the server reads %q, %q, JetStream %t in %q, HTTP at %d", password, o.Username, o.Password, o.JetStream, o.StoreDir, o.HTTPPort)
		}
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

// What the manifest may say, in Kubernetes' words: a field that is not here is a mistyped one until somebody has looked it up.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Data map[string]string
	Spec struct {
		Replicas int
		Selector map[string]any
		Ports    []struct{ Port int }
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
	}
}

type podSpec struct {
	Automount       *bool `yaml:"automountServiceAccountToken"`
	ServiceLinks    *bool `yaml:"enableServiceLinks"`
	Grace           int   `yaml:"terminationGracePeriodSeconds"`
	SecurityContext struct {
		NonRoot bool                  `yaml:"runAsNonRoot"`
		User    int                   `yaml:"runAsUser"`
		Group   int                   `yaml:"runAsGroup"`
		FSGroup int                   `yaml:"fsGroup"`
		Seccomp struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []container
	Volumes    []struct {
		Name      string
		ConfigMap *struct{ Name string } `yaml:"configMap"`
		Secret    *struct {
			Name string `yaml:"secretName"`
			Mode int    `yaml:"defaultMode"`
		}
		EmptyDir *struct{} `yaml:"emptyDir"`
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name      string
		ValueFrom struct {
			Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	EnvFrom []struct {
		Secret struct{ Name string } `yaml:"secretRef"`
	} `yaml:"envFrom"`
	Ports []struct {
		Port int `yaml:"containerPort"`
	}
	Startup         probe `yaml:"startupProbe"`
	Liveness        probe `yaml:"livenessProbe"`
	Readiness       probe `yaml:"readinessProbe"`
	Resources       struct{ Requests map[string]string }
	SecurityContext struct {
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities struct{ Drop []string }
	} `yaml:"securityContext"`
	Mounts []struct {
		Name string
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	Get struct {
		Path string
		Port int
	} `yaml:"httpGet"`
	Period   int `yaml:"periodSeconds"`
	TimeOut  int `yaml:"timeoutSeconds"`
	Failures int `yaml:"failureThreshold"`
}

func TestTheManifestAsksWhereTheProgramAnswersAndGivesItNoRights(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/convergo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pods := 0
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	for {
		var m manifest
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if m.Kind != "Deployment" {
			continue
		}
		pods++
		pod := m.Spec.Template.Spec
		c, s := pod.Containers[0], pod.SecurityContext
		port := c.Ports[0].Port
		for path, asked := range map[string]probe{"/healthz": c.Liveness, "/readyz": c.Readiness} {
			if asked.Get.Path != path || asked.Get.Port != port || c.Startup.Get.Path != "/healthz" || c.Startup.Get.Port != port {
				t.Errorf("%s: it listens on %d and is asked at %+v", m.Metadata.Name, port, asked.Get)
			}
		}
		if listens := ":" + strconv.Itoa(port); !strings.Contains(strings.Join(c.Args, " "), listens) && !strings.Contains(string(text), "addr: 0.0.0.0"+listens) {
			t.Errorf("%s: nobody listens on %d", m.Metadata.Name, port)
		}
		if !s.NonRoot || s.User == 0 || s.Seccomp.Type != "RuntimeDefault" || c.SecurityContext.Escalation == nil || *c.SecurityContext.Escalation ||
			!c.SecurityContext.ReadOnly || !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s has more rights than it needs: %+v %+v", m.Metadata.Name, s, c.SecurityContext)
		}
		var cli serveCommand
		if grace := time.Duration(pod.Grace) * time.Second; grace < 2*stopGraceOf(t, &cli) {
			t.Errorf("%s is killed after %v", m.Metadata.Name, grace)
		}
	}
	if pods != 3 {
		t.Errorf("%d deployments", pods)
	}
}

// stopGraceOf is how long a stop waits for requests unless somebody says otherwise.
func stopGraceOf(t *testing.T, c *serveCommand) time.Duration {
	t.Helper()
	parser, err := kong.New(c, helpTexts())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(nil); err != nil {
		t.Fatal(err)
	}
	return c.StopGrace
}
