// Package stored is what the rows of all SQL stores have in common, whatever the database: how headers stand in a text, what a new row's
// id is, how much of an error is kept, and how many bytes a list may have. The statements are each store's own.
package stored

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// NewID is a UUID of version 7 (RFC 9562, section 5.7): 48 bits of milliseconds, then random bits.
func NewID(now time.Time) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // documented never to fail
	binary.BigEndian.PutUint64(id[:8], uint64(max(now.UnixMilli(), 0))<<16|uint64(binary.BigEndian.Uint16(id[6:8])))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// NotNil is b, or no bytes for nil, which the drivers bind as NULL.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

const noHeaders = "{}"

// HeadersText is headers as their column keeps them: a JSON object of texts.
func HeadersText(h map[string]string) (string, error) {
	if len(h) == 0 {
		return noHeaders, nil
	}
	encoded, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("headers: %w", err)
	}
	return string(encoded), nil
}

// Headers reads what HeadersText has written. What any program may have written is for relay.HeadersOf.
func Headers(encoded string) (map[string]string, error) {
	if encoded == noHeaders || encoded == "" {
		return nil, nil
	}
	var h map[string]string
	if err := json.Unmarshal([]byte(encoded), &h); err != nil {
		return nil, fmt.Errorf("headers %.80q are no JSON object of texts: %w", encoded, err)
	}
	return h, nil
}

// MaxErrorBytes bounds the texts of errors that are kept.
const MaxErrorBytes = 2000

// Clip is the first bytes of a text, at most so many, without what is not UTF-8, which databases refuse.
func Clip(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}

// ErrEnough ends a list before the row at which it is answered.
var ErrEnough = errors.New("enough")

// Within answers ErrEnough when the payloads of a list's rows become more than a number of bytes, at the second of them at the soonest.
func Within(bytes int) func(e convergo.Event) error {
	rows, sum := 0, 0
	return func(e convergo.Event) error {
		sum += len(e.Payload)
		if rows++; rows > 1 && sum > bytes {
			return ErrEnough
		}
		return nil
	}
}
