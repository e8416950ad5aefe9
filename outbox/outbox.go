package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/convergo/convergo"
)

// ErrDuplicate is wrapped by the error of Add when the outbox already has an event with the same key. The error names
// the key. The caller rolls back (the fact was told before), or uses AddOnce when that is no fault.
var ErrDuplicate = errors.New("duplicate event key")

// ErrTooLarge is wrapped, beside convergo.ErrInvalid, by the error of Add for an event that is above Config.MaxPayload. The error names
// both sizes.
var ErrTooLarge = errors.New("too large for the broker")

// Config of an Outbox; the zero value is fit for production.
type Config struct {
	// Now is the clock of CreatedAt and of message ids; default time.Now.
	Now func() time.Time
	// MaxPayload is how many bytes an event's payload and its Headers may have together, for a broker that takes less than an outbox does:
	// what is refused by the broker only is a dead event, and holds up its aggregate. A payload alone never has more than
	// convergo.MaxPayloadBytes, which is also the default. Brokers tell it (Room); several of them, or several limits: the smallest.
	MaxPayload int
}

// headerBytes is more than a broker adds to a header's name and value.
const headerBytes = 32

// Outbox adds events to transactions. It keeps no state that matters: any number of them may write to one store. It is
// safe for concurrent use.
type Outbox[TX any] struct {
	store Store[TX]
	now   func() time.Time
	ids   messageIDs
	most  int // bytes of payload and headers; 0 for no limit beside those of every event
}

// New returns an outbox that writes through store.
func New[TX any](store Store[TX], cfg Config) *Outbox[TX] {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Outbox[TX]{store: store, now: cfg.Now, most: max(cfg.MaxPayload, 0)}
}

// Add writes the events, in order, as part of tx: they exist when tx commits and never did when it rolls back. It sets
// MessageID (a UUIDv7), Key ("{Type}:{Aggregate.ID}:v{Version}") and CreatedAt where they are empty; the caller's events
// are not changed. Nothing reaches the database when an event is invalid: the error wraps convergo.ErrInvalid.
//
// A key that the outbox already has is ErrDuplicate; other events of the call may then be in tx, so roll it back. After
// any error from the database roll back too.
//
// Events of one aggregate are delivered in the order of Add if their writers take turns: change (or lock) the
// aggregate's row before you add its event.
func (o *Outbox[TX]) Add(ctx context.Context, tx TX, events ...convergo.Event) error {
	prepared, fresh, err := o.insert(ctx, tx, events)
	if err != nil {
		return err
	}
	for i, ok := range fresh {
		if !ok {
			return fmt.Errorf("%w: the outbox already has %q; roll back, or use AddOnce when that is no fault", ErrDuplicate, prepared[i].Key)
		}
	}
	return nil
}

// AddOnce is Add for events that may have been added before: an event whose key the outbox already has is skipped, and
// tx stays usable. It returns how many were new.
func (o *Outbox[TX]) AddOnce(ctx context.Context, tx TX, events ...convergo.Event) (added int, err error) {
	_, fresh, err := o.insert(ctx, tx, events)
	if err != nil {
		return 0, err
	}
	for _, ok := range fresh {
		if ok {
			added++
		}
	}
	return added, nil
}

func (o *Outbox[TX]) insert(ctx context.Context, tx TX, events []convergo.Event) ([]convergo.Event, []bool, error) {
	if len(events) == 0 {
		return nil, nil, nil
	}
	prepared, err := o.prepare(events)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w", err)
	}
	fresh, err := o.store.Insert(ctx, tx, prepared)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: insert %d events, the first is %q: %w", len(prepared), prepared[0].Key, err)
	}
	if len(fresh) != len(prepared) {
		return nil, nil, fmt.Errorf("outbox: the store answered for %d of %d events; roll the transaction back", len(fresh), len(prepared))
	}
	return prepared, fresh, nil
}

// prepare fills the defaults into copies and validates them all before the first byte goes to the database.
func (o *Outbox[TX]) prepare(events []convergo.Event) ([]convergo.Event, error) {
	now := o.now()
	prepared := make([]convergo.Event, len(events))
	for i, e := range events {
		if e.MessageID == "" {
			e.MessageID = o.ids.next(now)
		}
		if e.Key == "" {
			e.Key = convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)
		}
		if e.CreatedAt.IsZero() {
			e.CreatedAt = now
		}
		if !e.DeliverAt.After(now) { // nothing is left to wait for, and a delay would cost the event its place in the order
			e.DeliverAt = time.Time{}
		}
		e.CreatedAt = micro(e.CreatedAt)
		e.DeliverAt = micro(e.DeliverAt)
		if err := e.Validate(); err != nil {
			return nil, err
		}
		if err := o.fits(e); err != nil {
			return nil, err
		}
		prepared[i] = e
	}
	return prepared, nil
}

// fits refuses what the broker would refuse.
func (o *Outbox[TX]) fits(e convergo.Event) error {
	if o.most == 0 {
		return nil
	}
	headers := 0
	for name, value := range e.Headers {
		headers += len(name) + len(value) + headerBytes
	}
	if n := len(e.Payload) + headers; n > o.most {
		return fmt.Errorf("event %s: %w: payload of %d bytes and headers of %d, together %d > %d, what the broker takes (Config.MaxPayload): %w",
			e.Key, ErrTooLarge, len(e.Payload), headers, n, o.most, convergo.ErrInvalid)
	}
	return nil
}

// micro is t as stores keep it, so that an event reads back as it was prepared.
func micro(t time.Time) time.Time { return convergo.FromMicros(convergo.Micros(t)) }
