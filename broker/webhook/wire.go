package webhook

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// Names of the headers. The first three are those of the specification.
const (
	HeaderID             = "Webhook-Id"
	HeaderTimestamp      = "Webhook-Timestamp"
	HeaderSignature      = "Webhook-Signature"
	HeaderEvent          = "Convergo-Event"     // Event.Wire as a query string
	HeaderEventSignature = "Convergo-Signature" // of HeaderEvent
	HeaderAttempt        = "Convergo-Attempt"   // from the second delivery on: its number, and its signatures
)

// tolerance is how far a timestamp may be from the receiver's clock.
const tolerance = 5 * time.Minute

// Limits of a receiver. Every byte of an event's fields and headers may take three in HeaderEvent.
const (
	maxEventHeader = 3 * (convergo.MaxHeaderBytes + 2048)
	maxSignatures  = 16
)

// id is the event key when the header can hold it: printable, without blanks, and without the point that separates the parts of
// what is signed.
func id(e convergo.Event) string {
	key := string(e.Key)
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || r == '.' }) {
		digest := e.Key.Digest()
		return "sha256-" + hex.EncodeToString(digest[:])
	}
	return key
}

// sign sets the headers of one request. attempt is how often the endpoint was told of the event and did not settle it, this time included.
func sign(h http.Header, e convergo.Event, at time.Time, secrets []Secret, attempt int) {
	values := url.Values{}
	for name, value := range e.Wire() {
		values.Set(name, value)
	}
	fields, id, timestamp := values.Encode(), id(e), strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	h.Set(HeaderSignature, signatures(secrets, id, timestamp, e.Payload))
	h.Set(HeaderEvent, fields)
	h.Set(HeaderEventSignature, signatures(secrets, id, timestamp, []byte(fields)))
	if attempt > 1 {
		number := strconv.Itoa(attempt)
		h.Set(HeaderAttempt, number+" "+signatures(secrets, id, timestamp, attemptContent(number)))
	}
	h.Set("Content-Type", contentType(e))
	h.Set("User-Agent", "convergo-webhook/1")
}

// contentType is what the event's own header says, if that is a plausible one.
func contentType(e convergo.Event) string {
	if t := e.Headers["Content-Type"]; t != "" && len(t) <= 100 && !strings.ContainsFunc(t, func(r rune) bool { return r < ' ' || r > '~' }) {
		return t
	}
	return "application/json"
}

func signatures(secrets []Secret, id, timestamp string, content []byte) string {
	all := make([]string, len(secrets))
	for i, s := range secrets {
		all[i] = "v1," + base64.StdEncoding.EncodeToString(s.sign(id, timestamp, content))
	}
	return strings.Join(all, " ")
}

// What is wrong with a request that a Receiver refuses.
var (
	errUnsigned = errors.New("a signature header is missing, doubled or malformed")
	errForged   = errors.New("no signature fits")
	errTime     = errors.New("the timestamp is more than 5 minutes from our clock")
)

// stamp is what the headers of a signed request say before anything is known to be true.
type stamp struct {
	id, timestamp, signature string
	seconds                  int64
}

// stampOf reads the headers that every signed request has; its error wraps errUnsigned.
func stampOf(h http.Header) (s stamp, err error) {
	for name, value := range map[string]*string{HeaderID: &s.id, HeaderTimestamp: &s.timestamp, HeaderSignature: &s.signature} {
		all := h.Values(name)
		if len(all) != 1 || all[0] == "" {
			return s, fmt.Errorf("%s: %w", name, errUnsigned)
		}
		*value = all[0]
	}
	s.seconds, err = strconv.ParseInt(s.timestamp, 10, 64)
	if err != nil || strings.Contains(s.id, ".") || s.timestamp != strconv.FormatInt(s.seconds, 10) {
		return s, fmt.Errorf("%s or %s: %w", HeaderID, HeaderTimestamp, errUnsigned)
	}
	return s, nil
}

// verify checks both signatures and the time. The signature comes first: whoever cannot sign learns nothing about the clock.
func verify(h http.Header, body []byte, now time.Time, secrets []Secret) error {
	s, err := stampOf(h)
	if err != nil {
		return err
	}
	if !fits(s.signature, s.id, s.timestamp, body, secrets) {
		return fmt.Errorf("%s: %w", HeaderSignature, errForged)
	}
	fields := h.Values(HeaderEvent)
	if len(fields) > 1 || len(fields) == 1 && !fits(h.Get(HeaderEventSignature), s.id, s.timestamp, []byte(fields[0]), secrets) {
		return fmt.Errorf("%s: %w", HeaderEventSignature, errForged)
	}
	if s.seconds < now.Add(-tolerance).Unix() || s.seconds > now.Add(tolerance).Unix() {
		return errTime
	}
	return nil
}

// fits looks at every pair, so that the time it takes tells nothing.
func fits(header, id, timestamp string, content []byte, secrets []Secret) bool {
	given := strings.Fields(header)
	if len(given) > maxSignatures {
		return false
	}
	found := false
	for _, s := range secrets {
		want := s.sign(id, timestamp, content)
		for _, g := range given {
			encoded, ok := strings.CutPrefix(g, "v1,")
			if !ok {
				continue
			}
			if got, err := base64.StdEncoding.DecodeString(encoded); err == nil && hmac.Equal(got, want) {
				found = true
			}
		}
	}
	return found
}

func attemptContent(number string) []byte { return []byte(HeaderAttempt + "=" + number) }

// attemptOf is the number of the delivery; 0 when the sender does not tell, or nobody who may tell has signed it.
func attemptOf(h http.Header, secrets []Secret) int {
	all := h.Values(HeaderAttempt)
	if len(all) != 1 {
		return 0
	}
	number, signed, _ := strings.Cut(all[0], " ")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 1 || number != strconv.FormatInt(n, 10) {
		return 0
	}
	if !fits(signed, h.Get(HeaderID), h.Get(HeaderTimestamp), attemptContent(number), secrets) {
		return 0
	}
	return int(n)
}

// decode is the event of a verified request. A message of another sender has no event header: the error says so.
func decode(h http.Header, body []byte) (convergo.Event, error) {
	wire := map[string]string{}
	values, err := url.ParseQuery(h.Get(HeaderEvent))
	for name := range values {
		wire[name] = values.Get(name)
	}
	event, invalid := convergo.FromWire(wire, body)
	if err != nil {
		return event, fmt.Errorf("header %s is no query string: %w", HeaderEvent, convergo.ErrInvalid)
	}
	return event, invalid
}
