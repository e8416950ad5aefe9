package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
)

// Broker is a connection to the servers. Its methods are safe for concurrent use. While the servers cannot be reached its
// calls fail as outages; it finds them again by itself.
type Broker struct {
	cfg       Config
	url       string // without secrets
	conn      *nats.Conn
	js        jetstream.JetStream
	bucket    jetstream.KeyValue
	publisher *Publisher
	closed    chan struct{} // closed by Close
	ends      atomic.Bool   // the connection is being closed by this process

	suspected  chan struct{} // something of the server's seems to be gone
	bucketMade atomic.Int64  // when the bucket was made, in nanoseconds

	mu      sync.Mutex
	groups  map[string]*group // by consumer
	back    []func()          // told of each new connection
	closing bool
}

// Open connects, and makes the stream and its bucket when they are missing. It fails when no server can be reached now.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("nats broker: %w", err)
	}
	url, options, err := cfg.options()
	if err != nil {
		return nil, fmt.Errorf("nats broker: %w", err)
	}
	b := &Broker{cfg: cfg, url: url, closed: make(chan struct{}), suspected: make(chan struct{}, 1), groups: map[string]*group{}}
	options = append(options,
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if b.ends.Load() { // our own doing
				return
			}
			cfg.Log.Warn("nats broker: connection lost", "url", url, "error", err)
			b.poke()
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			cfg.Log.Info("nats broker: connected again", "server", c.ConnectedServerName())
			b.suspect() // it may be another server, or one with no data
			b.poke()
			b.tellBack()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			cfg.Log.Warn("nats broker: connection", "url", url, "error", err)
		}))
	if b.conn, err = nats.Connect(url, options...); err != nil {
		return nil, fmt.Errorf("nats broker: connect to %s: %w", url, convergo.Unreachable(err))
	}
	if err := b.prepare(ctx); err != nil {
		b.hangUp()
		return nil, fmt.Errorf("nats broker at %s: %w", url, err)
	}
	if !cfg.LookOnly {
		go b.keepMending()
	}
	return b, nil
}

// Publish implements relay.Publisher; see Publisher.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	if b.cfg.LookOnly {
		return slices.Repeat([]error{errLookOnly}, len(events))
	}
	return b.publisher.Publish(ctx, events)
}

// Close gives back what this instance's consumers have, notes how far they came, and ends the connection. It may be called
// twice; the components that publish and fetch should have ended before.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closing {
		b.mu.Unlock()
		return nil
	}
	b.closing = true
	groups := b.groups
	b.groups = nil
	b.mu.Unlock()
	var failures []error
	var mu sync.Mutex
	var leaving sync.WaitGroup
	for _, g := range groups {
		leaving.Go(func() {
			err := g.leave()
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, err)
		})
	}
	leaving.Wait()
	close(b.closed)
	b.hangUp()
	return errors.Join(failures...)
}

// hangUp ends the connection. The client calls that a lost one too, which would be a false alarm in the log.
func (b *Broker) hangUp() {
	b.ends.Store(true)
	b.conn.Close()
}

// patience bounds one request. A server that is losing the lead may never answer, so a request that is repeated must not wait for
// as long as a lease.
func (b *Broker) patience() time.Duration { return min(b.cfg.Timeout, b.cfg.Lease/4) }

// insist repeats a request that can be repeated, while the servers cannot be reached or are choosing a leader, until ctx ends.
func (b *Broker) insist(ctx context.Context, request func(ctx context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, b.patience())
		err := request(once)
		cancel()
		if err == nil || convergo.VerdictOf(judged(err)) != convergo.Outage {
			return err
		}
		pause(ctx, nil, time.Now().Add(100*time.Millisecond))
		if ctx.Err() != nil {
			return err
		}
	}
}

// poke makes every group look again.
func (b *Broker) poke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		g.wake()
	}
}

// OnBack has tell called whenever the connection stands again after it was lost, for example with a relay's BrokerBack. It must not block.
func (b *Broker) OnBack(tell func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.back = append(b.back, tell)
}

func (b *Broker) tellBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, tell := range b.back {
		tell()
	}
}

// Pending is, per consumer, how many events are not yet acknowledged, as far as the positions tell that are stored.
func (b *Broker) Pending(ctx context.Context) (map[string]int64, error) {
	pending, err := b.pending(ctx)
	if err != nil {
		return nil, fmt.Errorf("nats broker: pending: %w", convergo.Unreachable(err))
	}
	return pending, nil
}

func (b *Broker) pending(ctx context.Context) (map[string]int64, error) {
	keys, err := b.bucket.ListKeysFiltered(ctx, "*."+groupKey)
	if err != nil {
		return nil, err
	}
	var consumers []string
	for key := range keys.Keys() {
		consumers = append(consumers, key[:len(key)-len("."+groupKey)])
	}
	pending := map[string]int64{}
	for _, consumer := range consumers {
		d, _, err := b.readDocument(ctx, consumer)
		if err != nil {
			return nil, err
		}
		for n := range b.cfg.Partitions {
			left, err := b.pendingIn(ctx, consumer, n, d.Subjects)
			if err != nil {
				return nil, err
			}
			pending[consumer] += left
		}
	}
	return pending, nil
}

// pendingIn asks a reader that is made for the question how many messages there are behind the position.
func (b *Broker) pendingIn(ctx context.Context, consumer string, n int, subjects []convergo.Subject) (int64, error) {
	p, _, err := b.readPosition(ctx, consumer, n)
	if err != nil {
		return 0, err
	}
	config := b.readerConfig(n, subjects, p.Seq)
	config.InactiveThreshold = time.Minute
	reader, err := b.js.CreateConsumer(ctx, b.cfg.Stream, config)
	if err != nil {
		return 0, err
	}
	info := reader.CachedInfo()
	return int64(info.NumPending), b.js.DeleteConsumer(ctx, b.cfg.Stream, info.Name)
}
