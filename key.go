package convergo

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key is a business identity, compared as bytes: 1 to 255 bytes of UTF-8, no leading or trailing blank, no control
// character. Two keys that differ in a case, an accent or an emoji are two keys, whatever a database's collation thinks.
type Key string

// Digest is the fixed-length form of a key in a unique index: SHA-256.
type Digest [sha256.Size]byte

// KeyFor is the default event key "{eventType}:{businessID}:v{version}".
func KeyFor(eventType, businessID string, version int64) Key {
	return Key(fmt.Sprintf("%s:%s:v%d", eventType, businessID, version))
}

// Validate tells whether the key keeps the rules of Key; the error wraps ErrInvalid and says which rule is broken.
func (k Key) Validate() error { return validateText(string(k)) }

// Digest of the key's bytes.
func (k Key) Digest() Digest { return digest(string(k)) }

// LogValue is the key for one line of a log: whole when it is valid, cut when a broken one is longer than any key may be.
func (k Key) LogValue() slog.Value { return slog.StringValue(Clip(string(k), MaxKeyBytes)) }

func digest(s string) Digest { return sha256.Sum256([]byte(s)) }

func validateText(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty: %w", ErrInvalid)
	case len(s) > MaxKeyBytes:
		return fmt.Errorf("is too long: %d > %d bytes: %w", len(s), MaxKeyBytes, ErrInvalid)
	case !utf8.ValidString(s):
		return fmt.Errorf("is not UTF-8: %w", ErrInvalid)
	case strings.TrimSpace(s) != s:
		return fmt.Errorf("has leading or trailing blanks: %w", ErrInvalid)
	case strings.ContainsFunc(s, isControl):
		return fmt.Errorf("has control characters: %w", ErrInvalid)
	}
	return nil
}

// validateName keeps topics, types and header names to what every broker allows in a subject, a routing key or a header.
func validateName(s string) error {
	if s == "" {
		return fmt.Errorf("is empty: %w", ErrInvalid)
	}
	if len(s) > MaxNameBytes {
		return fmt.Errorf("is too long: %d > %d bytes: %w", len(s), MaxNameBytes, ErrInvalid)
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return fmt.Errorf("has a character other than A-Z a-z 0-9 _ -: %w", ErrInvalid)
		}
	}
	return nil
}

// Cf: formatting characters such as zero-width joiners inside emoji are legal text; controls (Cc) are not.
func isControl(r rune) bool { return unicode.Is(unicode.Cc, r) }

func clip(s string) string { return Clip(s, 80) }

// Clip is a text from outside for people to read, such as an id that nobody has validated yet: its first bytes, cut at a character and
// with "…" at the end, when it has more than most.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
