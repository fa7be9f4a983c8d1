package main

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/cli/root"
)

// flagsOf returns the names of the flags of a command and of its subcommands.
func flagsOf(command *cobra.Command) (names []string) {
	command.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	for _, sub := range command.Commands() {
		names = append(names, flagsOf(sub)...)
	}
	return names
}

func importsTesting(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }

// TestLibrariesNameNoFlag reads the string literals of every package that other programs
// can use, by themselves or through one of those. Such programs have other flags, or
// none, so no error may name one of this command's.
func TestLibrariesNameNoFlag(t *testing.T) {
	named := regexp.MustCompile(`--([a-z][a-z0-9-]*)`)
	flags := flagsOf(root.New(""))
	top := filepath.Join("..", "..")
	checked := 0
	for _, dir := range []string{"client", "internal", "protocol", "server", "transport"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && path == filepath.Join(top, "internal", "cli") {
				return filepath.SkipDir // the command itself
			}
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := gotoken.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(file.Imports, importsTesting) || file.Name.Name == "main" {
				return nil // a kit of tests, or a program of its own, which may start the command
			}
			checked++
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == gotoken.STRING {
					for _, found := range named.FindAllStringSubmatch(literal.Value, -1) {
						if slices.Contains(flags, found[1]) || strings.HasSuffix(found[1], "-") {
							t.Errorf("%s names a flag of the command: %s", files.Position(literal.Pos()), literal.Value)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 100 {
		t.Errorf("only %d files", checked)
	}
}

// TestKnowsNoNATS checks that nothing of the module, with its tests, imports NATS or the
// module of the fleet. That one imports this one, and has NATS to itself.
func TestKnowsNoNATS(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-test", "execserver/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for path := range strings.Lines(string(out)) {
		if path = strings.TrimSpace(path); strings.HasPrefix(path, "github.com/nats-io/") || strings.HasPrefix(path, "execserver/fleet") {
			t.Errorf("the module needs %s", path)
		}
	}
}
