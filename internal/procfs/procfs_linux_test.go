package procfs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

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

func BenchmarkReadStat(b *testing.B) {
	for b.Loop() {
		if _, err := procfs.ReadStat(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
