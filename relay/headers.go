package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/convergo/convergo"
)

// ReadHeaders reads the headers of a row as they stand in its column: a JSON object of texts, as any program may write it. It takes
// nothing that it would have to change: no null, no name twice, no bytes that are not UTF-8, and no \ud800 without its other half, for
// all of which encoding/json has a value of its own.
func ReadHeaders(text string) (map[string]string, error) {
	if text == "{}" || text == "" {
		return nil, nil
	}
	var h map[string]string
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		var other *json.UnmarshalTypeError
		if errors.As(err, &other) {
			return nil, fmt.Errorf("JSON of another kind: %s", other.Value)
		}
		return nil, err
	}
	if err := readExactly(text, len(h)); err != nil {
		return nil, err
	}
	return h, nil
}

// readExactly tells what of a JSON object, or null, was not read as it stands there; members is how many were.
func readExactly(text string, members int) error {
	if !utf8.ValidString(text) {
		return errors.New("bytes that are not UTF-8")
	}
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			length, whole := escape(text[i:])
			if !whole {
				return fmt.Errorf("%s is half of a character", text[i:i+length])
			}
			i += length - 1
		case quoted:
		case c == ':':
			members--
		case c == 'n':
			return errors.New("JSON of another kind: null")
		}
	}
	if members != 0 {
		return errors.New("a name stands twice")
	}
	return nil
}

// escape is how many bytes the character has that text, which is valid JSON, begins with, and whether it is one.
func escape(text string) (length int, whole bool) {
	first, ok := unit(text)
	if !ok {
		return len(`\n`), true
	}
	length = len(`\u0000`)
	if !utf16.IsSurrogate(first) {
		return length, true
	}
	if second, ok := unit(text[length:]); ok && utf16.DecodeRune(first, second) != utf8.RuneError {
		return 2 * length, true
	}
	return length, false
}

func unit(text string) (rune, bool) {
	if !strings.HasPrefix(text, `\u`) || len(text) < 6 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)
	return rune(n), err == nil
}

// UnreadableHeaders is the name under which a store gives the text of a row's headers that another program wrote and that is no JSON
// object of texts. No header may have this name. Portion makes such an event Pending.Malformed.
const UnreadableHeaders = "headers are no JSON object of texts"

// maxUnreadable bounds what is kept of such a text.
const maxUnreadable = 2000

// HeadersOf is ReadHeaders for the rows of a list, which one that cannot be read must not end: it gives why, and behind a line break the
// text, as UnreadableHeaders.
func HeadersOf(text string) map[string]string {
	h, err := ReadHeaders(text)
	if err != nil {
		told := fmt.Sprintf("%v\n%s", err, text[:min(len(text), maxUnreadable)])
		return map[string]string{UnreadableHeaders: strings.ToValidUTF8(told, "\uFFFD")}
	}
	return h
}

func unreadable(headers map[string]string) error {
	value, marked := headers[UnreadableHeaders]
	if !marked {
		return nil
	}
	why, _, told := strings.Cut(value, "\n")
	if told {
		why += ": "
	} else {
		why = ""
	}
	return convergo.Permanent(fmt.Errorf("headers are no JSON object of texts: %sthe event is not sent; discard it and have its writer write "+
		`one such as {"trace":"4711"}, or mend the row in outbox_event and redrive it: %w`, why, convergo.ErrInvalid))
}
