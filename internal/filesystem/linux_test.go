//go:build linux

package filesystem_test

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

func isolateMounts() { testkit.IsolateMounts() }

func mkfifo(t *testing.T, path string) string {
	t.Helper()
	ok(t, "mkfifo", unix.Mkfifo(path, 0o666))
	return path
}

func socket(t *testing.T, path string) string {
	t.Helper()
	l, err := net.Listen("unix", path)
	ok(t, "listen", err)
	t.Cleanup(func() { l.Close() })
	return path
}

// putEachKind makes a file with content, a directory with another one, a FIFO, a socket, and links:
// to the file, to the directory, to nothing and to itself.
func putEachKind(t *testing.T, dir, content string) {
	t.Helper()
	put(t, dir+"/f", content)
	mkdir(t, dir+"/d/sub")
	mkfifo(t, dir+"/fifo")
	socket(t, dir+"/sock")
	symlink(t, "f", dir+"/lf")
	symlink(t, "d", dir+"/ld")
	symlink(t, "nope", dir+"/dang")
	symlink(t, "loop", dir+"/loop")
}

// mountTmpfs mounts a file system for one test.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := mkdir(t, filepath.Join(t.TempDir(), "mnt"))
	mount(t, "tmpfs", dir, "tmpfs", 0, options)
	return dir
}

func mount(t *testing.T, source, target, kind string, flags uintptr, options string) {
	t.Helper()
	testkit.System(t, testkit.Root)
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		t.Skip("may not mount here: ", err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// asNobody runs f with the file permissions of a user that owns nothing. They belong to
// the thread, which ends with f.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		const nobody = 65534
		if _, err := unix.SetfsgidRetGid(nobody); err != nil {
			t.Error(err)
			return
		}
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// sharedDir returns a temporary directory that everybody may search, unlike those of
// package testing.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "filesystem")
	ok(t, "mkdir", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ok(t, "chmod", os.Chmod(dir, 0o755))
	return dir
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	ok(t, "stat", unix.Stat(path, &st))
	return st
}
