package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// tally is what one transaction did; it is told to the world when the transaction has committed.
type tally struct {
	applied, duplicates, stale, ignored, queued int64
	failed, dead                                []Failure
	accused                                     map[convergo.Aggregate]bool // a suspect of the batch heads their queues
}

func (t *tally) accuse(a convergo.Aggregate) {
	if t.accused == nil {
		t.accused = map[convergo.Aggregate]bool{}
	}
	t.accused[a] = true
}

func (c *Consumer[TX]) publish(t *tally) {
	s := &c.stats
	s.applied.Add(t.applied)
	s.duplicates.Add(t.duplicates)
	s.stale.Add(t.stale)
	s.ignored.Add(t.ignored)
	s.queued.Add(t.queued)
	s.failed.Add(int64(len(t.failed)))
	s.dead.Add(int64(len(t.dead)))
	for _, f := range t.failed {
		c.cfg.Log.Warn("message failed, will be tried again", "consumer", c.cfg.Consumer, "type", f.Event.Type, "key", f.Event.Key,
			"attempt", f.Attempts, "next", f.Next, "place", f.Place, "error", f.Error)
	}
	for _, f := range t.dead {
		c.cfg.Log.Error("dead letter: a person has to look", "consumer", c.cfg.Consumer, "type", f.Event.Type, "key", f.Event.Key,
			"attempts", f.Attempts, "place", f.Place, "error", f.Error)
		if c.cfg.Alert != nil {
			c.cfg.Alert(c.cfg.Consumer, f)
		}
	}
	if t.queued > 0 || len(t.failed) > 0 || len(t.dead) > 0 {
		c.Wake() // there may be a new due time
	}
}

// usable tells why a delivery cannot be told apart from others, or put in order, and so cannot be handled.
func usable(d Delivery) error {
	if d.Malformed != nil {
		return d.Malformed
	}
	if err := d.Event.Key.Validate(); err != nil {
		return fmt.Errorf("event key %w", err)
	}
	if err := convergo.Key(d.Event.Aggregate.ID).Validate(); err != nil {
		return fmt.Errorf("aggregate id %w", err)
	}
	return nil
}

// buryMalformed writes the dead letter of a message that is no valid event. Whatever key it claims to have is not used:
// a garbled copy must not make the true event a duplicate. Its key is made from all that it holds, so that the same
// message delivered again is the same dead letter, and two different ones are two.
func (c *Consumer[TX]) buryMalformed(ctx context.Context, tx TX, e convergo.Event, cause error, t *tally, now time.Time) error {
	f := Failure{Event: presentable(e), Attempts: 1, Error: "malformed message: " + cause.Error(), Place: "inbox.read"}
	_, err := c.bury(ctx, tx, f, false, t, now)
	return err
}

// malformed is the aggregate type of the events that presentable makes.
const malformed = "malformed"

var errMalformed = errors.New("a malformed message cannot be applied: discard it, and have its producer send the event as it should be")

// wasMalformed tells whether presentable made e. It has a key and an aggregate that nobody else knows.
func wasMalformed(e convergo.Event) bool {
	return e.Aggregate.Type == malformed && e.Aggregate.ID == string(e.Key) && strings.HasPrefix(string(e.Key), malformed+":")
}

// presentable makes a garbled event one that any store can keep: valid names and text within the limits. The payload is
// kept as it is up to the limit, what was cut or replaced is told in headers.
func presentable(e convergo.Event) convergo.Event {
	id := malformed + ":" + fingerprint(e)
	p := convergo.Event{
		Key: convergo.Key(id), MessageID: id, Type: name(e.Type), Topic: name(e.Topic),
		Aggregate: convergo.Aggregate{Type: malformed, ID: id}, Payload: e.Payload, CreatedAt: e.CreatedAt,
		Headers: map[string]string{},
	}
	for header, value := range map[string]string{
		"Malformed-Key": string(e.Key), "Malformed-Message-Id": e.MessageID, "Malformed-Type": e.Type, "Malformed-Topic": e.Topic,
		"Malformed-Aggregate": e.Aggregate.String(), "Malformed-Payload-Bytes": fmt.Sprint(len(e.Payload)),
	} {
		p.Headers[header] = text(value)
	}
	for _, header := range slices.Sorted(maps.Keys(e.Headers)) {
		if len(p.Headers) == convergo.MaxHeaders/2 {
			break
		}
		p.Headers["Original-"+name(header)] = text(e.Headers[header])
	}
	if len(p.Payload) > convergo.MaxPayloadBytes {
		p.Payload = p.Payload[:convergo.MaxPayloadBytes]
	}
	return p
}

func fingerprint(e convergo.Event) string {
	h := sha256.New()
	write := func(part string) {
		_ = binary.Write(h, binary.BigEndian, int64(len(part))) // a hash never fails to be written to
		h.Write([]byte(part))
	}
	for _, part := range []string{string(e.Key), e.MessageID, e.Type, e.Topic, e.Aggregate.Type, e.Aggregate.ID, string(e.Payload)} {
		write(part)
	}
	for _, header := range slices.Sorted(maps.Keys(e.Headers)) {
		write(header)
		write(e.Headers[header])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// name keeps of s what a name may hold.
func name(s string) string {
	s = strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9') || r == '_' || r == '-' {
			return r
		}
		return '-'
	}, s)
	if s == "" {
		return "unknown"
	}
	return s[:min(len(s), convergo.MaxNameBytes-len("Original-"))]
}

// text keeps of s what a header's value may hold, shortened.
func text(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return '�'
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// panicked is a handler's panic as an error.
type panicked struct {
	value any
	place string
}

func (p panicked) Error() string { return fmt.Sprintf("panic at %s: %v", p.place, p.value) }

// guard runs the handler; a panic becomes an error that names the place.
func guard[TX any](ctx context.Context, tx TX, e convergo.Event, h Handler[TX]) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked{v, panicPlace()}
		}
	}()
	return h(ctx, tx, e)
}

// panicPlace is the file and line that panicked, as seen from a deferred function.
func panicPlace() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", frame.File[strings.LastIndex(frame.File, "/")+1:], frame.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}

// separator is a control character: no event's key has one, so that the marks of Once are never those of events.
const separator = "\x1f"

type clock struct{} // context key of a consumer's Now

// Once runs fn in tx unless it ran before for (consumer, event, action): for a handler whose event drives several actions,
// each of which happens once whatever other events, redrives or replays lead to it. The mark is kept in the same transaction
// as what fn writes, under a key that no event can have; when fn fails both are undone and tx stays usable. ran is false when
// it ran before. The same key with another payload is a permanent error. action keeps the rules of convergo.Key.
func Once[TX any](
	ctx context.Context, store Store[TX], tx TX, consumer, action string, event convergo.Event, fn func(ctx context.Context, tx TX) error,
) (ran bool, err error) {
	now := time.Now
	if injected, ok := ctx.Value(clock{}).(func() time.Time); ok {
		now = injected
	}
	if err := errors.Join(convergo.Key(action).Validate(), event.Key.Validate()); err != nil {
		return false, fmt.Errorf("action %.100q of %s %.100q: %w", action, event.Type, event.Key, err)
	}
	key := event.Key
	event.Key = convergo.Key("once" + separator + action + separator + string(key))
	event.Version = 0 // the event's own mark has the version
	err = store.Nested(ctx, tx, func(ctx context.Context, tx TX) error {
		marked, err := store.Mark(ctx, tx, consumer, event, false, now())
		if err != nil {
			return err
		}
		switch marked {
		case Fresh:
			ran = true
			return fn(ctx, tx)
		case Mismatch:
			return convergo.Permanent(fmt.Errorf("action %s of %s: done before for another payload", action, key))
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return ran, nil
}
