package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/convergo/convergo/store/internal/schema"
)

func TestAProgramRunsWithANewerSchemaOnlyWhenEachNewerMigrationSaysSo(t *testing.T) {
	newer, broken := errors.New("migrated by a newer program"), errors.New("no such table")
	for _, c := range []struct {
		name         string
		have, newest int64
		strangers    int
		failure      error
		ahead, fine  bool
	}{
		{"an empty database", 0, 3, 0, broken, false, true}, // nobody is asked
		{"an older one", 2, 3, 9, broken, false, true},
		{"the same", 3, 3, 9, broken, false, true},
		{"a newer one that names this program", 4, 3, 0, nil, true, true},
		{"a newer one that does not", 5, 3, 1, nil, false, false},
		{"a newer one that cannot be asked", 5, 3, 0, broken, false, false},
	} {
		ahead, err := schema.Ahead("order", c.have, c.newest, func() (int, error) { return c.strangers, c.failure }, newer)
		if ahead != c.ahead || (err == nil) != c.fine || err != nil && !errors.Is(err, newer) {
			t.Errorf("%s: ahead %v, error %v", c.name, ahead, err)
		}
		if err != nil && (c.failure != nil) != errors.Is(err, broken) {
			t.Errorf("%s: the error %v hides the cause", c.name, err)
		}
	}
}

func TestASetsNameCanBePartOfATablesName(t *testing.T) {
	for name, good := range map[string]bool{
		"engine": true, "order_2": true, "": false, "Order": false, "2order": false, "a-b": false, `a"b`: false,
		strings.Repeat("a", 41): true, strings.Repeat("a", 42): false,
	} {
		if err := schema.ValidateName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}
