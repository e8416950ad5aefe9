package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/embedded"
	"github.com/convergo/convergo/broker/kafka"
	"github.com/convergo/convergo/broker/nats"
	"github.com/convergo/convergo/broker/rabbitmq"
	"github.com/convergo/convergo/broker/redis"
	"github.com/convergo/convergo/broker/rocketmq"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
)

// broker is what the program needs of a broker, whichever it is.
type broker interface {
	relay.Publisher
	Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error)
}

// checks is a broker that tells which of its settings can lose what it confirmed.
type checks interface {
	Check(ctx context.Context) ([]relay.Warning, error)
}

// looks is a broker that tells what it would make for these topics and consumers, and what is there and does not fit.
type looks interface {
	Missing(ctx context.Context, topics, consumers []string) (missing []string, err error)
}

// connected is a broker and what its type alone knows.
type connected struct {
	broker
	close func() error
	// onBack has a function called when the broker is connected again; nil for one that does not know.
	onBack func(tell func())
	// inside is set when the broker runs in this process and must be refilled after a crash.
	inside *embedded.Broker

	at    address
	shown string // the address without its secrets
}

func (c *connected) tellWhenBack(tell func()) {
	if c.onBack != nil {
		c.onBack(tell)
	}
}

// brokerSchemes are the brokers that --broker can name.
func brokerSchemes() []string {
	return slices.Sorted(maps.Keys(connectors()))
}

// defaultPrefix is what the names on a broker begin with when its address says nothing.
func defaultPrefix(scheme string) string {
	return map[string]string{
		"nats": nats.DefaultPrefix, "kafka": kafka.DefaultPrefix, "amqp": rabbitmq.DefaultPrefix, "redis": redis.DefaultPrefix,
		"rocketmq": rocketmq.DefaultPrefix,
	}[scheme]
}

// brokerOptions are what is asked of every broker.
type brokerOptions struct {
	dir       string             // of an embedded one
	maxAge    time.Duration      // how long it keeps an event
	unclaimed []convergo.Subject // events that nobody need subscribe to
	read      bool               // only the address; nothing is opened, and nil is the answer
	look      bool               // only: nothing is made or changed, published or subscribed to
	probe     convergo.Probe
	log       *slog.Logger
}

// connector opens one kind of broker. It takes what it understands out of q; what is left in q is refused.
type connector func(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error)

func connectors() map[string]connector {
	return map[string]connector{
		"embedded": connectEmbedded, "nats": connectNATS, "redis": connectRedis, "amqp": connectRabbitMQ, "rocketmq": connectRocketMQ, "kafka": connectKafka,
		"webhook": connectWebhook,
	}
}

// connectBroker opens the broker at the address.
func connectBroker(ctx context.Context, text string, o brokerOptions) (*connected, error) {
	a, err := parseAddress(text)
	if err != nil {
		return nil, fmt.Errorf("--broker: %w", err)
	}
	connect, ok := connectors()[a.Scheme]
	if !ok {
		return nil, noBroker(text)
	}
	q, err := queryOf(a)
	if err != nil {
		return nil, fmt.Errorf("--broker %s: %w", redacted(text), err)
	}
	c, err := connect(ctx, a, q, o)
	if err != nil {
		return nil, fmt.Errorf("broker %s: %w", redacted(text), advised(a.unopened(err), err))
	}
	if c != nil {
		c.at, c.shown = a, redacted(text)
	}
	return c, nil
}

func connectEmbedded(ctx context.Context, _ address, q *query, o brokerOptions) (*connected, error) {
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	b, err := embedded.Open(ctx, embedded.Config{Dir: o.dir, MaxAge: o.maxAge, SyncInterval: syncInterval, Log: o.log, Probe: o.probe})
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, inside: b, close: func() error { b.Close(); return nil }}, nil
}

func connectNATS(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	user, password := a.account()
	token := q.text("token")
	if password == "" && user != "" { // nats://TOKEN@host
		user, token = "", user
	}
	servers := make([]string, len(a.hosts))
	for i, host := range a.hosts {
		servers[i] = "nats://" + host
	}
	cfg := nats.Config{
		URL: strings.Join(servers, ","), User: user, Password: password, Token: token, CredentialsFile: q.file("credentials"), NKeyFile: q.file("nkey"),
		TLS: q.tls(), Stream: q.text("stream"), Prefix: q.text("prefix"), Partitions: q.partitions(), Replicas: q.count("replicas"),
		Lease: q.duration("lease"), MonitorURL: q.text("monitor"), MaxAge: o.maxAge, LookOnly: o.look, Log: o.log,
		Probe: o.probe,
	}
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	b, err := nats.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, close: b.Close, onBack: b.OnBack}, nil
}

func connectRedis(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	user, password := a.account()
	cfg := redis.Config{
		Addr: a.host("6379"), User: user, Password: password, TLS: q.tls(), DB: q.number("db"), Prefix: q.text("prefix"), Partitions: q.partitions(),
		Replicas: q.number("replicas"), Lease: q.duration("lease"), Primary: q.text("primary"), MaxAge: o.maxAge, LookOnly: o.look,
		Log: o.log, Probe: o.probe,
	}
	cfg.SentinelUser, cfg.SentinelPassword = q.text("sentinel_user"), q.text("sentinel_password")
	if socket := q.text("socket"); socket != "" {
		cfg.Addr = socket
	}
	if cfg.Primary != "" {
		cfg.Sentinels = a.servers("26379")
	}
	if len(a.hosts) > 1 && cfg.Primary == "" {
		q.errs = append(q.errs, errors.New("several hosts are Sentinels: name the primary that they watch with ?primary=NAME, or one host"))
	}
	if user != "" && password == "" {
		q.errs = append(q.errs, errors.New("a user without a password: write redis://:PASSWORD@HOST for the server's password, or redis://USER:PASSWORD@HOST"))
	}
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	silenced()
	b, err := redis.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, close: b.Close}, nil
}

func connectRabbitMQ(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	user, password := a.account()
	cfg := rabbitmq.Config{
		VHost: strings.TrimPrefix(a.Path, "/"), User: user, Password: password, TLS: q.tls(), Prefix: q.text("prefix"),
		Partitions: q.partitions(), Replicas: q.count("replicas"), Classic: q.flag("classic"), Unclaimed: o.unclaimed,
		LookOnly: o.look, Log: o.log, Probe: o.probe,
	}
	cfg.Addrs = a.servers("5672")
	if cfg.TLS != nil {
		cfg.Addrs = a.servers("5671")
	}
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	b, err := rabbitmq.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, close: func() error { b.Close(); return nil }}, nil
}

func connectRocketMQ(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	key, secret := a.account()
	cfg := rocketmq.Config{
		NameServers: a.servers("9876"), Cluster: q.text("cluster"), Prefix: q.text("prefix"), Queues: q.partitions(), TLS: q.tls(),
		Credentials: rocketmq.Credentials{AccessKey: key, SecretKey: secret}, LockTerm: q.duration("lease"), Log: o.log, Probe: o.probe,
	}
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	b, err := rocketmq.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, close: b.Close}, nil
}

func connectKafka(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	user, password := a.account()
	cfg := kafka.Config{
		Seeds: a.hosts, TLS: q.tls(), SASL: q.text("sasl"), User: user, Password: password, Prefix: q.text("prefix"), Partitions: q.partitions(),
		Replication: q.count("replicas"), MaxMessage: q.count("max_message"), Session: q.duration("lease"), MaxAge: o.maxAge, Log: o.log, Probe: o.probe,
	}
	if (user != "") != (cfg.SASL != "") {
		q.errs = append(q.errs, errors.New("USER:PASSWORD and ?sasl go together: ?sasl=plain, scram-sha-256 or scram-sha-512 says how the cluster is told"))
	}
	if err := q.end(); err != nil || o.read {
		return nil, err
	}
	b, err := kafka.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: b, close: b.Close}, nil
}

// warn logs the settings under which the broker can lose what it confirmed.
func (c *connected) warn(ctx context.Context, log *slog.Logger) {
	b, ok := c.broker.(checks)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	warnings, err := b.Check(ctx)
	if err != nil { // a broker that may not be asked may be used all the same
		log.Warn("the broker's settings cannot be checked; see convergo doctor", "error", err)
	}
	for _, w := range warnings {
		log.Warn("the broker can lose what it confirmed", "setting", w.Setting, "value", w.Value, "want", w.Want, "loses", w.Loses)
	}
}
