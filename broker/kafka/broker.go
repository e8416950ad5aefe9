package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/convergo/convergo"
)

// Config of the broker. The zero value is fit for production on a cluster of three nodes, one of them at 127.0.0.1:9092.
type Config struct {
	// Seeds are addresses "host:port" of some nodes. Default 127.0.0.1:9092.
	Seeds []string
	// TLS encrypts the connections, and with certificates in it shows who we are. Default nil: no TLS.
	TLS *tls.Config
	// SASL is "plain", "scram-sha-256" or "scram-sha-512" with User and Password. Default "": no authentication by password.
	SASL           string
	User, Password string
	// Prefix of topics and groups. Default DefaultPrefix; NoPrefix for none.
	Prefix string
	// Partitions of a topic, fixed when the topic is made. Default 8; at most convergo.Lanes.
	Partitions int
	// Replication of a topic that is made here: how many nodes have it. One less must have an event before it is confirmed
	// (min.insync.replicas). Default 3.
	Replication int
	// MaxAge is how long a topic that is made here keeps events (retention.ms). Default 7 days; Forever keeps all.
	MaxAge time.Duration
	// MaxMessage is the largest record in bytes, headers included; a topic's smaller max.message.bytes wins. Default 1,048,588.
	MaxMessage int
	// Producers is how many calls of Publish may send at a time. Default 4.
	Producers int
	// Timeout is how long one confirmation or one request may take before it is an outage. Default 10 s.
	Timeout time.Duration
	// AckWait is how long a delivery may stay unacknowledged before it is delivered again, and how long a rebalance waits for
	// deliveries of a partition that is to move. Default 1 min; longer than the slowest batch of handlers.
	AckWait time.Duration
	// Session is how long partitions stay with an instance that is heard of no more. Default 10 s.
	Session time.Duration
	// Log receives what a person should see. Default: nowhere.
	Log *slog.Logger
	// OnLoss is told when something that was stored is found to be gone. It must not block. Default: the log only.
	OnLoss func(Loss)
	// Probe point: broker.sent (handed to the client, not confirmed). Default none.
	Probe convergo.Probe

	dial func(ctx context.Context, network, host string) (net.Conn, error) // of tests
}

// DefaultPrefix is Config.Prefix when nothing else is named.
const DefaultPrefix = "convergo."

// NoPrefix as Config.Prefix leaves topics and groups their own names.
const NoPrefix = "-"

// Forever as Config.MaxAge keeps events without limit.
const Forever = time.Duration(math.MaxInt64)

// Loss is something stored that is gone before a consumer read it: a replay from the outbox brings it back.
type Loss struct {
	Topic     string
	Partition int
	Consumer  string // empty when all of them are concerned
	Events    int64  // how many at least; 0 when unknown
	What      string // a sentence
}

func (c Config) withDefaults() Config {
	if len(c.Seeds) == 0 {
		c.Seeds = []string{"127.0.0.1:9092"}
	}
	switch c.Prefix {
	case "":
		c.Prefix = DefaultPrefix
	case NoPrefix:
		c.Prefix = ""
	}
	c.Partitions = or(c.Partitions, 8)
	c.Replication = or(c.Replication, 3)
	c.MaxAge = or(c.MaxAge, 7*24*time.Hour)
	c.MaxMessage = or(c.MaxMessage, 1_048_588)
	c.Producers = or(c.Producers, 4)
	c.Timeout = or(c.Timeout, 10*time.Second)
	c.AckWait = or(c.AckWait, time.Minute)
	c.Session = or(c.Session, 10*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	for i, seed := range c.Seeds {
		if strings.ContainsAny(seed, "@/") { // somebody's URL
			return fmt.Errorf("kafka broker: address %d (Config.Seeds) is not host:port (it is not shown, for it may hold a password): "+
				"the user, the password and TLS have fields of their own", i+1)
		}
	}
	switch {
	case c.Partitions < 1 || c.Partitions > convergo.Lanes:
		return fmt.Errorf("kafka broker: %d partitions: between 1 and %d", c.Partitions, convergo.Lanes)
	case c.Replication < 1 || c.Replication > math.MaxInt16:
		return fmt.Errorf("kafka broker: replication %d: at least 1", c.Replication)
	case c.MaxMessage < overhead || c.MaxMessage > math.MaxInt32/2:
		return fmt.Errorf("kafka broker: largest message %d: between %d and %d bytes", c.MaxMessage, overhead, math.MaxInt32/2)
	case c.Producers < 1:
		return fmt.Errorf("kafka broker: %d producers: at least 1", c.Producers)
	}
	_, err := c.mechanism()
	return err
}

func (c Config) mechanism() (sasl.Mechanism, error) {
	user := scram.Auth{User: c.User, Pass: c.Password}
	switch c.SASL {
	case "":
		return nil, nil
	case "plain":
		return plain.Auth{User: c.User, Pass: c.Password}.AsMechanism(), nil
	case "scram-sha-256":
		return user.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return user.AsSha512Mechanism(), nil
	default:
		return nil, fmt.Errorf("kafka broker: SASL %q: one of plain, scram-sha-256, scram-sha-512", c.SASL)
	}
}

func or[T int | time.Duration | string](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Broker is a connection to the cluster. Its methods are safe for concurrent use.
type Broker struct {
	cfg       Config
	client    *kgo.Client
	admin     *kadm.Client
	producers chan *producer // those that are free

	mu     sync.Mutex
	topics map[string]topic // what was looked at, by our name
	// generation counts the topics that were found to be made anew: producers of before are not used any more.
	generation int
	sources    map[*source]bool
	closed     bool
	lost       atomic.Int64
}

// Open connects. The error of a cluster that cannot be reached is convergo.Unreachable.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, producers: make(chan *producer, cfg.Producers), topics: map[string]topic{}, sources: map[*source]bool{}}
	client, err := kgo.NewClient(b.options()...)
	if err != nil {
		return nil, fmt.Errorf("kafka broker: %w", err)
	}
	b.client, b.admin = client, kadm.NewClient(client)
	for range cfg.Producers {
		p, err := b.newProducer()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("kafka broker: %w", err), b.Close())
		}
		b.producers <- p
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("kafka broker at %v: %w", cfg.Seeds, verdict(err)), b.Close())
	}
	return b, nil
}

// options are those of every client.
func (b *Broker) options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(b.cfg.Seeds...), kgo.ClientID("convergo"), kgo.WithLogger(logger{b.cfg.Log}),
		kgo.DialTimeout(b.cfg.Timeout), kgo.RetryTimeout(b.cfg.Timeout), kgo.RequestTimeoutOverhead(b.cfg.Timeout),
		kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Minute), kgo.DisableClientMetrics(), kgo.WithHooks(severed{b}),
		kgo.RetryBackoffFn(func(tries int) time.Duration {
			return convergo.Backoff{Base: 50 * time.Millisecond, Cap: time.Second}.Delay(tries)
		}),
	}
	if b.cfg.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(b.cfg.TLS))
	}
	if b.cfg.dial != nil {
		opts = append(opts, kgo.Dialer(b.cfg.dial))
	}
	if mechanism, err := b.cfg.mechanism(); err == nil && mechanism != nil { // an error was told by Open
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts
}

// Close hands the partitions back and ends the connections. The components that publish and fetch should have ended before.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var open []*source
	for s := range b.sources {
		open = append(open, s)
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range open {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				b.cfg.Log.Warn("kafka broker: partitions are not handed back before the session ends", "consumer", s.consumer, "error", err)
			}
		})
	}
	wg.Wait()
	for range len(b.producers) {
		(<-b.producers).Close()
	}
	b.client.Close()
	return nil
}

// Durability says in one sentence what can be lost. Check tells how the topics are set.
func (b *Broker) Durability() string {
	return "An event is confirmed when all in-sync replicas have it, in memory at least: with replication 3 and min.insync.replicas 2 it takes the loss " +
		"of two machines at once to lose one, with a single node a power cut loses what the operating system had not written yet."
}

// Lost is how many events were found to be gone since Open before their consumer read them.
func (b *Broker) Lost() int64 { return b.lost.Load() }

func (b *Broker) report(l Loss) {
	b.lost.Add(max(l.Events, 1))
	b.cfg.Log.Error("kafka broker: "+l.What, "topic", l.Topic, "partition", l.Partition, "consumer", l.Consumer, "events", l.Events,
		"remedy", "`convergo replay --since` refills it from the outbox")
	if b.cfg.OnLoss != nil {
		b.cfg.OnLoss(l)
	}
}

// verdict judges what the client or the cluster answered: whatever goes wrong is their trouble, except what says that the
// message can never be stored.
func verdict(err error) error {
	switch {
	case err == nil || convergo.VerdictOf(err) != convergo.Again:
		return err
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord):
		return convergo.Permanent(err)
	default:
		return convergo.Unreachable(err)
	}
}

// logger passes on the client's complaints. Its notices are many; they are there for debugging.
type logger struct{ to *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	at := slog.LevelDebug
	if level <= kgo.LogLevelWarn {
		at = slog.LevelWarn
	}
	l.to.Log(context.Background(), at, "kafka client: "+msg, keyvals...)
}
