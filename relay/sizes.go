package relay

import (
	"fmt"

	"github.com/convergo/convergo"
)

// MaxHeaderText is the length of the text of headers, as the outbox keeps it, up to which it is read: JSON that writes the
// legal ones in the longest way is shorter.
const MaxHeaderText = 128 * 1024

// Sizes are the lengths of an event's columns in bytes, as the database tells them without reading what is in them.
type Sizes struct{ Topic, Type, AggregateType, AggregateID, MessageID, Key, Headers, Payload int64 }

type column struct {
	name       string
	size, most int64
}

func (s Sizes) columns() [8]column {
	return [...]column{
		{"payload", s.Payload, convergo.MaxPayloadBytes}, {"headers", s.Headers, MaxHeaderText}, {"event_key", s.Key, convergo.MaxKeyBytes},
		{"aggregate_id", s.AggregateID, convergo.MaxKeyBytes}, {"message_id", s.MessageID, convergo.MaxKeyBytes},
		{"topic", s.Topic, convergo.MaxNameBytes}, {"type", s.Type, convergo.MaxNameBytes},
		{"aggregate_type", s.AggregateType, convergo.MaxNameBytes},
	}
}

func (s Sizes) sum() (n int64) {
	for _, c := range s.columns() {
		n += c.size
	}
	return n
}

// Check tells whether the event may be read: nil, or a convergo.Permanent error that wraps convergo.ErrInvalid.
func (s Sizes) Check(id int64) error {
	for _, c := range s.columns() {
		if c.size > c.most {
			return convergo.Permanent(fmt.Errorf("%s of the row %d of outbox_event has %d bytes, the limit is %d: it was not read, and is not sent; %s: %w",
				c.name, id, c.size, c.most, c.remedy(), convergo.ErrInvalid))
		}
	}
	return nil
}

// remedy is what a person can do about a dead event whose column is too long. What says which event it is, and in which order it
// comes, is in digests and in rows beside it: it never changes. What the event says is in its row alone, and nobody has read it yet.
func (c column) remedy() string {
	const another = "discard it, and have its writer write one that fits, under another key"
	switch c.name {
	case "payload":
		return another + "; or, while it is dead, put a payload that fits into this row, and redrive it"
	case "headers":
		return another + "; or, while it is dead, put headers that fit into this row, and redrive it"
	}
	return another + "; this column of a row may not be changed"
}

// without is the event with another text in the place of each that is too long: one that nobody else has.
func (s Sizes) without(id int64, e convergo.Event) convergo.Event {
	long := fmt.Sprintf("too-long-%d", id)
	for _, t := range []struct {
		text *string
		size int64
		most int64
	}{
		{&e.Topic, s.Topic, convergo.MaxNameBytes}, {&e.Type, s.Type, convergo.MaxNameBytes},
		{&e.Aggregate.Type, s.AggregateType, convergo.MaxNameBytes}, {&e.Aggregate.ID, s.AggregateID, convergo.MaxKeyBytes},
		{&e.MessageID, s.MessageID, convergo.MaxKeyBytes}, {(*string)(&e.Key), s.Key, convergo.MaxKeyBytes},
	} {
		if t.size > t.most {
			*t.text = long
		}
	}
	e.Headers, e.Payload = nil, nil
	return e
}
