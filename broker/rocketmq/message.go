package rocketmq

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode"

	"github.com/convergo/convergo"
)

// A message's properties are those of convergo.Event.Wire, with these exceptions that keep every event as it was written:
// RocketMQ acts on properties of its own, whose names have no small letter or begin with '_', so an event's headers of such
// names travel behind escapedName; a broker loses a property without a value, so an empty one travels behind rawValue; and it
// stores no message without a body, so an empty payload travels as one zero byte beside headerEmpty.
const (
	escapedName = "Convergo-Escaped-"
	rawValue    = "raw:"
	headerEmpty = "Convergo-Empty-Payload"
)

// Properties of RocketMQ's own.
const (
	propertyTags     = "TAGS"
	propertyKeys     = "KEYS"
	propertyUniqueID = "UNIQ_KEY"
	propertyWait     = "WAIT" // the confirmation waits for flush and replication
	propertyHalf     = "TRAN_MSG"
	propertyGroup    = "PGROUP"
)

const (
	nameEnd  = "\x01"
	valueEnd = "\x02"
)

// message is what is sent.
type message struct {
	body       []byte
	properties string
}

// encode makes the message of an event. It has the event's type as its tag, which servers filter by; the event key as its key
// for queries, when it can be one (keys are separated by blanks); and the message id as its unique id. What makes an effect
// happen once is none of these but the header Convergo-Key.
func encode(e convergo.Event) message {
	var b strings.Builder
	set := func(name, value string) {
		b.WriteString(name)
		b.WriteString(nameEnd)
		b.WriteString(value)
		b.WriteString(valueEnd)
	}
	for name, value := range e.Wire() {
		if reservedName(name) || hasPrefixFold(name, escapedName) || strings.EqualFold(name, headerEmpty) {
			name = escapedName + name
		}
		if value == "" || strings.HasPrefix(value, rawValue) {
			value = rawValue + value
		}
		set(name, value)
	}
	set(propertyTags, e.Type)
	if !strings.ContainsFunc(string(e.Key), unicode.IsSpace) {
		set(propertyKeys, string(e.Key))
	}
	if !strings.ContainsFunc(e.MessageID, unicode.IsSpace) {
		set(propertyUniqueID, e.MessageID)
	}
	set(propertyWait, "true")
	body := e.Payload
	if len(body) == 0 {
		body = []byte{0}
		set(headerEmpty, "true")
	}
	return message{body: body, properties: b.String()}
}

// reservedName tells whether a property's name is, or may once be, RocketMQ's own.
func reservedName(name string) bool {
	return strings.HasPrefix(name, "_") || !strings.ContainsFunc(name, unicode.IsLower)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// decode makes the event of a message that was received. The error, which wraps convergo.ErrInvalid, says what is wrong with
// it; the event then holds what could be read.
func decode(m stored) (convergo.Event, error) {
	body, bodyErr := m.payload()
	wire := make(map[string]string, len(m.properties))
	for name, value := range m.properties {
		switch {
		case reservedName(name):
			continue
		case name == headerEmpty:
			body = nil
			continue
		case hasPrefixFold(name, escapedName):
			name = name[len(escapedName):]
		}
		wire[name] = strings.TrimPrefix(value, rawValue)
	}
	e, err := convergo.FromWire(wire, body)
	if bodyErr != nil {
		return e, fmt.Errorf("message %s: %w: %w", m.properties[propertyUniqueID], bodyErr, convergo.ErrInvalid)
	}
	return e, err
}

// stored is a message as a broker keeps it and hands it out.
type stored struct {
	queueOffset int64
	flags       int
	body        []byte
	topic       string
	properties  map[string]string
}

const (
	flagCompressed      = 1
	flagHalf            = 4
	flagIPv6Born        = 16
	flagIPv6Stored      = 32
	flagCompression     = 0x700
	compressionZlib     = 0x300
	messageMagic        = 0xDAA320A7
	messageMagicLong    = 0xDAA320AB // a topic's name may be longer
	maxInflated         = 4 << 20
	smallestStoredBytes = 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 8 + 4 + 8 + 4 + 1 + 2
)

// payload is the body, inflated when a foreign producer compressed it.
func (m stored) payload() ([]byte, error) {
	if m.flags&flagCompressed == 0 {
		return m.body, nil
	}
	if how := m.flags & flagCompression; how != 0 && how != compressionZlib {
		return m.body, fmt.Errorf("the body is compressed by method %#x, of which only zlib (0x300) is known", how)
	}
	r, err := zlib.NewReader(bytes.NewReader(m.body))
	if err != nil {
		return m.body, fmt.Errorf("the body is not zlib: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	switch {
	case err != nil:
		return m.body, fmt.Errorf("the body is not zlib: %w", err)
	case len(plain) > maxInflated:
		return m.body, fmt.Errorf("the inflated body is longer than %d bytes", maxInflated)
	}
	return plain, nil
}

var errBroken = errors.New("a message from the broker cannot be read")

// readStored reads the messages of an answer, which follow one another in the form in which the broker stores them.
func readStored(content []byte) ([]stored, error) {
	var all []stored
	for len(content) > 0 {
		if len(content) < smallestStoredBytes {
			return nil, errBroken
		}
		size := int64(binary.BigEndian.Uint32(content))
		if size < smallestStoredBytes || size > int64(len(content)) {
			return nil, errBroken
		}
		m, err := readOne(content[:size])
		if err != nil {
			return nil, err
		}
		all = append(all, m)
		content = content[size:]
	}
	return all, nil
}

// readOne reads one message: size 4, magic 4, CRC of the body 4, queue 4, flag 4, offset in the queue 8, offset in the log 8,
// system flags 4, time 8, host 8 or 20, time 8, host 8 or 20, times consumed 4, offset of the half message 8, and body, topic
// and properties with their lengths of 4, 1 or 2, and 2 bytes before them.
func readOne(b []byte) (m stored, err error) {
	defer func() {
		if recover() != nil { // beyond the end
			err = errBroken
		}
	}()
	number := func(n int) int64 {
		var v uint64
		for _, x := range b[:n] {
			v = v<<8 | uint64(x)
		}
		b = b[n:]
		return int64(v)
	}
	text := func(n int64) []byte {
		t := b[:n]
		b = b[n:]
		return t
	}
	number(4)
	magic := number(4)
	if magic != messageMagic && magic != messageMagicLong {
		return m, fmt.Errorf("%w: its mark is %#x", errBroken, magic)
	}
	sum := uint32(number(4))
	number(4)
	number(4)
	m.queueOffset = number(8)
	number(8)
	m.flags = int(number(4))
	host := func(flag int) int64 {
		if m.flags&flag != 0 {
			return 20
		}
		return 8
	}
	number(8)
	text(host(flagIPv6Born))
	number(8)
	text(host(flagIPv6Stored))
	number(4)
	number(8)
	m.body = bytes.Clone(text(number(4)))
	// The broker may leave the sum out, and its highest bit is not used.
	if sum != 0 && crc32.ChecksumIEEE(m.body)&0x7fffffff != sum {
		return m, fmt.Errorf("%w: the sum over its body is another", errBroken)
	}
	topicLength := 1
	if magic == messageMagicLong {
		topicLength = 2
	}
	m.topic = string(text(number(topicLength)))
	m.properties = readProperties(string(text(number(2))))
	return m, nil
}

func readProperties(s string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(s, valueEnd) {
		if name, value, ok := strings.Cut(pair, nameEnd); ok && name != "" {
			all[name] = value
		}
	}
	return all
}

// batch packs messages of one queue into the body of one request. The broker stores them one after another, or none.
func batch(messages []message) []byte {
	var b []byte
	for _, m := range messages {
		b = binary.BigEndian.AppendUint32(b, uint32(4*5+len(m.body)+2+len(m.properties)))
		b = binary.BigEndian.AppendUint32(b, 0) // magic: the broker sets it
		b = binary.BigEndian.AppendUint32(b, 0) // sum: likewise
		b = binary.BigEndian.AppendUint32(b, 0) // flag
		b = binary.BigEndian.AppendUint32(b, uint32(len(m.body)))
		b = append(b, m.body...)
		b = binary.BigEndian.AppendUint16(b, uint16(len(m.properties)))
		b = append(b, m.properties...)
	}
	return b
}
