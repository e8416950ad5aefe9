package mysql

import (
	"bytes"
	"io/fs"
	"strings"
)

// fitted is a folder of migrations whose .sql files read as the server needs them.
type fitted struct {
	fs.FS
	collation string
}

// Open implements fs.FS.
func (f fitted) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".sql") {
		return file, err
	}
	info, err := file.Stat()
	closing := file.Close()
	if err == nil {
		err = closing
	}
	if err != nil {
		return nil, err
	}
	text, err := fs.ReadFile(f.FS, name)
	if err != nil {
		return nil, err
	}
	content := fit(string(text), f.collation)
	return &fittedFile{Reader: bytes.NewReader([]byte(content)), info: fittedInfo{info, int64(len(content))}}, nil
}

type fittedFile struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *fittedFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *fittedFile) Close() error               { return nil }

type fittedInfo struct {
	fs.FileInfo
	size int64
}

func (i fittedInfo) Size() int64 { return i.size }

// fit rewrites the CREATE TABLE statements of a file.
func fit(text, collation string) string {
	var (
		out      strings.Builder
		words    []string // of the statement so far, in capitals
		creating bool
	)
	for len(text) > 0 {
		token := next(text)
		text = text[len(token):]
		switch {
		case token == ";":
			if creating && !contains(words, "COLLATE") && !contains(words, "CHARSET") && !contains(words, "SELECT") {
				out.WriteString(" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE " + collation)
			}
			words, creating = words[:0], false
		case isWord(token[0]):
			words = append(words, strings.ToUpper(token))
			if creating && words[len(words)-1] == "TEXT" {
				token = "LONGTEXT"
			}
			creating = creating || len(words) == 2 && words[0] == "CREATE" && words[1] == "TABLE"
		}
		out.WriteString(token)
	}
	return out.String()
}

// next is the text's first token: a word, a quoted text, a comment, or one character. A line "-- +goose …" is a comment.
func next(text string) string {
	until := func(end string, from int) string {
		if i := strings.Index(text[from:], end); i >= 0 {
			return text[:from+i+len(end)]
		}
		return text
	}
	switch c := text[0]; {
	case c == '\'' || c == '"' || c == '`':
		return until(string(c), 1) // a doubled quote is two tokens side by side
	case strings.HasPrefix(text, "--"), c == '#':
		return until("\n", 0)
	case strings.HasPrefix(text, "/*"):
		return until("*/", 2)
	case isWord(c):
		n := 1
		for n < len(text) && isWord(text[n]) {
			n++
		}
		return text[:n]
	default:
		return text[:1]
	}
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80
}

func contains(words []string, word string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	return false
}
