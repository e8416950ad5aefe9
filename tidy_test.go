package convergo_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Limits of the house.
const (
	fileLines, testFileLines = 500, 900
	funcLines, testFuncLines = 80, 150
)

func TestFilesAreShort(t *testing.T) {
	for _, file := range sources(t, ".go") {
		limit := fileLines
		if isTest(file) {
			limit = testFileLines
		}
		if n := bytes.Count(read(t, file), []byte("\n")); n > limit {
			t.Errorf("%s has %d lines, at most %d: split it by what it is about", file, n, limit)
		}
	}
}

func TestFunctionsAreShort(t *testing.T) {
	for _, f := range parsedFiles(t) {
		limit := funcLines
		if isTest(f.name) {
			limit = testFuncLines
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := f.line(fn.End()) - f.line(fn.Pos()) + 1; n > limit {
				t.Errorf("%s:%d: %s has %d lines, at most %d", f.name, f.line(fn.Pos()), fn.Name.Name, n, limit)
			}
		}
	}
}

func TestNothingHappensBeforeMain(t *testing.T) {
	for _, f := range parsedFiles(t) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s:%d: init: let a constructor do it", f.name, f.line(fn.Pos()))
			}
		}
	}
}

func TestPackagesAreNamedAfterWhatTheyDo(t *testing.T) {
	forbidden := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base", "lib"}
	for _, f := range parsedFiles(t) {
		name := strings.TrimSuffix(f.Name.Name, "_test")
		if slices.Contains(forbidden, name) || slices.Contains(forbidden, path.Base(path.Dir(f.name))) {
			t.Errorf("%s: package %s says nothing about what it does", f.name, name)
		}
	}
}

// Tests wait for a condition, or run in testing/synctest; they run, or they fail.
func TestTestsNeitherSleepNorSkip(t *testing.T) {
	for _, f := range parsedFiles(t) {
		inTests := isTest(f.name) || strings.HasSuffix(path.Dir(f.name), "test")
		ast.Inspect(f.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !inTests {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			receiver, ok := selector.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch receiver.Name + "." + selector.Sel.Name {
			case "time.Sleep", "t.Skip", "t.Skipf", "t.SkipNow", "b.Skip", "b.Skipf", "b.SkipNow":
				t.Errorf("%s:%d: %s.%s", f.name, f.line(call.Pos()), receiver.Name, selector.Sel.Name)
			}
			return true
		})
	}
}

// A test that reads a plain buffer while a component still logs into it is a race that shows once in a thousand runs.
func TestLogsOfTestsAreReadUnderALock(t *testing.T) {
	handler := regexp.MustCompile(`slog\.New(?:Text|JSON)Handler\(&(\w+)`)
	for _, file := range sources(t, "_test.go") {
		text := string(read(t, file))
		for _, match := range handler.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`\b` + match[1] + `\s+testlog\.Lines\b`).MatchString(text) {
				t.Errorf("%s: a logger writes to %s: make it a testlog.Lines", file, match[1])
			}
		}
	}
}

// Whoever runs the program knows flags and parameters of addresses, and no fields: those stand behind them, in brackets.
func TestMessagesNameASettingBeforeItsField(t *testing.T) {
	field, bracketed := regexp.MustCompile(`\b(Config|Options)\.[A-Z]\w+`), regexp.MustCompile(`\w ?\([^()]*\)`)
	for _, f := range parsedFiles(t) {
		if room, _, _ := strings.Cut(f.name, "/"); isTest(f.name) || !slices.Contains([]string{"broker", "cmd", "outbox", "relay", "store"}, room) {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if ok && text.Kind == token.STRING && field.MatchString(bracketed.ReplaceAllString(text.Value, "")) {
				t.Errorf("%s:%d: %s: write setting (%s)", f.name, f.line(text.Pos()), text.Value, field.FindString(text.Value))
			}
			return true
		})
	}
}

func TestMoneyIsNeverAFloat(t *testing.T) {
	for _, f := range parsedFiles(t) {
		if !strings.HasPrefix(f.name, "trade/") {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok && (name.Name == "float64" || name.Name == "float32") {
				t.Errorf("%s:%d: %s: amounts are int64 minor units; shares are integer arithmetic", f.name, f.line(name.Pos()), name.Name)
			}
			return true
		})
	}
}

func TestNothingIsLeftToDo(t *testing.T) {
	// The third mark is also the code of "no currency" in ISO 4217: it counts in comments only.
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b|(//|--|#).*\bXX` + `X\b`)
	for _, file := range sources(t, ".go", ".sql", ".md", ".yml", ".yaml", "Makefile", "/run", ".html", ".css", ".js") {
		for i, line := range strings.Split(string(read(t, file)), "\n") {
			if mark := marks.FindString(line); mark != "" {
				t.Errorf("%s:%d: %s: do it, or file an issue", file, i+1, mark)
			}
		}
	}
}

// A package variable may be a table or a name for a value; nothing may change it. Its value is one of those below, and no
// statement of its package assigns to it, to a part of it, or takes its address.
func TestPackageVariablesAreConstantInAllButName(t *testing.T) {
	packages := map[string][]goFile{}
	for _, f := range parsedFiles(t) {
		if !isTest(f.name) {
			packages[path.Dir(f.name)] = append(packages[path.Dir(f.name)], f)
		}
	}
	for folder, files := range packages {
		info := resolve(folder, files)
		for _, f := range files {
			checkVariables(t, f)
			checkAssignments(t, f, info)
		}
	}
}

// makers are the functions whose results a package variable may hold: they are read-only, or safe for concurrent use.
func makers() []string {
	return []string{
		"errors.New", "fmt.Errorf", "regexp.MustCompile", "template.Must", "strings.NewReplacer", "time.Date", "big.NewInt",
		"sync.OnceValue", "sync.OnceValues", "sync.OnceFunc", "uuid.MustParse", "language.MustParse", "convergo.Permanent",
	}
}

func checkVariables(t *testing.T, f goFile) {
	t.Helper()
	for _, d := range f.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, s := range group.Specs {
			spec, ok := s.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name == "_" || embedded(group, spec) {
				continue
			}
			if len(spec.Values) == 0 {
				t.Errorf("%s:%d: var %s has no value: state belongs into a struct", f.name, f.line(spec.Pos()), spec.Names[0].Name)
			}
			for _, value := range spec.Values {
				if !readOnly(value) {
					t.Errorf("%s:%d: var %s holds something that can change or is computed: put it into a function or a struct",
						f.name, f.line(spec.Pos()), spec.Names[0].Name)
				}
			}
		}
	}
}

func embedded(group *ast.GenDecl, spec *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{group.Doc, spec.Doc} {
		if doc == nil {
			continue
		}
		for _, c := range doc.List {
			if strings.HasPrefix(c.Text, "//go:embed ") {
				return true
			}
		}
	}
	return false
}

func readOnly(value ast.Expr) bool {
	switch v := value.(type) {
	case *ast.BasicLit, *ast.FuncLit, *ast.Ident, *ast.SelectorExpr:
		return true
	case *ast.CompositeLit: // a table; the types of sync and sync/atomic are made to change
		kind := types.ExprString(v.Type)
		return !strings.HasPrefix(kind, "sync.") && !strings.HasPrefix(kind, "atomic.")
	case *ast.BinaryExpr:
		return readOnly(v.X) && readOnly(v.Y)
	case *ast.CallExpr:
		if index, generic := v.Fun.(*ast.IndexExpr); generic {
			return slices.Contains(makers(), types.ExprString(index.X))
		}
		return slices.Contains(makers(), types.ExprString(v.Fun))
	}
	return false
}

// resolve finds out which names mean package variables. Imports are not followed: what they are does not matter here.
func resolve(folder string, files []goFile) *types.Info {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	var parsed []*ast.File
	for _, f := range files {
		parsed = append(parsed, f.File)
	}
	config := types.Config{Importer: noImports{}, Error: func(error) {}, IgnoreFuncBodies: false}
	_, _ = config.Check(folder, files[0].set, parsed, info) // complains about everything that is imported
	return info
}

type noImports struct{}

func (noImports) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

func checkAssignments(t *testing.T, f goFile, info *types.Info) {
	t.Helper()
	refuse := func(e ast.Expr) {
		name := rootOf(e)
		if name == nil {
			return
		}
		if v, ok := info.Uses[name].(*types.Var); ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
			t.Errorf("%s:%d: %s is a package variable and is changed here", f.name, f.line(e.Pos()), name.Name)
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch s := n.(type) {
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				for _, left := range s.Lhs {
					refuse(left)
				}
			}
		case *ast.IncDecStmt:
			refuse(s.X)
		case *ast.UnaryExpr:
			if s.Op == token.AND {
				refuse(s.X)
			}
		case *ast.CallExpr:
			if fn, ok := s.Fun.(*ast.Ident); ok && (fn.Name == "delete" || fn.Name == "clear") {
				refuse(s.Args[0])
			}
		}
		return true
	})
}

// rootOf is x of x, x.y, x[i], *x and (x).
func rootOf(e ast.Expr) *ast.Ident {
	switch v := e.(type) {
	case *ast.Ident:
		return v
	case *ast.SelectorExpr:
		return rootOf(v.X)
	case *ast.IndexExpr:
		return rootOf(v.X)
	case *ast.StarExpr:
		return rootOf(v.X)
	case *ast.ParenExpr:
		return rootOf(v.X)
	}
	return nil
}

// goFile is a parsed source file.
type goFile struct {
	*ast.File
	name string
	set  *token.FileSet
}

func (f goFile) line(at token.Pos) int { return f.set.Position(at).Line }

func parsedFiles(t *testing.T) []goFile {
	t.Helper()
	set := token.NewFileSet()
	var all []goFile
	for _, file := range sources(t, ".go") {
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		all = append(all, goFile{parsed, file, set})
	}
	return all
}

func isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
