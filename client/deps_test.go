package client_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Who imports the client gets few modules with it, and none of the server.
func TestDependencies(t *testing.T) {
	allowed := []string{
		"execserver",
		"github.com/BurntSushi/toml",   // environments.toml
		"github.com/fsnotify/fsnotify", // watches, which package filesystem has
		"golang.org/x/sys",
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}|{{.ImportPath}}", "execserver/client").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		module, path, _ := strings.Cut(strings.TrimSpace(line), "|")
		if module != "" && !slices.Contains(allowed, module) {
			t.Errorf("%s is of the module %s, which is not allowed", path, module)
		}
		if path == "execserver/server" || strings.HasPrefix(path, "execserver/cmd/") {
			t.Errorf("the client needs %s", path)
		}
	}
}
