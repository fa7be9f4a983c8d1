package server_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies lists the modules that a program gets when it embeds a server. What the
// command adds, such as metrics, is not among them.
func TestDependencies(t *testing.T) {
	allowed := []string{
		"execserver",
		"github.com/BurntSushi/toml",    // the file of tokens
		"github.com/fsnotify/fsnotify",  // fs/watch
		"github.com/golang-jwt/jwt/v5",  // signed tokens
		"github.com/klauspost/compress", // compressed messages
		"github.com/segmentio/asm",      // base64
		"golang.org/x/sync",             // semaphores
		"golang.org/x/sys",              // system calls
		"golang.org/x/text",             // widths of characters on a screen
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}} {{.ImportPath}}", "execserver/server").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		of, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path != "" && !slices.Contains(allowed, of) {
			t.Errorf("the server needs %s of %s", path, of)
		}
		switch path {
		case "execserver/internal/metrics", "execserver/internal/recording", "execserver/internal/web", "execserver/fleet/internal/fleet", "execserver/fleet/internal/broker", "execserver/fleet/natstransport":
			t.Errorf("the server needs %s", path)
		}
	}
}

// TestLayers checks that no package depends on one that is nearer to the client.
func TestLayers(t *testing.T) {
	t.Parallel()
	carries := []string{"transport", "internal/rpc", "server"}
	keeps := []string{"internal/session", "internal/process", "internal/output"}
	all := slices.Concat(carries, keeps)
	nearer := map[string][]string{
		"protocol":            all,
		"transport":           slices.Concat(carries[1:], keeps),
		"internal/rpc":        slices.Concat(carries[2:], keeps),
		"internal/session":    carries,
		"internal/process":    slices.Concat(carries, keeps[:1]),
		"internal/output":     slices.Concat(carries, keeps[:2]),
		"internal/ownership":  slices.Concat(all, []string{"internal/sandbox", "internal/filesystem"}),
		"internal/sandbox":    slices.Concat(all, []string{"internal/ownership"}),
		"internal/filesystem": slices.Concat(all, []string{"protocol", "internal/ownership", "internal/sandbox"}),
	}
	for of, forbidden := range nearer {
		out, err := exec.Command("go", "list", "-deps", "execserver/"+of).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for path := range strings.Lines(string(out)) {
			path = strings.TrimPrefix(strings.TrimSpace(path), "execserver/")
			if path != of && slices.Contains(forbidden, path) {
				t.Errorf("%s depends on %s", of, path)
			}
		}
	}
}
