package convergo_test

import (
	"regexp"
	"strings"
	"testing"
)

// The Go that the documents show is Go that runs here.
func TestTheGoInTheDocumentsIsTheExample(t *testing.T) {
	example := string(read(t, "store/sqlite/example_test.go"))
	for _, file := range []string{"README.md", "README.zh-CN.md"} {
		blocks := goBlocks(string(read(t, file)))
		if len(blocks) == 0 {
			t.Errorf("%s shows no Go", file)
		}
		for _, block := range blocks {
			if !strings.Contains(example, block) {
				t.Errorf("%s shows Go that is not in store/sqlite/example_test.go:\n%s", file, block)
			}
		}
	}
}

// goBlocks is the fenced blocks of the language Go, each without its fence.
func goBlocks(markdown string) []string {
	var blocks []string
	for i, part := range strings.Split(markdown, "\n```") {
		if code, is := strings.CutPrefix(part, "go\n"); is && i > 0 {
			blocks = append(blocks, code)
		}
	}
	return blocks
}

// The page about the checker explains every equation, the page about events every event type.
func TestEveryEquationAndEveryEventIsExplained(t *testing.T) {
	equation, event := regexp.MustCompile(`(?m)^-- name: (.*)\.broken$`), regexp.MustCompile(`(?m)^\t(\w+) += "(\w+)" // `)
	wanted := map[string][]string{}
	for _, file := range sources(t, ".sql") {
		if strings.HasPrefix(file, "drill/check/") {
			for _, found := range equation.FindAllStringSubmatch(string(read(t, file)), -1) {
				wanted["docs/guides/check-a-platform.md"] = append(wanted["docs/guides/check-a-platform.md"], "| "+found[1]+" |")
			}
		}
	}
	for _, found := range event.FindAllStringSubmatch(string(read(t, "trade/events.go")), -1) {
		if found[1] == found[2] {
			wanted["docs/reference/events.md"] = append(wanted["docs/reference/events.md"], "| `"+found[2]+"` |")
		}
	}
	if len(wanted) != 2 {
		t.Fatalf("equations or event types were not found in the code: %d kinds", len(wanted))
	}
	for page, all := range wanted {
		text := string(read(t, page))
		for _, row := range all {
			if !strings.Contains(text, row) {
				t.Errorf("%s has no row %s", page, row)
			}
		}
	}
}
