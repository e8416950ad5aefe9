package redis

import (
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/convergo/convergo"
)

// payloadField is a name that no header can have.
const payloadField = ":payload"

// fields are an entry's names and values in turn. Redis keeps both byte for byte.
func fields(e convergo.Event) []any {
	wire := e.Wire()
	list := make([]any, 0, 2*len(wire)+2)
	for name, value := range wire {
		list = append(list, name, value)
	}
	return append(list, payloadField, e.Payload)
}

// entry is one message of a stream, as a script returns it.
type entry struct {
	id     string
	fields map[string]string
}

func (e entry) event() (convergo.Event, error) {
	payload := []byte(e.fields[payloadField])
	headers := make(map[string]string, len(e.fields))
	for name, value := range e.fields {
		if name != payloadField {
			headers[name] = value
		}
	}
	return convergo.FromWire(headers, payload)
}

var errAnswer = errors.New("the server's answer has another shape than was asked for")

// entriesOf reads [[id, [name, value, …]], …]. An entry that was deleted while a group had it comes as nil and is left out.
func entriesOf(answer any) ([]entry, error) {
	list, ok := answer.([]any)
	if !ok {
		return nil, errAnswer
	}
	entries := make([]entry, 0, len(list))
	for _, item := range list {
		pair, ok := item.([]any)
		if item == nil {
			continue
		}
		if !ok || len(pair) != 2 {
			return nil, errAnswer
		}
		id, ok := pair[0].(string)
		if !ok {
			return nil, errAnswer
		}
		texts, err := textsOf(pair[1])
		if err != nil {
			return nil, err
		}
		e := entry{id: id, fields: make(map[string]string, len(texts)/2)}
		for i := 0; i+1 < len(texts); i += 2 {
			e.fields[texts[i]] = texts[i+1]
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func textsOf(answer any) ([]string, error) {
	list, ok := answer.([]any)
	if !ok {
		return nil, errAnswer
	}
	texts := make([]string, len(list))
	for i, item := range list {
		if texts[i], ok = item.(string); !ok {
			return nil, errAnswer
		}
	}
	return texts, nil
}

// verdict judges what the client or the server answered: everything that goes wrong here is the server's trouble or the
// network's, and says nothing about a message, except what names a fault of the keys.
func verdict(err error) error {
	if err == nil || convergo.VerdictOf(err) != convergo.Again {
		return err
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // a key of ours was overwritten: a person's affair, and not an outage
		return err
	}
	return convergo.Unreachable(err)
}
