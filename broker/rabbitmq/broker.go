package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo/relay"
)

// Broker is both sides of a RabbitMQ server. Its methods are safe for concurrent use.
type Broker struct {
	cfg     Config
	publish *link
	consume *link
	closed  chan struct{} // closed by Close, so that nobody waits for what will not come
	closing sync.Once
	// largest is the size above which the server refuses messages, once it has said so; 0 before.
	largest atomic.Int64
	witness witness

	mu            sync.Mutex
	idle          []*outlet
	declared      map[string]*amqp.Connection // topic → connection on which its exchange was declared
	subscriptions map[string]*subscription
	warnings      map[string]relay.Warning // by setting

	subscribing chan struct{} // holds one token: one Subscribe at a time
}

// Open connects and checks that Config.Partitions is the number that the others use.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	b := &Broker{
		cfg: cfg, publish: newLink(cfg, "publish"), consume: newLink(cfg, "consume"), closed: make(chan struct{}),
		declared: map[string]*amqp.Connection{}, subscriptions: map[string]*subscription{}, warnings: map[string]relay.Warning{},
		subscribing: make(chan struct{}, 1), witness: witness{turn: make(chan struct{}, 1)},
	}
	b.subscribing <- struct{}{}
	b.witness.turn <- struct{}{}
	check := b.checkPartitions
	if cfg.LookOnly {
		check = func(ctx context.Context) error { _, err := b.publish.get(ctx); return err }
	}
	if err := check(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	return b, nil
}

func (b *Broker) checkPartitions(ctx context.Context) error {
	conn, err := b.publish.get(ctx)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return outage(err)
	}
	defer discard(ch)
	return b.declareMarker(ch)
}

// Close sends what is acknowledged, gives back what is not, and ends the connections. It may be called twice; the components that
// publish and fetch should have ended before.
func (b *Broker) Close() {
	b.closing.Do(func() {
		b.mu.Lock()
		var all []*subscription
		for _, s := range b.subscriptions {
			all = append(all, s)
		}
		b.mu.Unlock()
		for _, s := range all {
			s.end()
		}
		close(b.closed)
		b.withdraw()
		b.publish.close()
		b.consume.close()
	})
}

// Durability says in one sentence what can be lost.
func (b *Broker) Durability() string {
	if b.cfg.Classic {
		return "An event is confirmed when each classic queue has it on its one node's disk: a killed server loses nothing, " +
			"the loss of that node's disk loses its queues."
	}
	return "An event is confirmed when a majority of each quorum queue's nodes has it on disk: neither killed servers nor the loss of " +
		"a minority of them loses a confirmed event."
}

// discard closes a channel without waiting: the server may not answer for a long time, and nobody needs the answer.
func discard(ch *amqp.Channel) { go func() { _ = ch.Close() }() }

// gone tells whether the server has no such queue or exchange. It says "not found" too, in other words, of a queue that it cannot reach now.
func gone(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.NotFound {
		return false
	}
	return strings.HasPrefix(e.Reason, "NOT_FOUND - no ")
}

// refused tells whether the server closed the channel with this code.
func refused(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}
