package sqltext

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Set is the statements of one file, by name.
type Set map[string]string

// ErrSyntax is wrapped by every error that says a .sql file is not a list of named statements.
var ErrSyntax = errors.New("not a list of named statements")

// Load reads the named statements of one file and fits them to the database. A statement starts with a line
// "-- name: X" and ends before the next such line; lines that are comments are dropped, so that what is sent is short, and so
// is a closing semicolon. "-- name: X :once" marks an INSERT that does nothing, and affects no row, when a unique key is there
// already; the file holds the plain INSERT and Load adds the clause of the dialect. Placeholders stay '?'. Errors wrap ErrSyntax or are
// those of fsys, and say which file and line.
//
// On MySQL a :once INSERT that found its row affects 0 rows, unless the connection was opened with clientFoundRows.
func Load(fsys fs.FS, path string, d Dialect) (Set, error) {
	text, err := fs.ReadFile(fsys, path)
	if err != nil {
		return nil, fmt.Errorf("read statements: %w", err)
	}
	set := Set{}
	var current *statement
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimRight(line, " \t\r")
		next, err := header(line)
		switch {
		case err != nil:
		case next != nil:
			if err = set.add(current, d); err == nil {
				if _, twice := set[next.name]; twice {
					err = fmt.Errorf("statement %s is there twice: %w", next.name, ErrSyntax)
				}
			}
			current = next
		case line == "" || strings.HasPrefix(strings.TrimSpace(line), "--"):
		case current == nil:
			err = fmt.Errorf("text before the first \"-- name: X\": %w", ErrSyntax)
		default:
			current.lines = append(current.lines, line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	if err := set.add(current, d); err != nil {
		return nil, fmt.Errorf("%s: at its end: %w", path, err)
	}
	return set, nil
}

// Get is the statement of that name. It panics when there is none: a programming error that the first test finds.
func (s Set) Get(name string) string {
	text, ok := s[name]
	if !ok {
		panic("sqltext: no statement is named " + name)
	}
	return text
}

type statement struct {
	name  string
	once  bool
	lines []string
}

var (
	headerLine = regexp.MustCompile(`^--\s*name:\s*(.*)$`)
	nameWord   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	insertHead = regexp.MustCompile(`(?is)^INSERT\s+INTO\s+[^\s(]+\s*\(\s*([^\s,)]+)`)
	selectPart = regexp.MustCompile(`(?is)\)\s*SELECT\b`)
	wherePart  = regexp.MustCompile(`(?is)\bWHERE\b`)
)

// header parses a "-- name: X [:once]" line; nil when the line is none.
func header(line string) (*statement, error) {
	m := headerLine.FindStringSubmatch(line)
	if m == nil {
		return nil, nil
	}
	words := strings.Fields(m[1])
	if len(words) == 0 || !nameWord.MatchString(words[0]) {
		return nil, fmt.Errorf("name %q is not a word of letters, digits and _: %w", m[1], ErrSyntax)
	}
	st := &statement{name: words[0]}
	for _, flag := range words[1:] {
		if flag != ":once" {
			return nil, fmt.Errorf("statement %s: unknown mark %q; only :once is known: %w", st.name, flag, ErrSyntax)
		}
		st.once = true
	}
	return st, nil
}

func (s Set) add(st *statement, d Dialect) error {
	if st == nil {
		return nil
	}
	text := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(strings.Join(st.lines, "\n")), ";"))
	if text == "" {
		return fmt.Errorf("statement %s is empty: %w", st.name, ErrSyntax)
	}
	if st.once {
		clause, err := once(text, d)
		if err != nil {
			return fmt.Errorf("statement %s: %w", st.name, err)
		}
		text += clause
	}
	s[st.name] = text
	return nil
}

// once is the clause that makes an INSERT do nothing on a duplicate. Never INSERT IGNORE: that also hides a value that is cut
// or a violated constraint.
func once(text string, d Dialect) (string, error) {
	m := insertHead.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf(":once needs INSERT INTO table (columns …): %w", ErrSyntax)
	}
	if selectPart.MatchString(text) && !wherePart.MatchString(text) {
		return "", fmt.Errorf(":once on INSERT … SELECT needs a WHERE, or SQLite takes ON for a join's: %w", ErrSyntax)
	}
	if d == MySQL {
		return " ON DUPLICATE KEY UPDATE " + m[1] + "=" + m[1], nil
	}
	return " ON CONFLICT DO NOTHING", nil
}
