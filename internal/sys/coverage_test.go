package sys_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// covered are the packages whose system calls tests can make fail.
var covered = []string{"internal/process", "internal/output", "internal/ownership", "internal/session", "internal/cgroup", "internal/procfs", "internal/rpc"}

// bare are calls without a point, by file.
var bare = map[string]string{
	"internal/process/process_windows.go": "the walk runs on Linux",
}

// TestEveryCallHasAPoint looks for calls of unix, syscall and os that package sys
// has as well: those could not be made to fail.
func TestEveryCallHasAPoint(t *testing.T) {
	names := make(map[string]bool)
	for _, file := range goFiles(t, ".") {
		for _, decl := range parse(t, file).Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Name.IsExported() {
				names[f.Name.Name] = true
			}
		}
	}
	points := 0
	for _, dir := range covered {
		for _, file := range goFiles(t, filepath.Join("../..", dir)) {
			name := strings.TrimPrefix(filepath.ToSlash(file), "../../")
			ast.Inspect(parse(t, file), func(n ast.Node) bool {
				call, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				from, ok := call.X.(*ast.Ident)
				switch {
				case !ok:
				case from.Name == "sys" || from.Name == "fault" && call.Sel.Name == "At":
					points++
				case from.Name == "unix" && call.Sel.Name == "Stat": // it is not os.Stat
				case slices.Contains([]string{"os", "unix", "syscall"}, from.Name) && names[call.Sel.Name]:
					if _, excused := bare[name]; !excused {
						t.Errorf("%s calls %s.%s, which a test cannot make fail; call sys.%s", name, from.Name, call.Sel.Name, call.Sel.Name)
					}
				}
				return true
			})
		}
	}
	t.Logf("%d calls have a point", points)
}

func goFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
