package client_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Who imports the client gets the wire with it, and nothing of the server: neither its
// packages nor the modules that only they need. (What carries the messages and what
// encodes them is the wire's.)
func TestDependencies(t *testing.T) {
	t.Parallel()
	const module = "execserver"
	allowed := []string{
		module + "/client",
		module + "/protocol",
		module + "/transport",
		module + "/internal/fault", // empty functions, but in tests
		module + "/internal/forward",
		module + "/internal/peer",
		module + "/internal/procfs", // which processes are at the other end
		module + "/internal/rpc",
		module + "/internal/sys",
		"github.com/klauspost/compress",
		"github.com/segmentio/asm", // base64
		"golang.org/x/sync",        // copies
		"golang.org/x/sys",
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}|{{.ImportPath}}", module+"/client").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		of, path, _ := strings.Cut(strings.TrimSpace(line), "|")
		if of == module {
			of = path // of our own packages each counts
		}
		if of != "" && !slices.Contains(allowed, of) {
			t.Errorf("the client needs %s", path)
		}
	}
}
