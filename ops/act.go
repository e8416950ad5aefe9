package ops

import (
	"context"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// Target says what a person acted on.
type Target string

// What a person can act on. With machines of a program's own they share the table of transitions, and so the names.
const (
	TargetEvent  Target = "ops.event"  // a dead event
	TargetLetter Target = "ops.letter" // a dead letter
	TargetSent   Target = "ops.sent"   // events that were sent
)

// Move says what a person did.
type Move string

// What a person can do.
const (
	MoveRedrive Move = "redrive"
	MoveDiscard Move = "discard"
	MoveReplay  Move = "replay"
)

// MaxText is how many bytes of who and why a Trail keeps; what is longer is cut at a character. Who asks a person for a reason refuses a
// longer one.
const MaxText = 255

// Act is what a person did.
type Act struct {
	Seq    int64 // of the record; they are listed in its order. Given by the store
	Target Target
	ID     string // of the dead event or dead letter; of a replay the time from which on
	Move   Move
	Key    convergo.Key // of the event or message, when there is one
	By     string       // who
	Reason string       // why; may be empty
	At     time.Time
}

// Trail is the record of what persons did. It has no retention: it outlives the events and letters. The stores' own methods write it in the
// transaction of what is done, and log it after the commit.
type Trail interface {
	// Record adds what was done in another way than by the methods of Outbox and Inbox.
	Record(ctx context.Context, a Act) error
	// Acts lists up to limit with a Seq above after (0: from the start), in its order. None is the end.
	Acts(ctx context.Context, limit int, after int64) ([]Act, error)
}

// States are those before and after the act, as the table of transitions has them.
func (a Act) States() (from, to string) {
	switch a.Move {
	case MoveRedrive:
		return "DEAD", string(Redriven)
	case MoveDiscard:
		return "DEAD", string(Discarded)
	}
	return "SENT", "PENDING"
}

// Cut is the act with texts as long as every store can keep them, in UTF-8 and without zero bytes.
func (a Act) Cut() Act {
	for _, text := range []*string{&a.ID, &a.By, &a.Reason, (*string)(&a.Key)} {
		if len(*text) > MaxText {
			*text = (*text)[:MaxText]
		}
		*text = strings.ReplaceAll(strings.ToValidUTF8(*text, ""), "\x00", "")
	}
	return a
}

// Attrs are the act for a log, as keys and values of slog.
func (a Act) Attrs() []any {
	return []any{"did", string(a.Move), "target", string(a.Target), "id", a.ID, "key", string(a.Key), "by", a.By, "reason", a.Reason}
}
