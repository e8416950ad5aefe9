package embedded

import (
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/convergo/convergo"
)

// Headers on the wire are those of convergo.Event.Wire, with two exceptions that keep every event as it was written:
// the server acts on headers that begin with "Nats-", so an event's own ones travel behind escapedName; and the protocol
// cuts blanks at both ends of a value, so such a value travels as a JSON string behind quotedValue.
const (
	serverPrefix = "Nats-"
	escapedName  = "Convergo-Escaped-"
	quotedValue  = "json:"
)

// HeaderReplay makes an event that has it another message for the broker's deduplication: its value is appended
// to the message id. A replay gives one value to all events that it sends again.
const HeaderReplay = "Convergo-Replay"

func subjectOf(e convergo.Event) string { return "ev." + e.Topic + "." + e.Type }

func encode(e convergo.Event) *nats.Msg {
	wire := e.Wire()
	header := make(nats.Header, len(wire)+1)
	values := make([]string, 0, len(wire)+1)
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range wire {
		if hasPrefixFold(name, serverPrefix) || hasPrefixFold(name, escapedName) {
			name = escapedName + name
		}
		set(name, quote(value))
	}
	set(nats.MsgIdHdr, messageID(e))
	return &nats.Msg{Subject: subjectOf(e), Header: header, Data: e.Payload}
}

// messageID is what the server deduplicates by: the event key, so that a consumer in any language can use it too.
func messageID(e convergo.Event) string {
	if replay := strings.TrimSpace(e.Headers[HeaderReplay]); replay != "" {
		return string(e.Key) + "#" + replay
	}
	return string(e.Key)
}

func decode(header nats.Header, payload []byte) (convergo.Event, error) {
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
