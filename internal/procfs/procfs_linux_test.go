package procfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/testkit"
)

func TestStat(t *testing.T) {
	// The name of a process may look like the rest of the line.
	name := t.TempDir() + "/a) Z 1 (b"
	if err := os.Symlink("/bin/sleep", name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	pids, err := procfs.Pids()
	if err != nil || !slices.Contains(pids, pid) || !slices.IsSorted(pids) {
		t.Errorf("Pids: %v %v, want it to have %d", pids, err, pid)
	}
	s, err := procfs.ReadStat(pid)
	if err != nil || s.Ended() || s.Start == 0 {
		t.Errorf("Stat: %+v %v", s, err)
	}
	want := procfs.Stat{Pid: pid, Parent: os.Getpid(), Group: pid, Session: pid, State: s.State, Threads: 1, Start: s.Start}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("Stat (-want +got):\n%s", diff)
	}
	// A program that is being loaded does not have it yet.
	testkit.WaitFor(t, testkit.Patience, func() error {
		if diff := cmp.Diff([]string{name, "100"}, procfs.CommandLine(pid)); diff != "" {
			return fmt.Errorf("CommandLine (-want +got):\n%s", diff)
		}
		return nil
	})

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if s, err := procfs.ReadStat(pid); err != nil || !s.Ended() {
			return fmt.Errorf("killed, but %+v %v", s, err)
		}
		return nil
	})
	_ = cmd.Wait()
	if s, err := procfs.ReadStat(pid); !errors.Is(err, procfs.ErrGone) {
		t.Errorf("Stat of a process that is gone: %+v %v", s, err)
	}
	if line := procfs.CommandLine(pid); line != nil {
		t.Errorf("CommandLine of a process that is gone: %q", line)
	}
}

// TestMounts finds a mount whose path contains a space and a backslash.
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
