package rabbitmq

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// DefaultPrefix is Config.Prefix when nothing else is named.
const DefaultPrefix = "convergo."

// Config of the broker. The zero value speaks to a server on this machine as its guest.
type Config struct {
	// Addrs are the server's nodes as host:port, tried in turn. Default 127.0.0.1:5672.
	Addrs []string
	// VHost is the virtual host. Default "/".
	VHost string
	// User and Password. With neither, and TLS with a client certificate, the certificate says who we are (SASL EXTERNAL);
	// without that, guest and guest.
	User, Password string
	// TLS, when not nil, is spoken from the first byte. ServerName is filled from the address. Default nil: plain TCP.
	TLS *tls.Config
	// Name of the connections in the server's lists. Default "convergo".
	Name string
	// Prefix of every exchange and queue. Two platforms with different prefixes may share a virtual host. Default DefaultPrefix.
	Prefix string
	// Partitions is the number of queues of a consumer, 1 to convergo.Lanes. It is the same for all who use Prefix and fixed by
	// the first of them: another number is refused. Default 8.
	Partitions int
	// Classic makes the queues classic durable ones, which live on one node, instead of replicated quorum queues. Default false.
	Classic bool
	// Replicas is the number of nodes of a new quorum queue. Default 0: as the server is set, usually 3 or as many as there are.
	Replicas int
	// Prefetch is how many deliveries of one partition may be with an instance, not yet acknowledged. Default 100.
	Prefetch int
	// Window is how many events of one Publish are on their way at a time. Default 512.
	Window int
	// Unclaimed are subjects that need no consumer: an event of them that no queue takes counts as sent, and is gone. Default
	// none: it is "unroutable" and will be tried again.
	Unclaimed []convergo.Subject
	// Heartbeat tells a dead connection: after two without an answer. Default 10 s.
	Heartbeat time.Duration
	// Timeout bounds connecting and everything asked of the server that it must answer at once, and each write. Default 10 s.
	Timeout time.Duration
	// Reconnect is how long to wait between tries to connect. Default 100 ms doubling up to 2 s.
	Reconnect convergo.Backoff
	// Rebalance is how often an instance looks how many share its consumer's queues. Default 3 s.
	Rebalance time.Duration
	// Log of connections lost and found, of deliveries given up to other instances. Default: nowhere.
	Log *slog.Logger
	// Probe point: broker.sent (written to the connection, not confirmed). Default none.
	Probe convergo.Probe
	// LookOnly is for Missing and Check: nothing is made or changed on the server, and there is no publishing and no
	// subscribing. Default false.
	LookOnly bool
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Addrs) == 0 {
		c.Addrs = []string{"127.0.0.1:5672"}
	}
	c.VHost = cmp.Or(c.VHost, "/")
	c.Name = cmp.Or(c.Name, "convergo")
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.Partitions = cmp.Or(c.Partitions, 8)
	c.Prefetch = cmp.Or(c.Prefetch, 100)
	c.Window = cmp.Or(c.Window, 512)
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Rebalance = cmp.Or(c.Rebalance, 3*time.Second)
	if c.Reconnect.Base <= 0 && len(c.Reconnect.Schedule) == 0 {
		c.Reconnect = convergo.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, c.validate()
}

func (c Config) validate() error {
	for i, addr := range c.Addrs {
		if strings.ContainsAny(addr, "@/") { // somebody's URL
			return fmt.Errorf("address %d (Config.Addrs) is not host:port (it is not shown, for it may hold a password): "+
				"the user, the password, TLS and the virtual host have fields of their own", i+1)
		}
	}
	switch {
	case c.Partitions < 1 || c.Partitions > convergo.Lanes:
		return fmt.Errorf("partitions (Config.Partitions) is %d: want 1 to %d", c.Partitions, convergo.Lanes)
	case strings.HasPrefix(c.Prefix, "amq."):
		return errors.New(`prefix (Config.Prefix) begins with "amq.": the server keeps that for itself`)
	case len(c.Prefix) > 50:
		return fmt.Errorf("prefix (Config.Prefix) is too long: %d > 50 bytes", len(c.Prefix))
	case c.Prefetch < 1 || c.Prefetch > 65535:
		return fmt.Errorf("prefetch (Config.Prefetch) is %d: want 1 to 65535", c.Prefetch)
	case c.Window < 1 || c.Replicas < 0:
		return errors.New("window (Config.Window) or replicas (Config.Replicas) is negative")
	}
	for _, s := range c.Unclaimed {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("unclaimed (Config.Unclaimed): %w", err)
		}
	}
	return nil
}

func (c Config) unclaimed(e convergo.Event) bool {
	for _, s := range c.Unclaimed {
		if s.Covers(e.Topic, e.Type) {
			return true
		}
	}
	return false
}
