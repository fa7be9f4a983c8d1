//go:build unix

package auth_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/auth"
)

func TestListenUnix(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0)) // hides nothing
	path := filepath.Join(t.TempDir(), "s")
	listener, err := auth.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if second, err := auth.ListenUnix(path); err == nil || !strings.HasSuffix(err.Error(), "another server is listening there") {
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

// TestListenUnixForAll listens in directories in which no other user could replace the
// socket, and in others.
func TestListenUnixForAll(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := t.TempDir()
	own, shared, others := root+"/own", root+"/shared", root+"/others"
	for dir, mode := range map[string]os.FileMode{
		own: 0o755, shared: 0o777 | os.ModeSticky, others: 0o757, others + "/own": 0o755, root + "/group": 0o775, root + "/foreign": 0o755,
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(others, own+"/link"); err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{
		own: "", shared: "", others: "chmod go-w ", others + "/own": "chmod go-w ", own + "/link": "chmod go-w ", root + "/group": "chmod go-w ",
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(root+"/foreign", 61234, -1); err != nil {
			t.Fatal(err)
		}
		rows[root+"/foreign"] = "foreign belongs to the user 61234"
	}
	for dir, want := range rows {
		path := dir + "/s"
		listener, err := auth.ListenUnixForAll(path)
		switch {
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", path, err, want)
		case want == "" && err != nil:
			t.Error(err)
		}
		if err != nil {
			continue
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o666 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		_ = listener.Close()
	}
}

// TestListenUnixReplaced puts a link to a file in the place of sockets while they are
// made: the file keeps its mode.
func TestListenUnixReplaced(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022)) // keeps the socket from having its mode at once
	dir := t.TempDir()
	path, victim := dir+"/s", dir+"/victim"
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
				_ = os.Symlink(victim, dir+"/link")
				_ = os.Rename(dir+"/link", path)
			}
		}
	}()
	for range 300 {
		if listener, err := auth.ListenUnixForAll(path); err == nil {
			_ = listener.Close()
		}
		_ = os.Remove(path)
	}
	close(stop)
	<-stopped
	if info, err := os.Lstat(victim); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file behind the link: mode %v, %v", info.Mode(), err)
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
	listener, err := auth.ListenUnix(path)
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
		"missing/s":              "no such file or directory (os error 2)",
		"file/s":                 "not a directory (os error 20)",
		strings.Repeat("s", 200): "; choose a shorter one",
	} {
		listener, err := auth.ListenUnix(path(name))
		prefix := "listen on unix socket " + path(name) + ": "
		if err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.HasSuffix(err.Error(), want) || strings.Count(err.Error(), path(name)) != 1 {
			t.Errorf("%s: %v, %v", name, listener, err)
		}
	}
	if content, err := os.ReadFile(path("file")); err != nil || string(content) != "precious" {
		t.Errorf("the file in the way: %q, %v", content, err)
	}
}

// TestListenUnixRemovesOnlyItsOwn closes listeners whose path has something else meanwhile.
func TestListenUnixRemovesOnlyItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := auth.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := auth.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = first.Close()
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the socket of another server: %v", err)
	}
	_ = conn.Close()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file in its place: %q, %v", content, err)
	}
}
