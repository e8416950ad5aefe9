package testserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo/internal/freeport"
)

// rabbitScripts is where Debian puts the scripts that do not insist on one user and one data folder.
const rabbitScripts = "/usr/lib/rabbitmq/bin"

// RabbitMQ is a node of its own, with its own port mapper, cookie and user. It listens on 127.0.0.1 only.
type RabbitMQ struct {
	*Process
	Addr     string // host:port of AMQP
	TLSAddr  string // host:port of AMQP with TLS, with a certificate for 127.0.0.1 that Roots verifies
	Roots    *x509.CertPool
	User     string // an administrator
	Password string

	dir    string
	env    []string
	mapper *Process
	vhosts atomic.Int64
}

// OpenRabbitMQ starts a node and waits until it answers to its own user. Lines are added to its rabbitmq.conf.
func OpenRabbitMQ(lines ...string) (*RabbitMQ, error) {
	for _, program := range []string{filepath.Join(rabbitScripts, "rabbitmq-server"), filepath.Join(rabbitScripts, "rabbitmqctl")} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("rabbitmq: %s: %w", program, ErrMissing)
		}
	}
	mapper, err := exec.LookPath("epmd")
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: epmd of Erlang: %w", ErrMissing)
	}
	dir, err := Folder("rabbitmq")
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{dir: dir, User: "tester"}
	if err := r.open(mapper, lines); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *RabbitMQ) open(mapper string, lines []string) error {
	var ports [4]int
	for i := range ports {
		var err error
		if ports[i], err = freeport.Next(); err != nil {
			return err
		}
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	r.Addr, r.Password = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])), hex.EncodeToString(secret)
	r.TLSAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[3]))
	if err := r.certify(); err != nil {
		return err
	}
	if err := r.write(ports, lines); err != nil {
		return err
	}
	// Erlang's port mapper would stay behind as a daemon of the machine: this one is ours and ends with us.
	var err error
	r.mapper, err = start(r.dir, "epmd", Command{
		Path: mapper, Args: []string{"-port", strconv.Itoa(ports[2]), "-address", "127.0.0.1"}, Env: r.env,
	})
	if err != nil {
		return err
	}
	r.Process, err = start(r.dir, "rabbitmq", Command{Path: filepath.Join(rabbitScripts, "rabbitmq-server"), Env: r.env})
	if err != nil {
		return err
	}
	return r.Ready()
}

// write makes the node's folder: configuration, cookie, environment.
func (r *RabbitMQ) write(ports [4]int, lines []string) error {
	conf := slices.Concat([]string{
		"listeners.tcp.1 = " + r.Addr, "listeners.ssl.1 = " + r.TLSAddr, "ssl_options.certfile = " + filepath.Join(r.dir, "cert.pem"),
		"ssl_options.keyfile = " + filepath.Join(r.dir, "key.pem"), "ssl_options.cacertfile = " + filepath.Join(r.dir, "cert.pem"),
		"ssl_options.verify = verify_none",
		"default_user = " + r.User, "default_pass = " + r.Password,
		"disk_free_limit.absolute = 50MB", "collect_statistics_interval = 60000",
	}, lines)
	files := map[string]string{
		"rabbitmq.conf": strings.Join(conf, "\n") + "\n", "rabbitmq-env.conf": "", ".erlang.cookie": r.Password,
		"enabled_plugins": "[rabbitmq_auth_mechanism_ssl].\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o400); err != nil {
			return err
		}
	}
	r.env = []string{
		"HOME=" + r.dir, "ERL_EPMD_PORT=" + strconv.Itoa(ports[2]), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=convergo" + r.Password[:8] + "@localhost", "RABBITMQ_DIST_PORT=" + strconv.Itoa(ports[1]),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(r.dir, "data"), "RABBITMQ_LOG_BASE=" + filepath.Join(r.dir, "log"),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(r.dir, "rabbitmq.conf"), "RABBITMQ_CONF_ENV_FILE=" + filepath.Join(r.dir, "rabbitmq-env.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(r.dir, "enabled_plugins"),
		"RABBITMQ_PLUGINS_EXPAND_DIR=" + filepath.Join(r.dir, "plugins"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
		// The script then becomes the server instead of watching over it, so that what ends the one ends the other.
		"RUNNING_UNDER_SYSTEMD=true", "LANG=C.UTF-8",
	}
	return nil
}

// certify makes a certificate that signs itself.
func (r *RabbitMQ) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "convergo test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	r.Roots = x509.NewCertPool()
	r.Roots.AppendCertsFromPEM(certPEM)
	return errors.Join(
		os.WriteFile(filepath.Join(r.dir, "cert.pem"), certPEM, 0o400),
		os.WriteFile(filepath.Join(r.dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o400))
}

// Ready waits until the node answers to its user, for example after Start.
func (r *RabbitMQ) Ready() error {
	return r.Await(90*time.Second, func() error {
		conn, err := r.Dial("/")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// Dial opens a plain connection as the administrator.
func (r *RabbitMQ) Dial(vhost string) (*amqp.Connection, error) {
	return amqp.DialConfig("amqp://"+r.Addr, amqp.Config{
		Vhost: vhost, SASL: []amqp.Authentication{&amqp.PlainAuth{Username: r.User, Password: r.Password}}, Heartbeat: 10 * time.Second,
		Dial: amqp.DefaultDial(10 * time.Second),
	})
}

// Prefix is a name that no other test of this server has, for exchanges and queues.
func (r *RabbitMQ) Prefix() string { return fmt.Sprintf("t%d.", r.vhosts.Add(1)) }

// Control runs rabbitmqctl on the node and returns what it prints. It takes a second or two.
func (r *RabbitMQ) Control(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(rabbitScripts, "rabbitmqctl"), append([]string{"-q"}, args...)...)
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Dir = r.dir
	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w: %s", args[0], err, output)
	}
	return strings.TrimSpace(string(output)), nil
}

// Restart stops the node as a clean shutdown does and starts it again.
func (r *RabbitMQ) Restart() error {
	if err := r.Stop(syscall.SIGTERM, time.Minute); err != nil {
		return err
	}
	return r.again()
}

// Crash ends the node with SIGKILL and starts it again.
func (r *RabbitMQ) Crash() error {
	if err := r.Kill(); err != nil {
		return err
	}
	return r.again()
}

func (r *RabbitMQ) again() error {
	if err := r.Start(); err != nil {
		return err
	}
	return r.Ready()
}

// Close ends the node and its port mapper and removes the folder.
func (r *RabbitMQ) Close() error {
	var errs []error
	if r.Process != nil {
		errs = append(errs, r.Kill())
	}
	if r.mapper != nil {
		errs = append(errs, r.mapper.Kill())
	}
	return errors.Join(append(errs, os.RemoveAll(r.dir))...)
}
