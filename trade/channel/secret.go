package channel

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	secretPrefix    = "whsec_"
	minSecretBytes  = 24
	maxSecretBytes  = 64
	madeSecretBytes = 32
)

// ErrSecret is wrapped by the errors of ParseSecret. They say what is wrong and never show the secret.
var ErrSecret = errors.New("invalid webhook secret")

// Secret is a shared signing key. It prints and logs as a placeholder; only Reveal shows it.
type Secret struct{ key string }

// ParseSecret reads "whsec_" followed by standard base64 of 24 to 64 bytes.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return Secret{}, fmt.Errorf("it does not start with %q: %w", secretPrefix, ErrSecret)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") { // the decoder skips line ends; the library's error quotes nothing, but says where
		return Secret{}, fmt.Errorf("what follows %q is not standard base64: %w", secretPrefix, ErrSecret)
	}
	if len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return Secret{}, fmt.Errorf("it holds %d bytes, allowed are %d to %d: %w", len(key), minSecretBytes, maxSecretBytes, ErrSecret)
	}
	return Secret{string(key)}, nil
}

// NewSecret makes a secret of 32 random bytes.
func NewSecret() Secret {
	key := make([]byte, madeSecretBytes)
	_, _ = rand.Read(key) // never fails: crypto/rand ends the program instead
	return Secret{string(key)}
}

// Reveal is the text that ParseSecret reads, to be written to a configuration file and nowhere else.
func (s Secret) Reveal() string {
	return secretPrefix + base64.StdEncoding.EncodeToString([]byte(s.key))
}

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.key == "" }

const redacted = "whsec_(hidden)"

// String, GoString, LogValue and MarshalText keep the secret out of messages, logs and JSON.
func (s Secret) String() string { return redacted }

// GoString is what %#v prints.
func (s Secret) GoString() string { return redacted }

// LogValue is what slog writes.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is what JSON writes.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// mac is HMAC-SHA256 over the parts, one after another.
func (s Secret) mac(parts ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(s.key))
	for _, part := range parts {
		h.Write(part)
	}
	return h.Sum(nil)
}
