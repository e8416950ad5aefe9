package nats

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
)

// DefaultPrefix is Config.Prefix when nothing else is named.
const DefaultPrefix = "ev"

// Config of the broker. The zero value is fit for production on a cluster that listens on nats://127.0.0.1:4222.
type Config struct {
	// URL of one server or, separated by commas, of several of a cluster: nats://, tls:// or ws://, with user and password if
	// need be. Default nats://127.0.0.1:4222. The client learns the other servers of the cluster by itself.
	URL string
	// User and Password, or Token, or CredentialsFile (a JWT and its seed, as nsc writes it), or NKeyFile (a seed). Default none.
	User, Password, Token     string
	CredentialsFile, NKeyFile string
	TLS                       *tls.Config // default: as the URL says, with the system's roots
	Name                      string      // of the connection, in the server's lists; default "convergo"

	// Stream is the stream's name; it is made when missing, and an existing one is left as it is. Default "CONVERGO". The
	// bucket beside it has the same name with "-consumers".
	Stream string
	// Prefix is the first part of every subject. Default DefaultPrefix. Two streams of an account cannot have the same.
	Prefix string
	// Partitions of a new stream; of an existing one it must be the same. At most convergo.Lanes. Default 8: so many instances of
	// one consumer can work at once.
	Partitions int
	// Replicas of a new stream and bucket: 1, 3 or 5. Default 0: 3 in a cluster, 1 otherwise.
	Replicas int
	// MaxAge is how long a new stream keeps an event, delivered or not. Default 7 days.
	MaxAge time.Duration
	// Dedup is the time within which a new stream drops a repeat. Default 2 min.
	Dedup time.Duration

	// Window is how many events of one Publish are on their way at a time. Default 512.
	Window int
	// AckWait is how long a delivery may stay unacknowledged before it is delivered again. Default 30 s.
	AckWait time.Duration
	// MaxAckPending is how many deliveries of one consumer may be unacknowledged in this process at a time. Default 4,096.
	MaxAckPending int
	// Lease is how long the partitions of an instance that is not heard of stay with it. Default 10 s.
	Lease time.Duration
	// Timeout bounds each request to the server. Default 5 s.
	Timeout time.Duration
	// MonitorURL of one server, http://host:8222, lets Check see settings that a client cannot. Default none.
	MonitorURL string

	Log *slog.Logger // default: nowhere
	// Probe point: broker.sent (handed to the connection, not confirmed). Default none.
	Probe convergo.Probe
	// LookOnly is for Missing and Check: nothing is made or changed on the server, and there is no publishing and no
	// subscribing. Default false.
	LookOnly bool
}

func (c Config) withDefaults() Config {
	c.URL = cmp.Or(c.URL, nats.DefaultURL)
	c.Name = cmp.Or(c.Name, "convergo")
	c.Stream = cmp.Or(c.Stream, "CONVERGO")
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.Partitions = cmp.Or(c.Partitions, 8)
	c.MaxAge = cmp.Or(c.MaxAge, 7*24*time.Hour)
	c.Dedup = cmp.Or(c.Dedup, 2*time.Minute)
	c.Window = cmp.Or(c.Window, 512)
	c.AckWait = cmp.Or(c.AckWait, 30*time.Second)
	c.MaxAckPending = cmp.Or(c.MaxAckPending, 4096)
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Partitions < 1 || c.Partitions > convergo.Lanes:
		return fmt.Errorf("partitions (Config.Partitions) is %d, want 1 to %d", c.Partitions, convergo.Lanes)
	case c.Lease < time.Second:
		return fmt.Errorf("lease (Config.Lease) is %s, want a second or more", c.Lease)
	case !named(c.Stream):
		return fmt.Errorf("stream (Config.Stream) %q has a character other than A-Z a-z 0-9 _ -", c.Stream)
	case !named(c.Prefix):
		return fmt.Errorf("prefix (Config.Prefix) %q has a character other than A-Z a-z 0-9 _ -", c.Prefix)
	}
	return nil
}

// named tells whether s can be a part of a subject, a key and a bucket's name.
func named(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// options of the connection, and the URL without secrets.
func (c Config) options() (bare string, options []nats.Option, err error) {
	user, password := c.User, c.Password
	var servers []string
	for _, text := range strings.Split(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Host == "" {
			return "", nil, errors.New("the address (Config.URL) is no list of URLs such as nats://host:4222") // the text may hold a password
		}
		if u.User != nil && user == "" {
			user = u.User.Username()
			password, _ = u.User.Password()
		}
		u.User = nil
		servers = append(servers, u.String())
	}
	options = []nats.Option{
		nats.Name(c.Name), nats.Timeout(c.Timeout), nats.MaxReconnects(-1), nats.ReconnectWait(200 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond), nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2),
		// What cannot be sent now is an error now: the relay decides what becomes of it, no buffer.
		nats.ReconnectBufSize(-1),
	}
	switch {
	case c.CredentialsFile != "":
		options = append(options, nats.UserCredentials(c.CredentialsFile))
	case c.NKeyFile != "":
		key, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return "", nil, fmt.Errorf("nkey (Config.NKeyFile) %s: %w", c.NKeyFile, err)
		}
		options = append(options, key)
	case c.Token != "":
		options = append(options, nats.Token(c.Token))
	case user != "":
		options = append(options, nats.UserInfo(user, password))
	}
	if c.TLS != nil {
		options = append(options, nats.Secure(c.TLS))
	}
	return strings.Join(servers, ","), options, nil
}
