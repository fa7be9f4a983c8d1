package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// Codex returns the path of Codex's released program, which scripts/install-codex
// installs. It skips the test unless EXEC_SERVER_TEST_CODEX is set.
func Codex(t testing.TB) string {
	t.Helper()
	const version = "0.169.0"
	if os.Getenv("EXEC_SERVER_TEST_CODEX") == "" {
		t.Skipf("the released program is only tested with EXEC_SERVER_TEST_CODEX=1, after scripts/install-codex %s", version)
	}
	if program := os.Getenv("CODEX_PROGRAM"); program != "" {
		return program
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	program := filepath.Join(base, "exec-server", "codex", version, "codex")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("Codex is not installed, run scripts/install-codex %s: %v", version, err)
	}
	return program
}
