package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/convergo/convergo"
)

// HeaderKey is the request header that carries the key; HeaderReplayed marks an answer that was given before.
const (
	HeaderKey      = "Idempotency-Key"
	HeaderReplayed = "Idempotency-Replayed"
)

const keyFormat = "1 to 255 visible ASCII characters, bare or in double quotes"

var errMissing = errors.New("this request needs the header Idempotency-Key: " + keyFormat +
	", new for each new request, the same for its repeats")

// ParseKey reads the Idempotency-Key of a request: 1 to 255 visible ASCII characters (! to ~), either in double quotes,
// as the IETF draft has it, with \" and \\ for a quote and a backslash, or bare, as most clients send it; bare keys hold
// no quote, backslash, comma or semicolon, which would be ambiguous. Both forms of a key are the same key. More than one
// header is an error.
func ParseKey(header http.Header) (convergo.Key, error) {
	values := header.Values(HeaderKey)
	switch len(values) {
	case 0:
		return "", errMissing
	case 1:
	default:
		return "", fmt.Errorf("the request has %d headers Idempotency-Key; send one", len(values))
	}
	value := strings.Trim(values[0], " \t")
	key, err := bare(value)
	if strings.HasPrefix(value, `"`) {
		key, err = unquote(value)
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", fmt.Errorf("the Idempotency-Key is empty; send %s", keyFormat)
	case len(key) > convergo.MaxKeyBytes:
		return "", fmt.Errorf("the Idempotency-Key is too long: %d > %d characters", len(key), convergo.MaxKeyBytes)
	}
	return convergo.Key(key), nil
}

func bare(value string) (string, error) {
	if i := strings.IndexFunc(value, func(r rune) bool { return !visible(r) || strings.ContainsRune(`"\,;`, r) }); i >= 0 {
		return "", fmt.Errorf("the Idempotency-Key has a character at position %d that may not be there; send %s", i+1, keyFormat)
	}
	return value, nil
}

func unquote(value string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '"' && i == len(value)-1:
			return key.String(), nil
		case c == '\\' && i+1 < len(value) && (value[i+1] == '"' || value[i+1] == '\\'):
			i++
			c = value[i]
		case c == '"', c == '\\', !visible(rune(c)):
			return "", fmt.Errorf("the Idempotency-Key has a character at position %d that may not be there; send %s", i+1, keyFormat)
		}
		key.WriteByte(c)
	}
	return "", errors.New("the Idempotency-Key lacks its closing double quote")
}

func visible(r rune) bool { return r > ' ' && r < 0x7f }

// scopeOf makes keys of different principals, methods and paths independent. Method and escaped path hold no blanks, so
// whatever the principal holds no two triples give one scope. One that is too long for a unique index is replaced by its
// digest, which holds no blanks and so is none of the others.
func scopeOf(principal string, r *http.Request) string {
	scope := principal + " " + r.Method + " " + r.URL.EscapedPath()
	if len(scope) > convergo.MaxKeyBytes {
		sum := sha256.Sum256([]byte(scope))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return scope
}

// fingerprint is a digest of what the client sent: method, path, query and raw body, each with its length before it.
func fingerprint(r *http.Request, body []byte) convergo.Digest {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), body} {
		_ = binary.Write(h, binary.BigEndian, int64(len(part))) // a hash never fails to be written to
		h.Write(part)
	}
	return convergo.Digest(h.Sum(nil))
}
