package redis

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/convergo/convergo"
)

// DefaultPrefix is Config.Prefix when nothing else is named.
const DefaultPrefix = "convergo"

// Config of the broker. The zero value connects to 127.0.0.1:6379 and is fit for production there.
type Config struct {
	// Addr is "host:port" or the path of a unix socket. Default 127.0.0.1:6379. With Sentinels it is not used.
	Addr string
	// Sentinels are the addresses of Redis Sentinels, which name the primary of Primary. Default none.
	Sentinels []string
	Primary   string
	// SentinelUser and SentinelPassword are for the Sentinels, which have an access list of their own. Default none.
	SentinelUser, SentinelPassword string
	// User and Password of the access control list; a server with requirepass has a Password only. Default none.
	User, Password string
	// TLS encrypts the connection, and with certificates in it shows who we are. Default nil: no TLS.
	TLS *tls.Config
	DB  int // number of the database; default 0
	// Prefix of every key. Two platforms on one server need two. Default DefaultPrefix.
	Prefix string
	// Partitions of a topic, fixed when the topic is first used. Default 8; at most convergo.Lanes.
	Partitions int
	// MaxAge is how long an event is kept that every consumer is done with. What a consumer is not done with stays,
	// however old. Default 7 days; Forever keeps all.
	MaxAge time.Duration
	// TrimEvery is the time between two removals of what is older than MaxAge. Default 10 min.
	TrimEvery time.Duration
	// AckWait is how long a delivery may stay unacknowledged before it is delivered again. Default 1 min; longer than the
	// slowest batch of handlers.
	AckWait time.Duration
	// Lease is how long a partition stays with an instance that is heard of no more. Default 10 s.
	Lease time.Duration
	// Chunk is how many events go to the server in one transaction. Default 256.
	Chunk int
	// Replicas that must have an event before it is confirmed (WAIT). Default 0: the primary's word is enough.
	Replicas int
	// Timeout of one exchange with the server. Default 5 s.
	Timeout time.Duration
	// Log receives what a person should see. Default: nowhere.
	Log *slog.Logger
	// OnLoss is told when something that was stored is found to be gone. It must not block. Default: the log only.
	OnLoss func(Loss)
	// Probe point: broker.sent (handed to the server, not confirmed). Default none.
	Probe convergo.Probe
	// LookOnly is for Missing and Check: nothing is made or changed on the server, and there is no publishing and no
	// subscribing. Default false.
	LookOnly bool
}

// Forever as Config.MaxAge keeps events without limit.
const Forever = time.Duration(math.MaxInt64)

// Loss is something stored that is gone before a consumer was done with it: a replay from the outbox brings it back.
type Loss struct {
	Topic     string
	Partition int
	Consumer  string   // empty when all of them are concerned
	IDs       []string // entry ids; empty when the whole stream or the consumer's position is gone
	What      string   // a sentence
}

func (c Config) withDefaults() Config {
	c.Addr = or(c.Addr, "127.0.0.1:6379")
	c.Prefix = or(c.Prefix, DefaultPrefix)
	c.Partitions = or(c.Partitions, 8)
	c.MaxAge = or(c.MaxAge, 7*24*time.Hour)
	c.TrimEvery = or(c.TrimEvery, 10*time.Minute)
	c.AckWait = or(c.AckWait, time.Minute)
	c.Lease = or(c.Lease, 10*time.Second)
	c.Chunk = or(c.Chunk, 256)
	c.Timeout = or(c.Timeout, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	for _, addr := range append([]string{c.Addr}, c.Sentinels...) {
		if strings.Contains(addr, "://") || !strings.HasPrefix(addr, "/") && strings.LastIndex(addr, "@") > 0 { // somebody's URL; a socket may be "@name"
			return errors.New("redis broker: an address (Config.Addr, Config.Sentinels) is not host:port (it is not shown, for it may hold a password): " +
				"the user, the password, TLS and the database have fields of their own")
		}
	}
	switch {
	case c.Partitions < 1 || c.Partitions > convergo.Lanes:
		return fmt.Errorf("redis broker: %d partitions: between 1 and %d", c.Partitions, convergo.Lanes)
	case c.Lease < 100*time.Millisecond:
		return fmt.Errorf("redis broker: a lease of %s is shorter than a network's hiccup: at least 100ms", c.Lease)
	case len(c.Sentinels) > 0 && c.Primary == "":
		return errors.New("redis broker: sentinels (Config.Sentinels) without a primary (Config.Primary): name the primary that they watch")
	}
	return nil
}

func or[T int | time.Duration | string](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Broker is a connection to the server. Its methods are safe for concurrent use.
type Broker struct {
	cfg      Config
	client   *redis.Client
	waiting  *redis.Client // connections that wait for new entries; a separate pool, so that they starve nobody
	scripts  scripts
	instance string // unique per Broker

	mu      sync.Mutex
	topics  map[string]bool // whose number of partitions was checked
	sources map[*source]bool
	members int // sources made so far

	lost   atomic.Int64
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// Open connects and looks at the server's version and mode. The error of a server that cannot be reached is
// convergo.Unreachable.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, client: connect(cfg, 0), waiting: connect(cfg, 1024), scripts: loadScripts(), instance: rand.Text(),
		topics: map[string]bool{}, sources: map[*source]bool{},
	}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := b.greet(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if !cfg.LookOnly {
		b.work.Go(b.trims)
	}
	return b, nil
}

func connect(cfg Config, pool int) *redis.Client {
	if len(cfg.Sentinels) > 0 {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			SentinelAddrs: cfg.Sentinels, SentinelUsername: cfg.SentinelUser, SentinelPassword: cfg.SentinelPassword,
			MasterName: cfg.Primary, Username: cfg.User, Password: cfg.Password, TLSConfig: cfg.TLS, DB: cfg.DB,
			Protocol: 2, MaxRetries: -1, DialerRetries: 1, DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout,
			ContextTimeoutEnabled: true, PoolSize: pool, DisableIdentity: true,
		})
	}
	return redis.NewClient(&redis.Options{
		Addr: cfg.Addr, Username: cfg.User, Password: cfg.Password, TLSConfig: cfg.TLS, DB: cfg.DB,
		Protocol: 2, MaxRetries: -1, DialerRetries: 1, DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout,
		ContextTimeoutEnabled: true, PoolSize: pool, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// greet makes sure that the server is one that this package can work with.
func (b *Broker) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	info, err := b.info(ctx, "server")
	if err != nil {
		return fmt.Errorf("redis broker at %s: %w", b.where(), verdict(err))
	}
	if mode := info["redis_mode"]; mode == "cluster" {
		return fmt.Errorf("redis broker at %s: a Redis Cluster: its slots move alone, and one read spans several; use a primary with replicas", b.where())
	}
	if v := info["redis_version"]; atLeast(v, 7) {
		return nil
	}
	return fmt.Errorf("redis broker at %s: version %s: 7.0 is the oldest that tells of lost entries", b.where(), info["redis_version"])
}

func (b *Broker) where() string {
	if len(b.cfg.Sentinels) > 0 {
		return fmt.Sprintf("%s (by sentinel)", b.cfg.Primary)
	}
	return b.cfg.Addr
}

// Close hands the partitions back and ends the connections. The components that publish and fetch should have ended before.
func (b *Broker) Close() error {
	b.mu.Lock()
	var open []*source
	for s := range b.sources {
		open = append(open, s)
	}
	b.mu.Unlock()
	for _, s := range open {
		if err := s.Close(); err != nil {
			b.cfg.Log.Warn("redis broker: partitions are not handed back before their leases end", "consumer", s.consumer, "error", err)
		}
	}
	b.cancel()
	err := ignoreClosed(b.waiting.Close()) // ends the requests that wait for news
	b.work.Wait()
	return errors.Join(err, ignoreClosed(b.client.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, redis.ErrClosed) {
		return nil
	}
	return err
}

// Durability says in one sentence what can be lost. Check tells how the server is set.
func (b *Broker) Durability() string {
	return "With appendonly yes and appendfsync always neither a killed server nor a power cut loses a confirmed event; with everysec about " +
		"the last second before either can be lost; the loss of the primary's disk, or a failover, can lose what no replica had yet."
}

// Lost is how many entries were found to be gone since Open before their consumer was done with them.
func (b *Broker) Lost() int64 { return b.lost.Load() }

func (b *Broker) report(l Loss) {
	b.lost.Add(int64(max(len(l.IDs), 1)))
	b.cfg.Log.Error("redis broker: "+l.What, "topic", l.Topic, "partition", l.Partition, "consumer", l.Consumer, "entries", len(l.IDs),
		"remedy", "replay the time since then from the outbox")
	if b.cfg.OnLoss != nil {
		b.cfg.OnLoss(l)
	}
}
