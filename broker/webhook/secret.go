package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Secret is a signing key that an endpoint shares with us. It prints and logs as a placeholder and marshals to one.
type Secret struct{ key string }

const secretPrefix = "whsec_"

// ErrSecret is wrapped by the errors of ParseSecret, which never show the secret.
var ErrSecret = errors.New("invalid webhook secret")

// ParseSecret reads "whsec_" followed by standard base64 of 24 to 64 bytes, as the specification has it.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return Secret{}, fmt.Errorf("%w: want %s and base64", ErrSecret, secretPrefix)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return Secret{}, fmt.Errorf("%w: no base64 after %s", ErrSecret, secretPrefix)
	}
	if len(key) < 24 || len(key) > 64 {
		return Secret{}, fmt.Errorf("%w: %d bytes, want 24 to 64", ErrSecret, len(key))
	}
	return Secret{string(key)}, nil
}

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.key == "" }

const hidden = "whsec_(hidden)"

// String keeps the secret out of messages.
func (s Secret) String() string { return hidden }

// GoString is what %#v prints.
func (s Secret) GoString() string { return hidden }

// LogValue is what slog writes.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText is what encoders write.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

func (s Secret) sign(id, timestamp string, content []byte) []byte {
	h := hmac.New(sha256.New, []byte(s.key))
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(content)
	return h.Sum(nil)
}
