//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestListOnTerminal checks that ls prints columns on a terminal, and that a file's name
// cannot control the terminal.
func TestListOnTerminal(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two", "\x1b[2Jthree\nfour", `a "b"`} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := newTerminal(t, "--", "exec-server", "ls", "--on", "local", dir)
	m.expect(`\x1b[2Jthree\nfour  a "b"  one  two` + "\r\n")
	m = newTerminal(t, "--", "exec-server", "ls", "-l", "--on", "local", dir)
	m.expect(`  \x1b[2Jthree\nfour` + "\r\n")
}
