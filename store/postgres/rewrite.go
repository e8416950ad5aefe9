package postgres

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// rewriter turns '?' placeholders into $1, $2, … and remembers what it did.
type rewriter struct {
	known sync.Map // text → text
	count atomic.Int64
}

// mostTexts bounds the memory of a program that builds its SQL anew each time.
const mostTexts = 10_000

func (r *rewriter) rewrite(query string) string {
	if strings.IndexByte(query, '?') < 0 {
		return query
	}
	if text, ok := r.known.Load(query); ok {
		return text.(string)
	}
	text := rewrite(query)
	if r.count.Load() < mostTexts {
		if _, was := r.known.LoadOrStore(query, text); !was {
			r.count.Add(1)
		}
	}
	return text
}

// rewrite leaves question marks alone in 'texts', "names", $tag$ texts $tag$, -- comments and /* comments */. A "??" is one
// question mark, for the operators that have it in their names.
func rewrite(query string) string {
	var b strings.Builder
	b.Grow(len(query) + 16)
	n := 0
	for i := 0; i < len(query); {
		if end := skip(query, i); end > i {
			b.WriteString(query[i:end])
			i = end
			continue
		}
		switch {
		case query[i] != '?':
			b.WriteByte(query[i])
		case i+1 < len(query) && query[i+1] == '?':
			b.WriteByte('?')
			i++
		default:
			n++
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(n))
		}
		i++
	}
	return b.String()
}

// skip returns the end of the quoted text or comment that starts at i, or i when none does.
func skip(query string, i int) int {
	rest := query[i:]
	switch {
	case rest[0] == '\'':
		escaped := i > 0 && (query[i-1] == 'E' || query[i-1] == 'e') && (i == 1 || !wordByte(query[i-2]))
		return i + quoted(rest, '\'', escaped)
	case rest[0] == '"':
		return i + quoted(rest, '"', false)
	case strings.HasPrefix(rest, "--"):
		if end := strings.IndexByte(rest, '\n'); end >= 0 {
			return i + end
		}
		return len(query)
	case strings.HasPrefix(rest, "/*"):
		return i + commented(rest)
	case rest[0] == '$' && (i == 0 || !wordByte(query[i-1])):
		return i + dollars(rest)
	}
	return i
}

// quoted is the length of the text in quotes at the start. A doubled quote starts what looks like another, to the same effect.
func quoted(rest string, quote byte, backslash bool) int {
	for j := 1; j < len(rest); j++ {
		switch {
		case backslash && rest[j] == '\\':
			j++
		case rest[j] == quote:
			return j + 1
		}
	}
	return len(rest)
}

// commented is the length of the comment at the start; they nest.
func commented(rest string) int {
	depth := 0
	for j := 0; j+1 < len(rest); {
		switch rest[j : j+2] {
		case "/*":
			depth++
			j += 2
		case "*/":
			depth--
			j += 2
		default:
			j++
		}
		if depth == 0 {
			return j
		}
	}
	return len(rest)
}

// dollars is the length of the $tag$text$tag$ at the start, 0 when there is none.
func dollars(rest string) int {
	j := 1
	for j < len(rest) && wordByte(rest[j]) {
		j++
	}
	if j >= len(rest) || rest[j] != '$' || j > 1 && rest[1] >= '0' && rest[1] <= '9' {
		return 0
	}
	tag := rest[:j+1]
	end := strings.Index(rest[len(tag):], tag)
	if end < 0 {
		return len(rest)
	}
	return end + 2*len(tag)
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
