package procfs_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/testkit"
)

// TestMounts finds a mount whose place has a space and a backslash in its name.
func TestMounts(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	dir := filepath.Join(t.TempDir(), `a place\here`)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	mounts, err := procfs.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(mounts, func(m procfs.Mount) bool {
		return m.Point == dir && m.Root == "/" && m.Type == "tmpfs" && m.Options != ""
	}) {
		t.Errorf("%s is not among %+v", dir, mounts)
	}
}
