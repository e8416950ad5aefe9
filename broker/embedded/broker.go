package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/convergo/convergo"
	wire "github.com/convergo/convergo/broker/nats"
)

const streamName = "CONVERGO"

// layout is that of package nats. One process reads, so there is nothing to divide and one partition.
func layout() wire.Layout { return wire.Layout{Prefix: "ev", Partitions: 1} }

// Config of the broker. The zero value is fit for production once Dir is set.
type Config struct {
	// Dir is the folder of this broker alone; it is made when missing. A second broker on it is refused.
	Dir string
	// Name of the server in its logs. Default "convergo".
	Name string
	// MaxAge is how long the broker keeps an event, delivered or not. Default 7 days.
	MaxAge time.Duration
	// MaxBytes is how much it keeps; beyond it the oldest events leave, delivered or not. Default 0: as much as the disk takes.
	MaxBytes int64
	// SyncAlways makes every confirmation wait for the disk. Default false: the disk is synced every SyncInterval.
	SyncAlways bool
	// SyncInterval is the time between two syncs. Default 10 s.
	SyncInterval time.Duration
	// AckWait is how long a delivery may stay unacknowledged before it is delivered again. Default 30 s.
	AckWait time.Duration
	// MaxAckPending is how many deliveries of one consumer may be unacknowledged at a time. Default 4,096.
	MaxAckPending int
	// Window is how many events of one Publish are on their way at a time. Default 512.
	Window int
	// StartTimeout bounds opening, recovery of the folder included. Default 1 min.
	StartTimeout time.Duration
	// Log receives the server's notices at debug level and its complaints at warn level. Default: nowhere.
	Log *slog.Logger
	// Probe point: broker.sent (handed to the server, not confirmed). Default none.
	Probe convergo.Probe
}

func (c Config) withDefaults() Config {
	c.Name = or(c.Name, "convergo")
	c.MaxAge = or(c.MaxAge, 7*24*time.Hour)
	c.SyncInterval = or(c.SyncInterval, 10*time.Second)
	c.AckWait = or(c.AckWait, 30*time.Second)
	c.MaxAckPending = or(c.MaxAckPending, 4096)
	c.Window = or(c.Window, 512)
	c.StartTimeout = or(c.StartTimeout, time.Minute)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func or[T int | time.Duration | string](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Broker is the server and a connection to it. Its methods are safe for concurrent use.
type Broker struct {
	cfg       Config
	lock      *flock.Flock
	server    *server.Server
	conn      *nats.Conn
	js        jetstream.JetStream
	publisher *wire.Publisher
	recovery  Recovery
	closing   sync.Once
	acked     sync.Map      // consumer → reply subject of its last acknowledgement
	closed    chan struct{} // closed by Close, so that no Fetch waits for a server that is gone
}

// Open starts the server on cfg.Dir and makes or updates its stream. A folder that is damaged beyond use is an error and
// stays as it is; what a recovery could not save is told by Recovery and logged as a warning.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if cfg.Dir == "" {
		return nil, errors.New("embedded broker: no folder for its data (Config.Dir): name one")
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	lock, err := hold(cfg.Dir)
	if err != nil {
		return nil, err
	}
	before, err := inventory(cfg.Dir)
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	srv, err := start(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	b := &Broker{cfg: cfg, lock: lock, server: srv, closed: make(chan struct{})}
	if err := b.open(ctx, before); err != nil {
		b.Close()
		return nil, fmt.Errorf("embedded broker in %s: %w", cfg.Dir, err)
	}
	return b, nil
}

func (b *Broker) open(ctx context.Context, before held) error {
	if err := b.connect(); err != nil {
		return err
	}
	return b.prepare(ctx, before)
}

func (b *Broker) connect() error {
	conn, err := nats.Connect("", nats.InProcessServer(b.server), nats.Name(b.cfg.Name), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			b.cfg.Log.Warn("embedded broker: connection", "error", err)
		}))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	b.conn = conn
	// Several relays share the connection: the client's own limit on what is on its way must be far above theirs.
	b.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(1<<20))
	b.publisher = &wire.Publisher{
		JetStream: b.js, Stream: streamName, Layout: layout(), Window: b.cfg.Window, MaxMessage: maxMessage, Closed: b.closed, Probe: b.cfg.Probe,
	}
	return err
}

// Publish implements relay.Publisher; see nats.Publisher.
func (b *Broker) Publish(ctx context.Context, events []convergo.Event) []error {
	return b.publisher.Publish(ctx, events)
}

// Close ends the connection and stops the server. What was confirmed is written out, what was acknowledged is noted. It may
// be called twice; the components that publish and fetch should have ended before.
func (b *Broker) Close() {
	b.closing.Do(func() {
		if b.js != nil {
			b.settle()
		}
		close(b.closed)
		if b.conn != nil {
			b.conn.Close()
		}
		b.server.Shutdown()
		b.server.WaitForShutdown()
		if err := b.lock.Unlock(); err != nil {
			b.cfg.Log.Warn("embedded broker: its folder is not given back before the process ends", "error", err)
		}
	})
}

// hold makes the folder if need be and takes its lock: two servers on one folder would overwrite each other's files.
func hold(dir string) (*flock.Flock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded broker in %s: %w", dir, err)
	}
	lock := flock.New(filepath.Join(dir, "LOCK"))
	switch got, err := lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("embedded broker in %s: lock: %w", dir, err)
	case !got:
		return nil, fmt.Errorf("embedded broker in %s: another broker runs there: stop it, or name another folder", dir)
	}
	return lock, nil
}

// settle makes the server take in every acknowledgement: they are sent without an answer and each consumer handles its
// own in order, so that an answer to the last one, sent again, speaks for all.
func (b *Broker) settle() {
	b.acked.Range(func(consumer, reply any) bool {
		if _, err := b.conn.Request(reply.(string), []byte("+ACK"), 2*time.Second); err != nil {
			b.cfg.Log.Warn("embedded broker: last acknowledgements may come again", "consumer", consumer, "error", err)
		}
		return true
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	stream, err := b.js.Stream(ctx, streamName)
	if err == nil {
		err = b.note(stream.CachedInfo().State)
	}
	if err != nil {
		b.cfg.Log.Warn("embedded broker: its end was not noted", "error", err)
	}
}

// Durability says in one sentence what a power cut can lose. The death of the process, SIGKILL included, loses nothing
// that was confirmed: it was handed to the operating system before.
func (b *Broker) Durability() string {
	if b.cfg.SyncAlways {
		return "Every event is synced to disk before it is confirmed: neither a killed process nor a power cut loses a confirmed event."
	}
	return fmt.Sprintf("A killed process loses nothing; a power cut or a crash of the operating system can lose events confirmed within "+
		"the last %s before it, which a replay of that time from the outbox brings back.", b.cfg.SyncInterval)
}

// Pending is, per consumer, how many events are not yet delivered or not yet acknowledged.
func (b *Broker) Pending(ctx context.Context) (map[string]int64, error) {
	stream, err := b.js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: pending: %w", outage(err))
	}
	pending := map[string]int64{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		pending[info.Name] = int64(info.NumPending) + int64(info.NumAckPending)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("embedded broker: pending: %w", outage(err))
	}
	return pending, nil
}
