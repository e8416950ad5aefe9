package channel

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Names of the headers of a signed message.
const (
	HeaderID        = "webhook-id"        // the same for every attempt at the message: what a receiver deduplicates by
	HeaderTimestamp = "webhook-timestamp" // of the attempt, seconds since 1970 UTC
	HeaderSignature = "webhook-signature" // "v1,{base64}", several separated by blanks
)

// Tolerance is how far a timestamp may lie from the receiver's clock, in both directions.
const Tolerance = 5 * time.Minute

const (
	maxIDBytes        = 255
	maxSignatures     = 16 // in one header; more is refused before any is computed
	maxSignatureBytes = 4096
	signatureScheme   = "v1"
)

// What can be wrong with a signed message. Each error of Verify wraps ErrUnverified and one of the others.
var (
	ErrUnverified = errors.New("message is not verified")
	ErrUnsigned   = errors.New("a signature header is missing, doubled or malformed")
	ErrForged     = errors.New("no signature fits")
	ErrTimestamp  = errors.New("timestamp is outside of the tolerance")
)

// SetSignature signs body and sets the three headers. With several secrets (a rotation) the message carries a
// signature by each, so that a receiver that knows any of them accepts it.
func SetSignature(h http.Header, id string, at time.Time, body []byte, secrets ...Secret) error {
	if err := validateID(id); err != nil {
		return err
	}
	if len(secrets) == 0 {
		return errors.New("sign message: no secret given")
	}
	timestamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		if secret.IsZero() {
			return errors.New("sign message: a secret is empty")
		}
		signatures[i] = signatureScheme + "," + base64.StdEncoding.EncodeToString(secret.sign(id, timestamp, body))
	}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	h.Set(HeaderSignature, strings.Join(signatures, " "))
	return nil
}

// Verify checks that body, as its raw bytes, was signed by the holder of one of the secrets within the tolerance around
// now, and returns the message's id. Schemes other than v1 are skipped. No error shows a secret or a right signature.
func Verify(h http.Header, body []byte, now time.Time, secrets ...Secret) (id string, err error) {
	id, timestamp, signature, err := signatureHeaders(h)
	if err != nil {
		return "", err
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || timestamp != strconv.FormatInt(seconds, 10) {
		return "", unverified(ErrUnsigned, "%s is not a whole number of seconds", HeaderTimestamp)
	}
	claimed := strings.Fields(signature)
	if len(claimed) > maxSignatures {
		return "", unverified(ErrUnsigned, "%s holds %d signatures, allowed are %d", HeaderSignature, len(claimed), maxSignatures)
	}
	// The signature is judged before the time: whoever cannot sign learns nothing about our clock.
	if !anySignatureFits(claimed, id, timestamp, body, secrets) {
		return "", unverified(ErrForged, "checked %d signature(s) against %d secret(s)", len(claimed), len(secrets))
	}
	// Compared in seconds and without a subtraction that could overflow for a timestamp of 9223372036854775807.
	if seconds < now.Add(-Tolerance).Unix() || seconds > now.Add(Tolerance).Unix() {
		return "", unverified(ErrTimestamp, "%s is more than %s from our clock", HeaderTimestamp, Tolerance)
	}
	return id, nil
}

// anySignatureFits looks at every pair, so that the time it takes does not tell which one fitted.
func anySignatureFits(claimed []string, id, timestamp string, body []byte, secrets []Secret) bool {
	fits := false
	for _, secret := range secrets {
		if secret.IsZero() {
			continue
		}
		want := secret.sign(id, timestamp, body)
		for _, versioned := range claimed {
			scheme, encoded, _ := strings.Cut(versioned, ",")
			if scheme != signatureScheme {
				continue
			}
			got, err := base64.StdEncoding.DecodeString(encoded)
			if err == nil && hmac.Equal(got, want) {
				fits = true
			}
		}
	}
	return fits
}

func signatureHeaders(h http.Header) (id, timestamp, signature string, err error) {
	values := make([]string, 3)
	for i, name := range []string{HeaderID, HeaderTimestamp, HeaderSignature} {
		all := h.Values(name)
		if len(all) != 1 || all[0] == "" {
			return "", "", "", unverified(ErrUnsigned, "want exactly one %s, got %d", name, len(all))
		}
		values[i] = all[0]
	}
	if err := validateID(values[0]); err != nil {
		return "", "", "", unverified(ErrUnsigned, "%v", err)
	}
	if len(values[2]) > maxSignatureBytes {
		return "", "", "", unverified(ErrUnsigned, "%s is longer than %d bytes", HeaderSignature, maxSignatureBytes)
	}
	return values[0], values[1], values[2], nil
}

// validateID refuses the separator: "a.1" + "2" and "a" + "1.2" would be one signed text.
func validateID(id string) error {
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	if id == "" || len(id) > maxIDBytes || strings.Contains(id, ".") || strings.ContainsFunc(id, func(r rune) bool { return !printable(r) }) {
		return fmt.Errorf("%s must be 1 to %d printable ASCII characters without blank and without %q", HeaderID, maxIDBytes, ".")
	}
	return nil
}

// sign computes HMAC-SHA256 over "{id}.{timestamp}.{body}".
func (s Secret) sign(id, timestamp string, body []byte) []byte {
	return s.mac([]byte(id+"."+timestamp+"."), body)
}

func unverified(cause error, format string, args ...any) error {
	return fmt.Errorf("%w: %w: %s", ErrUnverified, cause, fmt.Sprintf(format, args...))
}
