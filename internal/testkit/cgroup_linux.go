package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Delegate is the extended attribute by which service managers mark a control
// group that they have handed over.
const Delegate = "trusted.delegate"

// Cgroup makes a control group below that of the test, which is removed in the
// end with all that is in it, and returns a descriptor to start a program in it.
// It is marked as delegated to whoever runs in it. Cgroup skips the test where
// that is impossible.
func Cgroup(t testing.TB) (fd int) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	var base string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && fields[3] == "/" {
			base = fields[4]
		}
	}
	if base == "" {
		t.Skip("no hierarchy of control groups (version 2) is mounted here")
	}
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			base = filepath.Join(base, path)
		}
	}
	path, err := os.MkdirTemp(base, "exec-server-test-")
	if err != nil {
		t.Skipf("no control group can be made here: %v", err)
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fsetxattr(fd, Delegate, []byte("1"), 0); err != nil {
		t.Logf("%s is not marked as delegated: %v", path, err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
		_ = unix.Close(fd)
		WaitFor(t, 10*time.Second, func() error { return removeCgroups(path) })
	})
	return fd
}

func removeCgroups(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroups(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
