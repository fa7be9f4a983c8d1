package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// Delegate is the extended attribute by which service managers mark a control
// group as delegated.
const Delegate = "trusted.delegate"

// Cgroup makes a control group below that of the test and returns a descriptor with
// which a program can be started in it. The group is marked as delegated. When the test
// ends, Cgroup kills the processes in the group and removes it. It skips the test on
// machines where it cannot make a group.
func Cgroup(t testing.TB) (fd int) {
	t.Helper()
	mounts, err := procfs.Mounts()
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	var base string
	for _, m := range mounts {
		if m.Type == "cgroup2" && m.Root == "/" {
			base = m.Point
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
		WaitFor(t, time.Minute, func() error { return removeCgroups(path) })
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
