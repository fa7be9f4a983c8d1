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
	m := newTerminal(t, "--", "exec-server", "cp", "--on", "local", source, ":"+dir+"/target")
	m.expect(`left out ` + source + `/\x1b[2Jfifo: not a file, a directory or a link` + "\r\n")
	m.expect("2 files, 8 B in ")
	m.expect(" s, 1 left out\r\n")
}

func TestMeterNumbers(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 20_500_000: "20.5 MB", 123_400_000: "123 MB", 5_000_000_000: "5.0 GB",
	} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes are shown as %q, want %q", bytes, got, want)
		}
	}
	for seconds, want := range map[float64]string{-1: "0:00 left", 7.9: "0:07 left", 125: "2:05 left", 3723: "1:02:03 left", 1e18: "99:59:59 left"} {
		if got := left(seconds); got != want {
			t.Errorf("%v seconds are shown as %q, want %q", seconds, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 files", 1: "1 file", 999: "999 files", 1000: "1,000 files", 1234567: "1,234,567 files"} {
		if got := countFiles(n); got != want {
			t.Errorf("%d files are shown as %q, want %q", n, got, want)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	for arg, want := range map[string]place{
		"file": {path: "file"}, "./a:b": {path: "./a:b"}, "/a:b": {path: "/a:b"}, "dir/a:b": {path: "dir/a:b"},
		"box:file": {far: true, name: "box", path: "file"}, ":file": {far: true, path: "file"}, "box:": {far: true, name: "box"},
		":": {far: true}, "box:a:b": {far: true, name: "box", path: "a:b"}, "a b:c": {path: "a b:c"},
	} {
		if got := placeOf(arg); got != want {
			t.Errorf("%q is %+v, want %+v", arg, got, want)
		}
	}
}
