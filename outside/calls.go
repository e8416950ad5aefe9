package outside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
)

// Handler makes the calls of one kind.
type Handler[TX any] struct {
	// Do makes the call. No transaction is open. c.Key is the idempotency key to hand on. Its error's verdict decides:
	// convergo.Permanent when the other side definitely did not and will not do it; anything else is ambiguous and leads
	// to Query and then Do again with the same key, except an error that NotSent marks.
	Do func(ctx context.Context, c Claimed) (result []byte, err error)
	// Query asks the other side whether it knows c.Key. It is called before Do whenever c is ambiguous. known=false means
	// that it definitely has no trace of it. Nil when the other side deduplicates by the key and cannot be asked.
	Query func(ctx context.Context, c Claimed) (result []byte, known bool, err error)
	// Done acts on the result in the transaction that records it. When it fails the transaction is rolled back and the
	// call is tried again later; Query finds what was done. Done and Refused may run again when the database has aborted the
	// transaction: they keep nothing outside of tx.
	Done func(ctx context.Context, tx TX, c Claimed, result []byte) error
	// Refused acts on a definite failure in the transaction that records it. With Config.MaxAttempts cause may wrap ErrGaveUp.
	Refused func(ctx context.Context, tx TX, c Claimed, cause error) error
}

// Config of Calls. The zero value is fit for production.
type Config struct {
	Name string // for logs; default "outside"
	// Lease is how long a claimed call belongs to its worker. After that another instance takes it over. Default 30 s.
	Lease time.Duration
	// Timeout bounds Query and Do of one attempt together, counted from before the claim. It must be below Lease, so that
	// no worker is still calling when another takes over. Default and most: three quarters of Lease.
	Timeout time.Duration
	// SettleTimeout bounds the transaction that records an outcome. Default 10 s.
	SettleTimeout time.Duration
	Workers       int           // calls made at the same time; default 8
	Poll          time.Duration // safety net behind wake-ups, and how soon expired leases are noticed; default 2 s
	Backoff       convergo.Backoff
	// MaxAttempts after which a call is given up; 0, the default: never. With a Query, a call is given up only when the
	// other side has just said that it has no trace of it; without one, what became of a given up call is unknown.
	MaxAttempts int
	Now         func() time.Time // default time.Now
	Log         *slog.Logger     // default: discarded
	// Probe points: outside.reserved (claimed, nothing called yet), outside.called (the other side answered, nothing
	// recorded yet), outside.finished (recorded).
	Probe convergo.Probe
}

// Stats are counts since the start, Running excepted.
type Stats struct {
	Running   int64 // calls in flight
	Claimed   int64
	TakenOver int64 // claimed while ambiguous
	Asked     int64 // queries
	Made      int64 // calls of Do
	Done      int64
	Refused   int64 // definite failures, given up ones included
	Retried   int64 // attempts that were put back
	Lost      int64 // outcomes dropped because the lease had gone to somebody else
	Outages   int64 // failed claims and failed recordings: the store's
}

// ErrGaveUp is wrapped by the cause that Refused gets when Config.MaxAttempts is used up.
var ErrGaveUp = errors.New("gave up")

type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

// NotSent marks an error of Do that surely came before anything left this process: the request could not be built, the
// address could not be resolved, the connection was refused. Such an attempt is not ambiguous. A time-out, a broken
// connection or an unreadable answer never is NotSent. NotSent(nil) is nil.
func NotSent(err error) error {
	if err == nil {
		return nil
	}
	return notSent{err}
}

// Calls schedules and makes outgoing calls.
type Calls[TX any] struct {
	store    Store[TX]
	cfg      Config
	handlers map[string]Handler[TX]
	kinds    []string
	wake     chan struct{}
	slots    chan struct{}
	running  sync.WaitGroup
	life     atomic.Bool // Run is on
	// What has been said of things that are tried again while they fail.
	claims, records convergo.FailureLog
	stats           struct {
		running, claimed, takenOver, asked, made, done, refused, retried, lost, outages atomic.Int64
	}
}

// New returns Calls that have no handlers yet.
func New[TX any](store Store[TX], cfg Config) *Calls[TX] {
	if cfg.Name == "" {
		cfg.Name = "outside"
	}
	if cfg.Lease <= 0 {
		cfg.Lease = 30 * time.Second
	}
	if most := cfg.Lease / 4 * 3; cfg.Timeout <= 0 || cfg.Timeout > most {
		cfg.Timeout = most
	}
	if cfg.SettleTimeout <= 0 {
		cfg.SettleTimeout = 10 * time.Second
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 8
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 2 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Calls[TX]{
		store: store, cfg: cfg, handlers: map[string]Handler[TX]{}, wake: make(chan struct{}, 1), slots: make(chan struct{}, cfg.Workers),
	}
}

// Handle names the handler of a kind. Call it before Run. A second handler of one kind, and one without Do, is a
// programming error and panics.
func (c *Calls[TX]) Handle(kind string, h Handler[TX]) {
	if _, twice := c.handlers[kind]; twice || h.Do == nil {
		panic(fmt.Sprintf("outside: handler of %q: it has one already, or Do is nil", kind))
	}
	c.handlers[kind] = h
	c.kinds = append(c.kinds, kind)
}

// Schedule writes the call into tx: it is made after tx has committed, and never if tx rolls back. fresh is false, and
// nothing is written, when a call with this key was scheduled before. An invalid call gives an error that wraps
// convergo.ErrInvalid and leaves tx as it was.
func (c *Calls[TX]) Schedule(ctx context.Context, tx TX, call Call) (fresh bool, err error) {
	if err := validate(call); err != nil {
		return false, err
	}
	fresh, err = c.store.Add(ctx, tx, call, c.cfg.Now())
	if err != nil {
		return false, fmt.Errorf("scheduling call %s %s: %w", call.Kind, call.Key, err)
	}
	if after, ok := any(tx).(convergo.AfterCommit); ok && fresh {
		after.AfterCommit(c.Wake)
	}
	return fresh, nil
}

func validate(call Call) error {
	if err := call.Key.Validate(); err != nil {
		return fmt.Errorf("call of kind %.100q: key %w", call.Kind, err)
	}
	if call.Kind == "" || len(call.Kind) > convergo.MaxNameBytes {
		return fmt.Errorf("call %s: kind %.100q is not 1 to %d bytes: %w", call.Key, call.Kind, convergo.MaxNameBytes, convergo.ErrInvalid)
	}
	if call.Group != "" {
		if err := convergo.Key(call.Group).Validate(); err != nil {
			return fmt.Errorf("call %s: group %w", call.Key, err)
		}
	}
	if n := len(call.Payload); n > convergo.MaxPayloadBytes {
		return fmt.Errorf("call %s: payload too long: %d > %d bytes: %w", call.Key, n, convergo.MaxPayloadBytes, convergo.ErrInvalid)
	}
	return nil
}

// Wake makes Run look for due calls now. It never blocks.
func (c *Calls[TX]) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Stats returns the counts.
func (c *Calls[TX]) Stats() Stats {
	s := &c.stats
	return Stats{
		Running: s.running.Load(), Claimed: s.claimed.Load(), TakenOver: s.takenOver.Load(), Asked: s.asked.Load(), Made: s.made.Load(),
		Done: s.done.Load(), Refused: s.refused.Load(), Retried: s.retried.Load(), Lost: s.lost.Load(), Outages: s.outages.Load(),
	}
}
