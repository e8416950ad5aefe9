package rocketmq

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/convergo/convergo"
)

// DefaultPrefix is Config.Prefix when nothing else is named.
const DefaultPrefix = "convergo-"

// Config says where the servers are and how they are talked to. Only NameServers has no default.
type Config struct {
	NameServers []string // addresses of the name servers, "host:port"; one that answers is enough
	Cluster     string   // of the brokers on which topics are made; default "DefaultCluster"
	// Prefix begins the name of every topic and consumer group here, so that they do not meet those of others; default
	// DefaultPrefix. At most 20 characters of A-Z a-z 0-9 _ -.
	Prefix string
	// Queues is the number of queues of each topic, over all brokers; default 8. The lane of an event's aggregate, modulo
	// Queues, is its queue, so the number is chosen once: a topic that has another number of queues is refused.
	Queues int
	// NoCreate: a topic that does not exist is an error, and not made.
	NoCreate bool

	Credentials Credentials // of the servers' access control; zero: none
	TLS         *tls.Config // nil: no TLS

	// Timeout bounds each call to a server and the making of a connection; default 6 s, which is more than a broker waits for
	// its disk (5 s). An unanswered call is an outage.
	Timeout time.Duration
	// LockTerm is how long a broker keeps the lock of a queue that is no longer renewed: the value of the brokers' property
	// rocketmq.broker.rebalance.lockMaxLiveTime, whose default is the default here, 60 s. It is how long it takes until
	// another instance goes on with the queues of one that died without a word. Never more than the brokers' value: two
	// instances might then read one queue.
	LockTerm time.Duration
	// Prefetch is how many messages of a queue are held ready; default 64.
	Prefetch int
	// Handover is how long a queue that another instance shall have waits for what was delivered and not acknowledged;
	// default 30 s. Then it goes, and that is delivered again over there.
	Handover time.Duration
	// Idle is how long a subscription keeps its queues when nobody fetches; default 1 min. Then other instances get them
	// until the next Fetch.
	Idle time.Duration

	Log   *slog.Logger // nil: none
	Probe convergo.Probe
}

func (c Config) withDefaults() (Config, error) {
	if len(c.NameServers) == 0 {
		return c, errors.New("rocketmq: no name server: name one (Config.NameServers)")
	}
	for i, addr := range c.NameServers {
		if strings.ContainsAny(addr, "@/") { // somebody's URL
			return c, fmt.Errorf("rocketmq: address %d (Config.NameServers) is not host:port (it is not shown, for it may hold a password): "+
				"the access key, the secret and TLS have fields of their own", i+1)
		}
	}
	if c.Cluster == "" {
		c.Cluster = "DefaultCluster"
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if err := (convergo.Subject{Topic: c.Prefix}).Validate(); err != nil || len(c.Prefix) > 20 {
		return c, fmt.Errorf("rocketmq: prefix %q is not 1 to 20 characters of A-Z a-z 0-9 _ -", c.Prefix)
	}
	if c.Queues == 0 {
		c.Queues = 8
	}
	if c.Queues < 1 || c.Queues > convergo.Lanes {
		return c, fmt.Errorf("rocketmq: %d queues: want 1 to %d", c.Queues, convergo.Lanes)
	}
	for _, d := range []struct {
		value *time.Duration
		unset time.Duration
	}{{&c.Timeout, 6 * time.Second}, {&c.LockTerm, time.Minute}, {&c.Handover, 30 * time.Second}, {&c.Idle, time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.unset
		}
	}
	if c.Prefetch <= 0 {
		c.Prefetch = 64
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Broker is both sides of a RocketMQ cluster: a relay.Publisher, and the sources of inboxes.
type Broker struct {
	cfg Config
	// clientID names this instance to the brokers. It is never that of another one, in this process or elsewhere.
	clientID string
	sending  *network // publishes
	reading  *network // everything else; the brokers know it by its client id

	mu      sync.Mutex
	closed  bool
	topics  map[string]*topic  // by the name in RocketMQ
	masters map[string]string  // broker name → address of its master
	members map[string]*member // by consumer
	halves  map[string]*Transactional
}

// Open connects to a cluster: a name server must answer, and know a broker of the cluster.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	id, err := clientID()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, clientID: id, sending: newNetwork(cfg), reading: newNetwork(cfg), topics: map[string]*topic{}, masters: map[string]string{},
		members: map[string]*member{}, halves: map[string]*Transactional{},
	}
	b.reading.asked, b.reading.broken = b.serve, b.lost
	masters, err := b.clusterMasters(ctx)
	if err == nil {
		err = b.greet(ctx, masters)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open RocketMQ: %w", err), b.Close())
	}
	return b, nil
}

// greet finds a broker that accepts our credentials, because a name server asks for none. Brokers that do not answer are passed over: they
// may come back.
func (b *Broker) greet(ctx context.Context, masters map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"clientID": b.clientID, "producerDataSet": []any{}, "consumerDataSet": []any{}})
	if err != nil {
		return err
	}
	var refusal error
	for name, address := range masters {
		_, err := b.reading.call(ctx, address, request(codeHeartbeat, nil, body))
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrNotAllowed) {
			refusal = convergo.Unreachable(fmt.Errorf("broker %s refuses the access key or the secret (Config.Credentials): %w", name, err))
		}
	}
	return refusal
}

// clientID is host, process and 128 random bits.
func clientID() (string, error) {
	var bits [16]byte
	if _, err := rand.Read(bits[:]); err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%d-%s", host, os.Getpid(), hex.EncodeToString(bits[:])), nil
}

// Close gives the queues of all subscriptions back and breaks the connections. What was delivered and not acknowledged is
// delivered again elsewhere.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	members := b.members
	b.members = map[string]*member{}
	b.mu.Unlock()
	var leaving sync.WaitGroup
	for _, m := range members {
		leaving.Go(m.shut)
	}
	leaving.Wait()
	b.sending.close()
	b.reading.close()
	return nil
}

// serve answers what a broker asks of its own accord.
func (b *Broker) serve(ctx context.Context, address string, req *command) *command {
	switch req.Code {
	case codeConsumersChanged:
		for _, m := range b.consuming() {
			if m.group == req.Fields["consumerGroup"] {
				m.rebalance()
			}
		}
	case codeCheckTransaction:
		b.checked(ctx, address, req)
	}
	return nil
}

// lost is told that the connection to a server broke. If it was a broker it may have started anew, and locks are kept in its
// memory only: its queues may be another's from now on.
func (b *Broker) lost(address string) {
	b.mu.Lock()
	var names []string
	for name, a := range b.masters {
		if a == address {
			names = append(names, name)
		}
	}
	halves := b.halves
	b.mu.Unlock()
	if len(names) == 0 {
		return
	}
	for _, m := range b.consuming() {
		m.disconnected(names)
	}
	for _, t := range halves {
		t.again()
	}
}

func (b *Broker) consuming() []*member {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*member
	for _, m := range b.members {
		all = append(all, m)
	}
	return all
}
