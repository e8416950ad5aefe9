package convergo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names of the headers under which a broker carries an event's fields. They are part of the wire format: services in
// any language read them. The event's own headers travel beside them under their own names.
const (
	HeaderKey           = "Convergo-Key"
	HeaderMessageID     = "Convergo-Message-Id"
	HeaderType          = "Convergo-Type"
	HeaderTopic         = "Convergo-Topic"
	HeaderAggregateType = "Convergo-Aggregate-Type"
	HeaderAggregateID   = "Convergo-Aggregate-Id"
	HeaderVersion       = "Convergo-Aggregate-Version"
	HeaderCreatedAt     = "Convergo-Created-At" // microseconds since 1970 UTC
	HeaderOrigin        = "Convergo-Origin"     // only when the event has one
)

// reserved tells whether an event's own header would collide with a field's, also on a transport that folds case.
func reserved(header string) bool {
	const prefix = "Convergo-"
	if len(header) < len(prefix) || !strings.EqualFold(header[:len(prefix)], prefix) {
		return false
	}
	for _, name := range []string{
		HeaderKey, HeaderMessageID, HeaderType, HeaderTopic, HeaderAggregateType, HeaderAggregateID, HeaderVersion, HeaderCreatedAt,
		HeaderOrigin,
	} {
		if strings.EqualFold(header, name) {
			return true
		}
	}
	return false
}

// Wire is the event as headers beside its payload: the inverse of FromWire.
func (e Event) Wire() map[string]string {
	h := make(map[string]string, len(e.Headers)+9)
	for name, value := range e.Headers {
		h[name] = value
	}
	h[HeaderKey] = string(e.Key)
	h[HeaderMessageID] = e.MessageID
	h[HeaderType] = e.Type
	h[HeaderTopic] = e.Topic
	h[HeaderAggregateType] = e.Aggregate.Type
	h[HeaderAggregateID] = e.Aggregate.ID
	h[HeaderVersion] = strconv.FormatInt(e.Version, 10)
	h[HeaderCreatedAt] = strconv.FormatInt(Micros(e.CreatedAt), 10)
	if e.Origin != "" {
		h[HeaderOrigin] = e.Origin
	}
	return h
}

// FromWire builds the event that a broker delivered and validates it. On an error (which wraps ErrInvalid) the event
// still holds all that could be read, so that it can be kept as a dead letter.
func FromWire(headers map[string]string, payload []byte) (Event, error) {
	e := Event{
		Key: Key(headers[HeaderKey]), MessageID: headers[HeaderMessageID], Type: headers[HeaderType], Topic: headers[HeaderTopic],
		Aggregate: Aggregate{headers[HeaderAggregateType], headers[HeaderAggregateID]}, Payload: payload,
		Origin: headers[HeaderOrigin],
	}
	for name, value := range headers {
		switch name {
		case HeaderKey, HeaderMessageID, HeaderType, HeaderTopic, HeaderAggregateType, HeaderAggregateID, HeaderVersion, HeaderCreatedAt,
			HeaderOrigin:
		default:
			if e.Headers == nil {
				e.Headers = map[string]string{}
			}
			e.Headers[name] = value
		}
	}
	var err error
	if e.Version, err = strconv.ParseInt(headers[HeaderVersion], 10, 64); err != nil {
		return e, fmt.Errorf("header %s %q is not a number: %w", HeaderVersion, clip(headers[HeaderVersion]), ErrInvalid)
	}
	us, err := strconv.ParseInt(headers[HeaderCreatedAt], 10, 64)
	if err != nil {
		return e, fmt.Errorf("header %s %q is not a number: %w", HeaderCreatedAt, clip(headers[HeaderCreatedAt]), ErrInvalid)
	}
	if us != 0 {
		e.CreatedAt = time.UnixMicro(us).UTC()
	}
	return e, e.Validate()
}
