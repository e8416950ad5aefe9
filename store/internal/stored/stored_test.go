package stored_test

import (
	"errors"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/internal/stored"
)

func TestHeadersComeOutAsTheyWentIn(t *testing.T) {
	for _, h := range []map[string]string{nil, {"a": "b"}, {"a": "é<\"\x00", "": ""}} {
		text, err := stored.HeadersText(h)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := stored.Headers(text); err != nil || !maps.Equal(back, h) || !maps.Equal(relay.HeadersOf(text), h) {
			t.Errorf("%q became %q: %v", h, back, err)
		}
	}
}

func TestWhatIsNoObjectOfTextsIsRefused(t *testing.T) {
	for _, text := range []string{"[]", `{"a":1}`, "{", strings.Repeat("é", 2_000)} {
		if h, err := stored.Headers(text); err == nil {
			t.Errorf("%.20q is read as %q", text, h)
		}
	}
}

func TestATextIsCutToWhatADatabaseTakes(t *testing.T) {
	for text, want := range map[string]string{"abc": "abc", "abcé": "abc", "a\xffb": "ab", "": ""} {
		if got := stored.Clip(text, 4); got != want {
			t.Errorf("%q is cut to %q, want %q", text, got, want)
		}
	}
}

func TestAListEndsBeforeTheRowThatIsTooMuchButNeverBeforeItsFirst(t *testing.T) {
	room := stored.Within(10)
	for i, c := range []struct {
		size   int
		enough bool
	}{{8, false}, {2, false}, {1, true}} {
		if err := room(convergo.Event{Payload: make([]byte, c.size)}); errors.Is(err, stored.ErrEnough) != c.enough {
			t.Errorf("row %d: %v", i, err)
		}
	}
	if err := stored.Within(10)(convergo.Event{Payload: make([]byte, 100)}); err != nil {
		t.Error("the first row: ", err)
	}
}

func TestIDsAreUUIDsInTheOrderOfTime(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	now := time.UnixMilli(1_700_000_000_000)
	last := ""
	for range 100 {
		id := stored.NewID(now)
		if !form.MatchString(id) || id <= last {
			t.Fatalf("%s after %s", id, last)
		}
		last, now = id, now.Add(time.Millisecond)
	}
	if id := stored.NewID(time.Unix(-1, 0)); !form.MatchString(id) {
		t.Error(id)
	}
}
