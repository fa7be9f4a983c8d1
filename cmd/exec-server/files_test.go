//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestCopyOnTerminal checks that cp tells on a terminal what it has done, and that a file's
// name cannot control the terminal.
func TestCopyOnTerminal(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	err := errors.Join(
		os.Mkdir(source, 0o755), os.WriteFile(filepath.Join(source, "one"), []byte("one"), 0o600),
		os.WriteFile(filepath.Join(source, "three"), []byte("three"), 0o600), syscall.Mkfifo(filepath.Join(source, "\x1b[2Jfifo"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	m := newTerminal(t, "--on", "local", "--", "exec-server", "cp", "--on", "local", source, ":"+dir+"/target")
	m.expect(`left out ` + source + `/\x1b[2Jfifo: not a file, a directory or a link` + "\r\n")
	m.expect("2 files, 8 B in ")
	m.expect(" s, 1 left out\r\n")
}

// TestListOnTerminal checks that ls prints columns on a terminal, and that a file's name
// cannot control the terminal.
func TestListOnTerminal(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two", "\x1b[2Jthree\nfour", `a "b"`} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := newTerminal(t, "--on", "local", "--", "exec-server", "ls", "--on", "local", dir)
	m.expect(`\x1b[2Jthree\nfour  a "b"  one  two` + "\r\n")
	m = newTerminal(t, "--on", "local", "--", "exec-server", "ls", "-l", "--on", "local", dir)
	m.expect(`  \x1b[2Jthree\nfour` + "\r\n")
}
