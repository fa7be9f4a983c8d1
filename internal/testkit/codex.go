package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// CodexVersion is the newest release of Codex that the tests know.
const CodexVersion = "0.171.0"

// Codex returns the path of Codex's released program, which scripts/install-codex
// installs. It skips the test unless EXEC_SERVER_TEST_CODEX is set.
func Codex(t testing.TB) string {
	t.Helper()
	if os.Getenv("EXEC_SERVER_TEST_CODEX") == "" {
		t.Skipf("the released program is only tested with EXEC_SERVER_TEST_CODEX=1, after scripts/install-codex %s", CodexVersion)
	}
	if program := os.Getenv("CODEX_PROGRAM"); program != "" {
		return program
	}
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	program := filepath.Join(base, "exec-server", "codex", CodexVersion, "codex")
	NeedFile(t, program, "scripts/install-codex "+CodexVersion)
	return program
}
