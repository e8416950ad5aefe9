package convergo_test

import (
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
