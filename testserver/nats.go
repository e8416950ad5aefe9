package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo/internal/freeport"
)

// NATS is one JetStream server, or a cluster of several, each a process of its own on 127.0.0.1. Clients need the user
// "convergo" and the password "secret", both part of URL.
type NATS struct {
	Nodes []*NATSNode
	// URL of all nodes, separated by commas.
	URL string
	dir string
}

// NATSNode is one server process.
type NATSNode struct {
	*Process
	URL     string // with user and password
	Monitor string // URL of its monitoring port
}

// OpenNATS starts one server that syncs every write.
func OpenNATS() (*NATS, error) { return openNATS(1, "") }

// OpenNATSWith starts one server that has these lines in its configuration, too.
func OpenNATSWith(lines ...string) func() (*NATS, error) {
	return func() (*NATS, error) { return openNATS(1, strings.Join(lines, "\n")+"\n") }
}

// OpenNATSCluster starts three servers that sync every write.
func OpenNATSCluster() (*NATS, error) { return openNATS(3, "") }

func openNATS(nodes int, lines string) (s *NATS, err error) {
	program, err := natsProgram()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	dir, err := Folder("nats")
	if err != nil {
		return nil, err
	}
	s = &NATS{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var routes, urls []string
	configs := make([]natsConfig, nodes)
	for i := range configs {
		c := &configs[i]
		c.name, c.dir = fmt.Sprint("n", i+1), dir
		for _, port := range []*int{&c.client, &c.monitor, &c.cluster} {
			if *port, err = freeport.Next(); err != nil {
				return nil, err
			}
		}
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", c.cluster))
		urls = append(urls, c.url())
	}
	s.URL = strings.Join(urls, ",")
	for _, c := range configs {
		file := filepath.Join(dir, c.name+".conf")
		if err := os.WriteFile(file, []byte(c.text(routes)+lines), 0o600); err != nil {
			return nil, err
		}
		process, err := start(dir, c.name, Command{Path: program, Args: []string{"--config", file}})
		if err != nil {
			return nil, err
		}
		s.Nodes = append(s.Nodes, &NATSNode{Process: process, URL: c.url(), Monitor: fmt.Sprintf("http://127.0.0.1:%d", c.monitor)})
	}
	return s, s.Ready()
}

type natsConfig struct {
	name, dir                string
	client, monitor, cluster int // ports
}

func (c natsConfig) url() string { return fmt.Sprintf("nats://convergo:secret@127.0.0.1:%d", c.client) }

func (c natsConfig) text(routes []string) string {
	text := fmt.Sprintf(`
server_name: %[1]s
listen: "127.0.0.1:%[2]d"
http: "127.0.0.1:%[3]d"
jetstream { store_dir: %[4]q, sync_interval: always }
authorization { user: convergo, password: secret }
`, c.name, c.client, c.monitor, filepath.Join(c.dir, c.name))
	if len(routes) > 1 {
		text += fmt.Sprintf("cluster { name: test, listen: \"127.0.0.1:%d\", routes: [%s] }\n", c.cluster, strings.Join(routes, ", "))
	}
	return text
}

// natsProgram is the server's program, built once per version from the module that this project depends on anyway.
func natsProgram() (string, error) {
	const module = "github.com/nats-io/nats-server/v2"
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("the go command is needed to build it: %w: %w", ErrMissing, err)
	}
	folder := filepath.Join(cache, "convergo", "servers", "nats")
	if root := os.Getenv("CONVERGO_SERVERS"); root != "" {
		folder = filepath.Join(root, "nats")
	}
	program := filepath.Join(folder, "nats-server-"+strings.TrimSpace(string(version)))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// Another test binary may build it at the same time: each writes a file of its own, and a rename is all or nothing.
	fresh := fmt.Sprintf("%s.%d", program, os.Getpid())
	if output, err := exec.Command("go", "build", "-o", fresh, module).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", module, err, output)
	}
	return program, os.Rename(fresh, program)
}

// Ready waits until every node that runs can be used, and the cluster can store.
func (s *NATS) Ready() error {
	for _, n := range s.Nodes {
		if ended, _ := n.Ended(); ended {
			continue
		}
		if err := n.Await(30*time.Second, n.usable); err != nil {
			return err
		}
	}
	return nil
}

// usable asks for what needs a leader: the account's streams, and in a cluster a quorum of servers.
func (n *NATSNode) usable() error {
	conn, err := nats.Connect(n.URL, nats.NoReconnect(), nats.Timeout(time.Second))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	names := js.StreamNames(ctx)
	for range names.Name() {
	}
	return names.Err()
}

// Close ends all nodes and removes their folder.
func (s *NATS) Close() error {
	var failures []error
	for _, n := range s.Nodes {
		failures = append(failures, n.Stop(syscall.SIGTERM, 5*time.Second))
	}
	return errors.Join(append(failures, os.RemoveAll(s.dir))...)
}
