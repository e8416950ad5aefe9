package nats

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
)

// Headers on the wire are those of convergo.Event.Wire, with two exceptions that keep every event as it was written:
// the server acts on headers that begin with "Nats-", and clients on "Status", so an event's own ones travel behind
// escapedName; and the protocol cuts blanks at both ends of a value, so such a value travels as a JSON string behind quotedValue.
const (
	serverPrefix = "Nats-"
	statusHeader = "Status"
	escapedName  = "Convergo-Escaped-"
	quotedValue  = "json:"
)

// Encode makes the message of an event. It has every header of convergo.Event.Wire, and the message id.
func Encode(subject string, e convergo.Event) *nats.Msg {
	const fields = 10
	header := make(nats.Header, fields+len(e.Headers))
	values := make([]string, 0, fields+len(e.Headers)) // one array for all of them
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range e.Headers {
		if hasPrefixFold(name, serverPrefix) || strings.EqualFold(name, statusHeader) || hasPrefixFold(name, escapedName) {
			name = escapedName + name
		}
		set(name, quote(value))
	}
	set(convergo.HeaderKey, quote(string(e.Key)))
	set(convergo.HeaderMessageID, quote(e.MessageID))
	set(convergo.HeaderType, e.Type)
	set(convergo.HeaderTopic, e.Topic)
	set(convergo.HeaderAggregateType, e.Aggregate.Type)
	set(convergo.HeaderAggregateID, quote(e.Aggregate.ID))
	set(convergo.HeaderVersion, strconv.FormatInt(e.Version, 10))
	set(convergo.HeaderCreatedAt, strconv.FormatInt(convergo.Micros(e.CreatedAt), 10))
	if e.Origin != "" {
		set(convergo.HeaderOrigin, e.Origin)
	}
	set(nats.MsgIdHdr, messageID(e))
	return &nats.Msg{Subject: subject, Header: header, Data: e.Payload}
}

// messageID is what the server drops repeats by: the event key, and the place in the outbox's queue when it is known, which
// is another one when the event is replayed. Another platform's event of the same key is another event.
func messageID(e convergo.Event) string {
	id := string(e.Key)
	if e.Origin != "" {
		id = e.Origin + "/" + id
	}
	if e.Position == 0 {
		return id
	}
	return id + "#" + strconv.FormatInt(e.Position, 10)
}

// Decode is the inverse of Encode. Its error is that of convergo.FromWire.
func Decode(header nats.Header, payload []byte) (convergo.Event, error) {
	wire := make(map[string]string, len(header))
	for name, values := range header {
		if len(values) == 0 || hasPrefixFold(name, serverPrefix) {
			continue
		}
		if hasPrefixFold(name, escapedName) {
			name = name[len(escapedName):]
		}
		wire[name] = unquote(values[0])
	}
	return convergo.FromWire(wire, payload)
}

func quote(value string) string {
	if strings.TrimSpace(value) == value && !strings.HasPrefix(value, quotedValue) {
		return value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return value // a string always marshals
	}
	return quotedValue + string(text)
}

func unquote(value string) string {
	text, ok := strings.CutPrefix(value, quotedValue)
	if !ok {
		return value
	}
	var plain string
	if json.Unmarshal([]byte(text), &plain) != nil {
		return value
	}
	return plain
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// Layout is where events lie in a stream.
type Layout struct {
	Prefix     string // first part of every subject, for example "ev"
	Partitions int
}

// Subject of an event: prefix.topic.type.partition.
func (l Layout) Subject(e convergo.Event) string {
	return l.Prefix + "." + e.Topic + "." + e.Type + "." + strconv.Itoa(l.Partition(e.Aggregate))
}

// Partition of an aggregate.
func (l Layout) Partition(a convergo.Aggregate) int { return int(a.Lane()) % l.Partitions }

// All is the subject that covers every event.
func (l Layout) All() string { return l.Prefix + ".*.*.*" }

// Filters is the subjects in the server's form, sorted, none within another, in one partition ("*": in all). The subjects are
// valid and at least one.
func (l Layout) Filters(subjects []convergo.Subject, partition string) []string {
	whole := map[string]bool{}
	for _, s := range subjects {
		whole[s.Topic] = whole[s.Topic] || s.Type == ""
	}
	var filters []string
	for _, s := range subjects {
		if whole[s.Topic] {
			s.Type = "" // String then ends in an asterisk
		}
		filters = append(filters, l.Prefix+"."+s.String()+"."+partition)
	}
	slices.Sort(filters)
	return slices.Compact(filters)
}
