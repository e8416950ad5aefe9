package trade

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxJSONDepth = 32

// ReadJSON reads exactly one JSON value into v, and nothing that two readers could read differently. Refused beyond what
// encoding/json refuses: text that is not UTF-8, a name that stands twice in one object (also when it differs in case only,
// because encoding/json takes the last of either), anything after the value, more than 32 levels. Unknown fields are
// refused by the schema, where v is a struct also here. The error names the field.
func ReadJSON(data []byte, v any) error {
	if !utf8.Valid(data) {
		return problemf("body", "is not UTF-8 (first bad byte at %d)", badByte(data))
	}
	if err := checkJSON(data); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return problemf("body."+wrong.Field, "%s does not fit here; a whole number or text of the documented type is wanted", wrong.Value)
		}
		return problemf("body", "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

func badByte(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

// level is an object or array that is open while the tokens go by.
type level struct {
	object bool
	names  map[string]string // seen, by lower case
	name   string            // of the value that comes next; "" when a name comes next
	index  int
}

func checkJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var open []level
	for {
		token, err := dec.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return problemf(pathOf(open), "is not JSON: %s (at byte %d)", strings.TrimPrefix(err.Error(), "json: "), dec.InputOffset())
		}
		if open, err = step(open, token); err != nil {
			return err
		}
		if len(open) == 0 {
			break
		}
	}
	if rest := bytes.TrimSpace(data[dec.InputOffset():]); len(rest) > 0 {
		return problemf("body", "has something after its end, at byte %d; send one JSON value", dec.InputOffset())
	}
	return nil
}

// step takes one token and returns the levels that are open after it; none are when the value is complete.
func step(open []level, token json.Token) ([]level, error) {
	if d, ok := token.(json.Delim); ok && (d == '}' || d == ']') {
		open = open[:len(open)-1]
		return valueDone(open), nil
	}
	if top := len(open) - 1; top >= 0 && open[top].object && open[top].name == "" {
		name, ok := token.(string)
		if !ok {
			return open, problemf(pathOf(open), "has a name that is no text")
		}
		folded := strings.ToLower(name)
		if before, twice := open[top].names[folded]; twice {
			return open, problemf(pathOf(open)+"."+shorten(name), "stands twice in one object (before as %q); send it once", shorten(before))
		}
		open[top].names[folded], open[top].name = name, "."+name
		return open, nil
	}
	if d, ok := token.(json.Delim); ok {
		if len(open) == maxJSONDepth {
			return open, problemf(pathOf(open), "is nested deeper than %d levels", maxJSONDepth)
		}
		next := level{object: d == '{'}
		if next.object {
			next.names = map[string]string{}
		}
		return append(open, next), nil
	}
	return valueDone(open), nil
}

func valueDone(open []level) []level {
	if top := len(open) - 1; top >= 0 {
		open[top].name = ""
		open[top].index++
	}
	return open
}

func pathOf(open []level) string {
	var b strings.Builder
	b.WriteString("body")
	for _, l := range open {
		if l.object {
			b.WriteString(shorten(l.name))
		} else {
			b.WriteString("[" + strconv.Itoa(l.index) + "]")
		}
	}
	return b.String()
}
