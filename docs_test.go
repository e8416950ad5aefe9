package convergo_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

func TestLinksInTheDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	for _, file := range sources(t, ".md") {
		for _, found := range link.FindAllStringSubmatch(prose(string(read(t, file))), -1) {
			target := found[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checkLink(t, file, target)
		}
	}
}

func checkLink(t *testing.T, file, target string) {
	t.Helper()
	name, anchor, _ := strings.Cut(target, "#")
	to := file
	if name != "" {
		to = path.Join(path.Dir(file), name)
		if strings.HasPrefix(name, "/") {
			to = path.Join(".", name)
		}
	}
	if _, err := os.Stat(filepath.FromSlash(to)); err != nil {
		t.Errorf("%s: the link %s leads nowhere", file, target)
		return
	}
	if anchor != "" && strings.HasSuffix(to, ".md") && !anchors(string(read(t, to)))[anchor] {
		t.Errorf("%s: the link %s: no such heading in %s", file, target, to)
	}
}

func TestTheChangelogHasOneSectionPerVersion(t *testing.T) {
	titles, sections := 0, map[string]bool{}
	for _, h := range headings(string(read(t, "CHANGELOG.md"))) {
		switch {
		case h.level == 1:
			titles++
		case h.level == 2 && sections[h.text]:
			t.Errorf("the section %q is there twice", h.text)
		case h.level == 2:
			sections[h.text] = true
		}
	}
	if titles != 1 || len(sections) == 0 {
		t.Errorf("%d titles and %d sections, want one title and at least one section", titles, len(sections))
	}
}

func TestEachDecisionHasANumberOfItsOwnAndSaysIt(t *testing.T) {
	files, err := filepath.Glob("docs/adr/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for i, file := range files { // in their order
		number := fmt.Sprintf("%04d-", i+1)
		title := headings(string(read(t, file)))[0].text
		if !strings.HasPrefix(filepath.Base(file), number) || !strings.HasPrefix(title, fmt.Sprintf("%d. ", i+1)) {
			t.Errorf("%s, %q: decision %d stands there twice, or is missing", file, title, i+1)
		}
	}
}

func TestTheTwoReadmesAreBuiltAlike(t *testing.T) {
	english, chinese := string(read(t, "README.md")), string(read(t, "README.zh-CN.md"))
	if one, other := shape(english), shape(chinese); one != other {
		t.Errorf("headings by level, and code blocks:\nREADME.md       %s\nREADME.zh-CN.md %s", one, other)
	}
}

// shape is the levels of the headings in order and, per code block, a mark.
func shape(markdown string) string {
	var b strings.Builder
	for _, h := range headings(markdown) {
		b.WriteString(strings.Repeat("#", h.level) + " ")
	}
	b.WriteString(strings.Repeat("[code] ", strings.Count("\n"+markdown, "\n```")/2))
	return strings.TrimSpace(b.String())
}

type heading struct {
	level int
	text  string
}

func headings(markdown string) []heading {
	var all []heading
	for line := range strings.Lines(prose(markdown)) {
		text := strings.TrimLeft(line, "#")
		if level := len(line) - len(text); level > 0 && strings.HasPrefix(text, " ") {
			all = append(all, heading{level, strings.TrimSpace(text)})
		}
	}
	return all
}

// prose is the text without its code blocks.
func prose(markdown string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(markdown) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if !code {
			b.WriteString(line)
		}
	}
	return b.String()
}

// anchors is the names by which the headings can be linked, as GitHub makes them.
func anchors(markdown string) map[string]bool {
	all := map[string]bool{}
	for _, h := range headings(markdown) {
		all[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, h.text)] = true
	}
	return all
}
