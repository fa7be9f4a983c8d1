package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestCopyToFullDisk checks what a person reads when a disk is full, at both ends, and that
// no file under its name is incomplete.
func TestCopyToFullDisk(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	full := testkit.Mount(t, "full", "tmpfs", "size=1m")
	source := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(source, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	server := newServer(t)
	for name, args := range map[string][]string{
		"far":  {source, ":" + full},
		"here": {":" + source, full},
	} {
		out, err := exec.Command("exec-server", append([]string{"cp", "--url", server.url}, args...)...).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		line := strings.ToLower(string(out))
		if !ok || exit.ExitCode() != 1 || strings.Count(line, "\n") != 1 || !strings.Contains(line, "no space left on device") ||
			!strings.HasSuffix(line, "; make room there, and repeat the command\n") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if _, err := os.Lstat(filepath.Join(full, "big")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is an incomplete copy: %v", name, err)
		}
	}

	// So is what standard output leads to.
	out, err := exec.Command("sh", "-c", "exec-server cat --url "+server.url+" "+source+" >/dev/full").CombinedOutput()
	if want := "Error: write /dev/stdout: no space left on device\n"; err == nil || string(out) != want {
		t.Errorf("cat: %v: %s, want %s", err, out, want)
	}
}
