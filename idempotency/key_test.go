package idempotency_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/convergo/convergo/idempotency"
)

func TestBareAndQuotedKeysAreTheSame(t *testing.T) {
	for value, want := range map[string]string{
		"k-1":           "k-1",
		`"k-1"`:         "k-1",
		"  k-1\t":       "k-1",
		`"a,b;c"`:       "a,b;c",
		`"a\"b\\c"`:     `a"b\c`,
		"8e03978e-40d5": "8e03978e-40d5",
	} {
		key, err := idempotency.ParseKey(http.Header{idempotency.HeaderKey: {value}})
		if err != nil || string(key) != want {
			t.Errorf("%q: %q %v, want %q", value, key, err, want)
		}
	}
	for _, value := range []string{`a"b`, `a\b`, `"a\n"`, `"a`, `"`, `"a" `[:2], `"a";p=1`, "a;p", "a, b", "\x7f", "é"} {
		if key, err := idempotency.ParseKey(http.Header{idempotency.HeaderKey: {value}}); err == nil {
			t.Errorf("%q: accepted as %q", value, key)
		}
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{"", "k-1", `"k-1"`, `"a\"b"`, `"a\\"`, `"`, `""`, "a b", "\x00", "é", strings.Repeat("k", 256), `"a"b"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := idempotency.ParseKey(http.Header{idempotency.HeaderKey: {value}})
		if err != nil {
			if key != "" {
				t.Errorf("%q: key %q beside error %v", value, key, err)
			}
			return
		}
		if err := key.Validate(); err != nil {
			t.Errorf("%q: %q is no key: %v", value, key, err)
		}
		for _, c := range []byte(key) {
			if c <= ' ' || c >= 0x7f {
				t.Errorf("%q: %q has the byte %#x", value, key, c)
			}
		}
		// Quoting what was read gives the same key: no two keys are one, and none is two.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(key)) + `"`
		if again, err := idempotency.ParseKey(http.Header{idempotency.HeaderKey: {quoted}}); err != nil || again != key {
			t.Errorf("%q: read as %q, quoted as %s, read as %q, %v", value, key, quoted, again, err)
		}
	})
}
