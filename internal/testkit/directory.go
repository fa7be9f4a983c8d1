package testkit

import (
	"os"
	"testing"
)

// SocketDir makes a directory with a short path, because the paths of sockets must be
// short. The directory is removed when the test ends.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "es")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// MemoryDir makes a directory for tens of thousands of files, in memory if the system
// has /dev/shm. The directory is removed when the test ends.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "exec-server-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
