package convergo

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestKeysKeepTheirRules(t *testing.T) {
	for _, k := range []Key{"a", "HOLD:O-1:SKU-é", "订单:1", "👨‍👩‍👧", "a  b", Key(strings.Repeat("x", MaxKeyBytes))} {
		if err := k.Validate(); err != nil {
			t.Errorf("%q: %v, want valid", k, err)
		}
	}
	for _, k := range []Key{"", " a", "a ", "\ta", "a\u00a0", "a\u2028", "a\x7fb", "a\u0085b", "\xc3", Key(strings.Repeat("é", 128))} {
		if err := k.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, want an error that wraps ErrInvalid", k, err)
		}
	}
}

func FuzzKeyValidate(f *testing.F) {
	for _, s := range []string{"", "a", " a", "a\x00", "\xff", "👩‍🚀", "OrderPaid:O-1:v2", strings.Repeat("x", 256)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// The rules once more, written another way.
		legal := len(s) >= 1 && len(s) <= 255 && utf8.ValidString(s)
		runes := []rune(s)
		for i, r := range runes {
			edge := i == 0 || i == len(runes)-1
			if unicode.IsControl(r) || edge && unicode.IsSpace(r) {
				legal = false
			}
		}
		err := Key(s).Validate()
		if (err == nil) != legal {
			t.Errorf("%q: %v, but the rules say legal=%v", s, err, legal)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v does not wrap ErrInvalid", s, err)
		}
	})
}

func TestWhatComesFromOutsideIsCutForALogAtACharacter(t *testing.T) {
	for text, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abcd…", "abcé": "abc…", "ab\xffde": "abd…"} {
		if got := Clip(text, 4); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	longest := Key(strings.Repeat("k", MaxKeyBytes))
	if got := longest.LogValue().String(); got != string(longest) {
		t.Errorf("a valid key is cut: %q", got)
	}
	if got := (longest + "kk").LogValue().String(); got != string(longest)+"…" {
		t.Errorf("%q", got)
	}
}
