package relay

import "time"

// Kept is how long one place of a broker, such as a topic or a stream, keeps events that its consumers are done with. So long a copy can
// come again, for instance when a consumer's position is lost; the marks of what consumers applied must stay longer
// (retain.CheckWindow).
type Kept struct {
	Where   string        // for example "topic convergo.order"
	Setting string        // what decides it, as found: "retention.ms 604800000 and segment.ms 86400000"
	Age     time.Duration // greatest age of an event that can come again; 0 means without limit
}

// FieldBytes is more than the headers take that a broker needs for the fields of an event.
const FieldBytes = 4 * 1024

// Room is the largest event that a broker takes by its own settings.
type Room struct {
	Setting string // the one that decides, as found: "max_payload 65536 of the server"
	Payload int    // bytes that are left for an event's payload and headers of its own, beside FieldBytes; may be negative
}
