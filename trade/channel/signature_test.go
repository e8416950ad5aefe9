package channel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	oracle "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"pgregory.net/rapid"

	"github.com/convergo/convergo/testlog"
)

var at = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func signed(t *testing.T, id string, when time.Time, body []byte, secrets ...Secret) http.Header {
	t.Helper()
	h := http.Header{}
	if err := SetSignature(h, id, when, body, secrets...); err != nil {
		t.Fatalf("sign: %v", err)
	}
	return h
}

func TestOurSignatureIsTheOraclesSignature(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), minSecretBytes, maxSecretBytes).Draw(t, "key")
		text := secretPrefix + base64.StdEncoding.EncodeToString(key)
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		id := rapid.StringMatching(`msg_[A-Za-z0-9]{1,30}`).Draw(t, "id")
		secret, err := ParseSecret(text)
		if err != nil {
			t.Fatalf("parse secret: %v", err)
		}
		theirs, err := oracle.NewWebhook(text)
		if err != nil {
			t.Fatalf("oracle: %v", err)
		}
		h := http.Header{}
		if err := SetSignature(h, id, at, body, secret); err != nil {
			t.Fatalf("sign: %v", err)
		}
		want, _ := theirs.Sign(id, at, body)
		if got := h.Get(HeaderSignature); got != want {
			t.Fatalf("signature %s, the oracle's is %s", got, want)
		}
		if err := theirs.VerifyIgnoringTimestamp(body, h); err != nil {
			t.Fatalf("the oracle refuses ours: %v", err)
		}
		h.Set(HeaderSignature, want)
		if got, err := Verify(h, body, at, secret); err != nil || got != id {
			t.Fatalf("we refuse the oracle's: %q, %v", got, err)
		}
	})
}

func TestWhatTheOracleAcceptsNowWeAcceptToo(t *testing.T) {
	secret, now := NewSecret(), time.Now()
	theirs, err := oracle.NewWebhook(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	for offset, fine := range map[time.Duration]bool{
		-10 * time.Minute: false, -6 * time.Minute: false, -4 * time.Minute: true, 0: true, 4 * time.Minute: true, 6 * time.Minute: false,
	} {
		h := signed(t, "msg_1", now.Add(offset), []byte("{}"), secret)
		_, ours := Verify(h, []byte("{}"), now, secret)
		if oracles := theirs.Verify([]byte("{}"), h); (oracles == nil) != fine || (ours == nil) != fine {
			t.Errorf("at %s: oracle %v, ours %v, accepted should be %v", offset, oracles, ours, fine)
		}
		if !fine && !errors.Is(ours, ErrTimestamp) {
			t.Errorf("at %s: %v is no ErrTimestamp", offset, ours)
		}
	}
}

func TestTheToleranceEndsAfterFiveMinutesInBothDirections(t *testing.T) {
	secret := NewSecret()
	for _, c := range []struct {
		offset time.Duration
		fine   bool
	}{{-300 * time.Second, true}, {-301 * time.Second, false}, {300 * time.Second, true}, {301 * time.Second, false}} {
		h := signed(t, "msg_1", at.Add(c.offset), nil, secret)
		if _, err := Verify(h, nil, at, secret); (err == nil) != c.fine {
			t.Errorf("timestamp at %s: %v", c.offset, err)
		}
	}
}

func TestDuringARotationEitherSecretFitsAndEitherSignature(t *testing.T) {
	older, newer, other := NewSecret(), NewSecret(), NewSecret()
	body := []byte(`{"a":1}`)
	both := signed(t, "msg_1", at, body, newer, older)
	for name, known := range map[string][]Secret{"old": {older}, "new": {newer}, "both": {older, newer}, "new among others": {other, newer}} {
		if _, err := Verify(both, body, at, known...); err != nil {
			t.Errorf("receiver knows %s: %v", name, err)
		}
	}
	if _, err := Verify(both, body, at, other); !errors.Is(err, ErrForged) {
		t.Errorf("a stranger's secret: %v", err)
	}
	if _, err := Verify(both, body, at); !errors.Is(err, ErrForged) {
		t.Errorf("no secret at all: %v", err)
	}
	if _, err := Verify(both, body, at, Secret{}); !errors.Is(err, ErrForged) {
		t.Errorf("an empty secret: %v", err)
	}
}

func TestUnknownSchemesAreSkippedAndNotTrusted(t *testing.T) {
	secret, body := NewSecret(), []byte("x")
	h := signed(t, "msg_1", at, body, secret)
	good := h.Get(HeaderSignature)
	h.Set(HeaderSignature, "v1a,AAAA v9,zzz nonsense "+good)
	if _, err := Verify(h, body, at, secret); err != nil {
		t.Errorf("good one among others: %v", err)
	}
	h.Set(HeaderSignature, "v1a,"+strings.TrimPrefix(good, "v1,"))
	if _, err := Verify(h, body, at, secret); !errors.Is(err, ErrForged) {
		t.Errorf("right bytes under another scheme: %v", err)
	}
}

func TestEveryChangedByteIsNoticed(t *testing.T) {
	secret, body := NewSecret(), []byte(`{"order":"O-77","note":"Tom & Jerry <gift>"}`)
	h := signed(t, "msg_1", at, body, secret)
	for i := range body {
		changed := bytes.Clone(body)
		changed[i] ^= 1
		if _, err := Verify(h, changed, at, secret); !errors.Is(err, ErrForged) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	for _, other := range []string{string(body) + "\n", " " + string(body), `{"order": "O-77","note":"Tom & Jerry <gift>"}`} {
		if _, err := Verify(h, []byte(other), at, secret); !errors.Is(err, ErrForged) {
			t.Errorf("body %q: %v", other, err)
		}
	}
}

func TestMissingDoubledOrMalformedHeadersAreUnsigned(t *testing.T) {
	secret := NewSecret()
	for name, spoil := range map[string]func(http.Header){
		"no id":               func(h http.Header) { h.Del(HeaderID) },
		"no timestamp":        func(h http.Header) { h.Del(HeaderTimestamp) },
		"no signature":        func(h http.Header) { h.Del(HeaderSignature) },
		"empty signature":     func(h http.Header) { h.Set(HeaderSignature, "") },
		"two ids":             func(h http.Header) { h.Add(HeaderID, "msg_2") },
		"two signatures":      func(h http.Header) { h.Add(HeaderSignature, "v1,AAAA") },
		"id with a dot":       func(h http.Header) { h.Set(HeaderID, "msg.1") },
		"id too long":         func(h http.Header) { h.Set(HeaderID, strings.Repeat("m", 300)) },
		"fraction":            func(h http.Header) { h.Set(HeaderTimestamp, "1782907200.5") },
		"sign":                func(h http.Header) { h.Set(HeaderTimestamp, "+1782907200") },
		"leading zero":        func(h http.Header) { h.Set(HeaderTimestamp, "01782907200") },
		"words":               func(h http.Header) { h.Set(HeaderTimestamp, "now") },
		"too many signatures": func(h http.Header) { h.Set(HeaderSignature, strings.Repeat("v1,AAAA ", 17)) },
	} {
		h := signed(t, "msg_1", at, []byte("x"), secret)
		spoil(h)
		if _, err := Verify(h, []byte("x"), at, secret); !errors.Is(err, ErrUnsigned) || !errors.Is(err, ErrUnverified) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := signed(t, "msg_1", at, []byte("x"), secret)
	h.Set(HeaderTimestamp, "9223372036854775807")
	if _, err := Verify(h, []byte("x"), at, secret); !errors.Is(err, ErrForged) {
		t.Errorf("the largest timestamp: %v", err)
	}
	far := signed(t, "msg_1", time.Unix(9223372036854775807, 0), []byte("x"), secret)
	if _, err := Verify(far, []byte("x"), at, secret); !errors.Is(err, ErrTimestamp) {
		t.Errorf("the largest timestamp, signed: %v", err)
	}
}

func TestAnIDWithADotCannotBeSigned(t *testing.T) {
	if err := SetSignature(http.Header{}, "msg.1", at, nil, NewSecret()); err == nil {
		t.Error("signed")
	}
}

func TestASecretIsParsedStrictlyAndNeverShown(t *testing.T) {
	good := NewSecret()
	text := good.Reveal()
	again, err := ParseSecret(text)
	if err != nil || again != good {
		t.Fatalf("parse what was revealed: %v", err)
	}
	encode := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, n)) }
	for input, fine := range map[string]bool{
		encode(24): true, encode(64): true, encode(23): false, encode(65): false, strings.TrimPrefix(text, "whsec_"): false,
		"whsec_": false, "whsec_???": false, text + "\n": false, "": false, "whsk_" + strings.TrimPrefix(text, "whsec_"): false,
	} {
		if _, err := ParseSecret(input); (err == nil) != fine {
			t.Errorf("ParseSecret of %d characters: %v", len(input), err)
		} else if err != nil && len(input) > 20 && strings.Contains(err.Error(), input[8:20]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
	var log testlog.Lines
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", good, "in a struct", struct{ S Secret }{good})
	asJSON, _ := json.Marshal(map[string]any{"s": good})
	shown := fmt.Sprintf("%v %s %+v %#v %v", good, good, good, struct{ S Secret }{good}, &good) + log.String() + string(asJSON)
	if bare := strings.TrimPrefix(text, "whsec_"); strings.Contains(shown, bare) || strings.Contains(shown, good.key) {
		t.Errorf("the secret is shown: %s", shown)
	}
}

func TestARequestSignatureCoversMethodAddressAndBody(t *testing.T) {
	secret := NewSecret()
	request := func(method, target string, body string) *http.Request {
		return httptest.NewRequest(method, target, strings.NewReader(body))
	}
	r := request(http.MethodPost, "/channel/refunds?a=1", "{}")
	if err := SignRequest(r, "req_1", at, []byte("{}"), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyRequest(r, []byte("{}"), at, secret); err != nil {
		t.Fatalf("as sent: %v", err)
	}
	for name, other := range map[string]*http.Request{
		"method": request(http.MethodPut, "/channel/refunds?a=1", "{}"), "path": request(http.MethodPost, "/channel/refund?a=1", "{}"),
		"query": request(http.MethodPost, "/channel/refunds?a=2", "{}"),
	} {
		other.Header = r.Header
		if _, err := VerifyRequest(other, []byte("{}"), at, secret); !errors.Is(err, ErrForged) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if _, err := VerifyRequest(r, []byte("{ }"), at, secret); !errors.Is(err, ErrForged) {
		t.Errorf("another body: %v", err)
	}
}
