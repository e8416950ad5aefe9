package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func TestHeadersAreReadAsTheyStandThereOrNotAtAll(t *testing.T) {
	for text, want := range map[string]string{
		"": "map[]", "{}": "map[]", " { } ": "map[]", `{"a":"b"}`: "map[a:b]", "{\n \"a\" : \"b\",\t\"c\":\"\"}": "map[a:b c:]",
		`{"a":"\ud83d\ude00"}`: "map[a:😀]", `{"a":"\\ud800 \"n:\" \u00e9"}`: `map[a:\ud800 "n:" é]`, "{\"a\":\"\uFFFD\"}": "map[a:\uFFFD]",
		`{"null":"null:"}`: "map[null:null:]", `{"a":"\uFFFD"}`: "map[a:\uFFFD]", `{"a":"1","A":"2"}`: "map[A:2 a:1]",
	} {
		h, err := relay.ReadHeaders(text)
		if got := fmt.Sprint(h); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
		if got := fmt.Sprint(relay.HeadersOf(text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, why := range map[string]string{
		"{\"a\":\"\xff\"}": "not UTF-8", "{\"\xc3\":\"a\"}": "not UTF-8",
		`{"a":"\ud800"}`: `\ud800 is half of a character`, `{"a":"\uDC00\ud83d"}`: `\uDC00 is half`, `{"\ud83dx\ude00":""}`: `\ud83d is half`,
		`{"a":"\ud83d\ud83d\ude00"}`: `\ud83d is half`, `{"a":"\ud800\\udc00"}`: `\ud800 is half`,
		`{"a":null}`: "null", "null": "null", `{"a":"1","a":"1"}`: "twice", `{"a":"1","\u0061":"2"}`: "twice",
		`{"a":1}`: "number", `{"a":{"b":"c"}}`: "object", `["a"]`: "array", `"a"`: "string", `{"a":true}`: "bool",
		"{": "end of JSON", "junk": "invalid character", `{"a":"b"} {}`: "invalid character", `{"a":"b",}`: "invalid character",
		`{"a":"` + strings.Repeat("é", 70_000) + `"`: "end of JSON",
	} {
		h, err := relay.ReadHeaders(text)
		if err == nil || h != nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.100s: %v, %v, want %q", text, h, err, why)
			continue
		}
		p := relay.NewPortion(10, 0)
		p.Add(relay.Pending{Seq: 1, Event: convergo.Event{Headers: relay.HeadersOf(text)}})
		events, _ := p.Claim()
		malformed := events[0].Malformed
		if !errors.Is(malformed, convergo.ErrInvalid) || convergo.VerdictOf(malformed) != convergo.Park ||
			!strings.HasPrefix(malformed.Error(), "headers are no JSON object of texts: "+strings.ToValidUTF8(err.Error(), "")) {
			t.Errorf("%.100s: %v", text, malformed)
		}
		kept := events[0].Event.Headers[relay.UnreadableHeaders]
		if len(kept) > 2100 || strings.ToValidUTF8(kept, "") != kept {
			t.Errorf("%.100s: %d bytes are kept: %.200q", text, len(kept), kept)
		}
	}
}
