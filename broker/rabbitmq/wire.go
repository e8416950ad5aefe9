package rabbitmq

import (
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/convergo/convergo"
)

// escaped comes before the name of an event's own header that the server would act on: CC and BCC send copies to other
// queues (and close the channel when they are no lists), x-… steer plug-ins and tell of deliveries.
const escaped = "Convergo-Escaped-"

func needsEscape(name string) bool {
	return hasPrefixFold(name, "x-") || strings.EqualFold(name, "CC") || strings.EqualFold(name, "BCC") || hasPrefixFold(name, escaped)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// encode makes the message. sending is its number on the channel, by which a return is matched.
func encode(e convergo.Event, sending uint64) amqp.Publishing {
	wire := e.Wire()
	headers := make(amqp.Table, len(wire))
	for name, value := range wire {
		if needsEscape(name) {
			name = escaped + name
		}
		headers[name] = value
	}
	return amqp.Publishing{
		Headers: headers, ContentType: "application/octet-stream", DeliveryMode: amqp.Persistent, MessageId: string(e.Key),
		CorrelationId: strconv.FormatUint(sending, 10), Timestamp: e.CreatedAt, Type: e.Type, Body: e.Payload,
	}
}

func decode(d amqp.Delivery) (convergo.Event, error) {
	wire := make(map[string]string, len(d.Headers))
	for name, value := range d.Headers {
		switch {
		case hasPrefixFold(name, "x-") || name == "CC":
			continue // the server's own
		case hasPrefixFold(name, escaped):
			name = name[len(escaped):]
		}
		switch v := value.(type) {
		case string:
			wire[name] = v
		case []byte:
			wire[name] = string(v)
		default: // from a foreign program
			wire[name] = fmt.Sprint(v)
		}
	}
	return convergo.FromWire(wire, d.Body)
}

// deliveries is how often the server has delivered the message, this time included; 0 when it cannot tell.
func deliveries(d amqp.Delivery) int {
	switch n := d.Headers["x-delivery-count"].(type) { // of quorum queues, from the second delivery on
	case int64:
		return int(n) + 1
	case int32:
		return int(n) + 1
	}
	if d.Redelivered {
		return 0
	}
	return 1
}
