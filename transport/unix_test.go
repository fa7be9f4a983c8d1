//go:build unix

package transport_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/transport"
)

func TestListenUnix(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0)) // hides nothing
	path := filepath.Join(t.TempDir(), "s")
	listener, err := transport.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if second, err := transport.ListenUnix(path); err == nil || !strings.HasSuffix(err.Error(), "another server is listening there") {
		t.Errorf("a second listener: %v, %v", second, err)
	}
	// The first has been asked whether it lives, and lives.
	if conn, err := listener.Accept(); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket was left behind: %v", err)
	}
}

func TestListenUnixStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = stale.Close()
	listener, err := transport.ListenUnix(path)
	if err != nil {
		t.Fatalf("a stale socket was not replaced: %v", err)
	}
	defer listener.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestListenUnixRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	const notSocket = "the path exists and is not a socket; remove it or choose another path"
	if err := os.WriteFile(path("file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("nowhere"), path("link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"file": notSocket, "directory": notSocket, "link": notSocket, "fifo": notSocket,
		"missing/s":              "No such file or directory (os error 2)",
		"file/s":                 "Not a directory (os error 20)",
		strings.Repeat("s", 200): "; choose a shorter one",
	} {
		listener, err := transport.ListenUnix(path(name))
		prefix := "listen on unix socket " + path(name) + ": "
		if err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.HasSuffix(err.Error(), want) || strings.Count(err.Error(), path(name)) != 1 {
			t.Errorf("%s: %v, %v", name, listener, err)
		}
	}
	if content, err := os.ReadFile(path("file")); err != nil || string(content) != "precious" {
		t.Errorf("the file in the way: %q, %v", content, err)
	}
}
