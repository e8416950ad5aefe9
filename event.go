package convergo

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of what an event may carry. They are counted in bytes and are the same for every store and broker, so that an
// event that a database accepted is never one that a broker refuses.
const (
	MaxKeyBytes     = 255        // event key, aggregate id, message id
	MaxNameBytes    = 100        // topic, event type, aggregate type
	MaxPayloadBytes = 512 * 1024 // payload
	MaxHeaderBytes  = 16 * 1024  // all header names and values together
	MaxHeaders      = 64
)

// DefaultMaxAttempts is how often an event is tried before it is dead, when neither the event nor its topic says otherwise.
const DefaultMaxAttempts = 16

// Aggregate names the business object that an event is about: the unit of order. Events of one aggregate are
// delivered in the order in which they were written.
type Aggregate struct {
	Type string // for example "order"; 1 to MaxNameBytes bytes of A-Z a-z 0-9 _ -
	ID   string // for example "20261129-000017"; follows the rules of a Key
}

// String is "type/id", for people and logs.
func (a Aggregate) String() string { return a.Type + "/" + a.ID }

// Event is something that happened, as it is written to an outbox, carried by a broker and handed to a handler.
// Payload is bytes and comes out exactly as it went in.
type Event struct {
	// MessageID identifies this copy of the event in tracing and transport; a UUIDv7. The outbox sets it when empty.
	// It is never what makes an effect happen once: Key is.
	MessageID string
	// Key is the event's business identity: unique in its outbox, readable. When empty the outbox sets
	// "{Type}:{Aggregate.ID}:v{Version}".
	Key       Key
	Type      string // for example "OrderPaid"
	Topic     string // the stream of events it belongs to, for example "order"
	Aggregate Aggregate
	// Version is the aggregate's version after the change that the event tells of; 0 when the aggregate has none.
	Version int64
	Payload []byte
	Headers map[string]string
	// DeliverAt delays the event: it is not sent before this time, and takes its place among its aggregate's events then. Zero
	// and the past mean at once. A consumer that refuses stale versions drops it if later versions came before its time, unless
	// its Version is 0.
	DeliverAt time.Time
	// MaxAttempts is how often sending it is tried before it is dead; 0 means the relay's default for the topic. It does not
	// travel: how often a consumer tries is the consumer's affair.
	MaxAttempts int
	// Position is the event's place in its outbox's queue; the relay sets it, 0 means unknown. It is a new one each time the
	// event is made pending, and the same for all attempts then, so that a broker which drops repeats can tell a replay, which
	// must arrive, from a repeat. It does not travel.
	Position int64
	// Origin names the platform whose relay sent the event; empty when that has no name. The relay sets it, a consumer may refuse
	// another's. It travels, and no store keeps it: it says from where this copy came. Keeps the rules of a name.
	Origin string
	// CreatedAt is when it was written, UTC with microseconds. The outbox sets it when zero.
	CreatedAt time.Time
}

// Lane is the unit of leasing and of order: Lane(a) = first byte of the aggregate's digest, modulo Lanes.
type Lane uint8

// Lanes is the number of lanes. It is a power of two that divides 256 and never changes: rows carry their lane.
const Lanes = 64

// Lane of the aggregate.
func (a Aggregate) Lane() Lane { d := a.Digest(); return Lane(d[0] % Lanes) }

// Digest is SHA-256 of "type/id"; every database and language can compute it.
func (a Aggregate) Digest() Digest { return digest(a.Type + "/" + a.ID) }

// ErrInvalid is wrapped by every error that says an event, a key or a name breaks the rules above.
var ErrInvalid = errors.New("invalid")

// Validate tells whether the event may be written. The error wraps ErrInvalid and names the field, what is wrong and
// the limit. Nothing is cut to fit.
func (e Event) Validate() error {
	if err := e.Key.Validate(); err != nil {
		return fmt.Errorf("event key %q: %w", clip(string(e.Key)), err)
	}
	for _, n := range []struct{ field, value string }{{"type", e.Type}, {"topic", e.Topic}, {"aggregate type", e.Aggregate.Type}} {
		if err := validateName(n.value); err != nil {
			return fmt.Errorf("event %s: %s %q: %w", e.Key, n.field, clip(n.value), err)
		}
	}
	if err := validateText(e.Aggregate.ID); err != nil {
		return fmt.Errorf("event %s: aggregate id %q: %w", e.Key, clip(e.Aggregate.ID), err)
	}
	if err := validateText(e.MessageID); err != nil {
		return fmt.Errorf("event %s: message id %q: %w", e.Key, clip(e.MessageID), err)
	}
	if err := ValidateOrigin(e.Origin); err != nil {
		return fmt.Errorf("event %s: %w", e.Key, err)
	}
	if n := len(e.Payload); n > MaxPayloadBytes {
		return fmt.Errorf("event %s: payload too long: %d > %d bytes: %w", e.Key, n, MaxPayloadBytes, ErrInvalid)
	}
	if e.Version < 0 {
		return fmt.Errorf("event %s: version %d is negative: %w", e.Key, e.Version, ErrInvalid)
	}
	if e.MaxAttempts < 0 {
		return fmt.Errorf("event %s: maximum attempts %d is negative: %w", e.Key, e.MaxAttempts, ErrInvalid)
	}
	if err := e.ValidateTimes(); err != nil {
		return err
	}
	return e.validateHeaders()
}

// ValidateTimes tells whether CreatedAt and DeliverAt are within the years 0 to 9999. The error wraps ErrInvalid.
func (e Event) ValidateTimes() error {
	for _, at := range []struct {
		field string
		time.Time
	}{{"created_at", e.CreatedAt}, {"deliver_at", e.DeliverAt}} {
		if err := validateTime(at.field, at.Time); err != nil {
			return fmt.Errorf("event %s: %w", e.Key, err)
		}
	}
	return nil
}

// validateTime refuses years that neither RFC 3339 nor JSON can tell. It is nearly always another unit that was taken for ours.
func validateTime(field string, at time.Time) error {
	if y := at.Year(); y >= 0 && y <= 9999 {
		return nil
	}
	hint := ""
	if us := at.UnixMicro(); us > 1e17 {
		hint = ", this looks like nanoseconds"
	}
	return fmt.Errorf("%s %d is the year %d: microseconds since 1970 are wanted%s: %w", field, at.UnixMicro(), at.Year(), hint, ErrInvalid)
}

// ValidateOrigin tells whether a platform may have this name: none, or 1 to MaxNameBytes bytes of A-Z a-z 0-9 _ -. The error
// wraps ErrInvalid.
func ValidateOrigin(origin string) error {
	if origin == "" {
		return nil
	}
	if err := validateName(origin); err != nil {
		return fmt.Errorf("origin %q: %w", clip(origin), err)
	}
	return nil
}

func (e Event) validateHeaders() error {
	if n := len(e.Headers); n > MaxHeaders {
		return fmt.Errorf("event %s: too many headers: %d > %d: %w", e.Key, n, MaxHeaders, ErrInvalid)
	}
	total := 0
	for name, value := range e.Headers {
		if err := validateName(name); err != nil {
			return fmt.Errorf("event %s: header %q: %w", e.Key, clip(name), err)
		}
		if reserved(name) {
			return fmt.Errorf("event %s: header %q: the name is reserved for a field of the event: %w", e.Key, name, ErrInvalid)
		}
		if !utf8.ValidString(value) || strings.ContainsFunc(value, isControl) {
			return fmt.Errorf("event %s: header %q: value is not UTF-8 text without control characters: %w", e.Key, name, ErrInvalid)
		}
		total += len(name) + len(value)
	}
	if total > MaxHeaderBytes {
		return fmt.Errorf("event %s: headers too long: %d > %d bytes: %w", e.Key, total, MaxHeaderBytes, ErrInvalid)
	}
	return nil
}

// Micros is a time as every store keeps it: microseconds since 1970 UTC; 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// FromMicros is the inverse of Micros; the result is UTC. What another program wrote may be beyond the years 0 to 9999, which
// JSON cannot tell and Event.Validate refuses: show such a time with Telling.
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// Telling is the time nearest to t that JSON and RFC 3339 can tell: one before the year 0 or after 9999 becomes the first or last
// microsecond between them.
func Telling(t time.Time) time.Time {
	switch t = t.UTC(); {
	case t.Year() < 0:
		return time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	case t.Year() > 9999:
		return time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	}
	return t
}
