package relay

import (
	"log/slog"
	"time"

	"github.com/convergo/convergo"
)

// Policy says what a dead event does to the later events of its aggregate.
type Policy uint8

// The policies.
const (
	// HoldAggregate keeps the aggregate's later events waiting until a person redrives or discards the dead one.
	HoldAggregate Policy = iota
	// SkipEvent lets the aggregate's later events go on without it.
	SkipEvent
)

// TopicPolicy is how failures of one topic's events are treated. Zero fields take the relay's values.
type TopicPolicy struct {
	Backoff     convergo.Backoff
	MaxAttempts int    // attempts before an event is dead, when the event itself names none
	OnDead      Policy // default HoldAggregate
}

// Config of a Relay; the zero value is fit for production.
type Config struct {
	Name    string        // first part of the lease owner's name, and in logs; default "relay"
	Workers int           // batches in flight at most, each of its own share of the lanes; default 2
	Batch   int           // events per publish and settle; default 512
	Lease   time.Duration // term of a lease: after a crash others take over within 1.5 terms; default 15 s
	Poll    time.Duration // how often an idle relay looks without being woken; default 1 s
	// Backoff and MaxAttempts are for topics that have none of their own; defaults: convergo.Backoff's, and
	// convergo.DefaultMaxAttempts.
	Backoff     convergo.Backoff
	MaxAttempts int
	OnDead      Policy // for topics that Topics does not name; default HoldAggregate
	Topics      map[string]TopicPolicy
	// Outage is how long to wait between two probes while the broker takes no events; default 1 s doubling up to 30 s.
	Outage convergo.Backoff
	// MaxWait is how long after it was due an event may wait for a receiver that is not there (convergo.Unavailable) without
	// spending attempts: a webhook's endpoint that is down, a subject for which nobody has a queue. One that is older spends them,
	// as after any failure. Default 72 h.
	MaxWait         time.Duration
	PublishTimeout  time.Duration // bounds one Publisher.Publish; default 10 s
	SettleTimeout   time.Duration // bounds each call of the store; default 5 s
	ShutdownTimeout time.Duration // how long a batch in flight may go on after Run's context ended; default 5 s
	// Origin names the platform that the store belongs to: every event is sent with it, so that a consumer of another one that
	// shares the broker's names by mistake refuses the event instead of consuming it. Default none. Rules: convergo.ValidateOrigin.
	Origin string
	Now    func() time.Time
	Log    *slog.Logger   // default discards
	Probe  convergo.Probe // points: relay.claimed, relay.published, relay.settled
	// Alert is told of each event that went to the dead letters, after that is durable. It must not block.
	Alert func(Failure)
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "relay"
	}
	if c.Workers <= 0 {
		c.Workers = 2
	}
	c.Workers = min(c.Workers, convergo.Lanes)
	if c.Batch <= 0 {
		c.Batch = 512
	}
	c.Lease = orDefault(c.Lease, 15*time.Second)
	c.Poll = orDefault(c.Poll, time.Second)
	if unset(c.Outage) {
		c.Outage = convergo.Backoff{Base: time.Second, Factor: 2, Cap: 30 * time.Second}
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = convergo.DefaultMaxAttempts
	}
	c.MaxWait = orDefault(c.MaxWait, 72*time.Hour)
	c.PublishTimeout = orDefault(c.PublishTimeout, 10*time.Second)
	c.SettleTimeout = orDefault(c.SettleTimeout, 5*time.Second)
	c.ShutdownTimeout = orDefault(c.ShutdownTimeout, 5*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

func unset(b convergo.Backoff) bool {
	return b.Base == 0 && b.Factor == 0 && b.Cap == 0 && b.Jitter == 0 && len(b.Schedule) == 0
}

// policy is the topic's policy with every field set.
func (c Config) policy(topic string) TopicPolicy {
	p, ok := c.Topics[topic]
	if !ok {
		p.OnDead = c.OnDead
	}
	if unset(p.Backoff) {
		p.Backoff = c.Backoff
	}
	if p.MaxAttempts <= 0 {
		p.MaxAttempts = c.MaxAttempts
	}
	return p
}

// Stats counts what a relay has done since it was made.
type Stats struct {
	Sent        int64 // events that the broker confirmed and the store settled
	Failed      int64 // failed attempts that will be repeated, those below included
	Unavailable int64 // those of them that spent nothing, because the event's receiver was not there
	Dead        int64 // events that went to the dead letters
	Outages     int64 // times that the broker became unreachable
	LeaseLosses int64 // leases lost while they were in use, or because the store could not be reached for a term
	Lanes       int   // lanes held now
	InOutage    bool  // the broker is unreachable now
	LastError   string
	LastErrorAt time.Time
}

// leastPerLane is how many events are read of each lane when all lanes are busy.
func (c Config) leastPerLane() int { return min(max(16, c.Batch/convergo.Lanes), c.Batch) }
