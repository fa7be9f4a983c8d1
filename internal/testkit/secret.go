package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// Secret writes a file that only this user may read, and returns its path.
func Secret(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
