package launcher_test

import (
	"syscall"
	"testing"

	"execserver/internal/sandbox/launcher"
	"execserver/internal/testkit"
)

// TestReapedCommandIsNotSignaled: the kernel gives the number of a command that the launcher
// has reaped to a stranger. Other tests do not run meanwhile, because a launcher reaps all
// children.
func TestReapedCommandIsNotSignaled(t *testing.T) {
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 3"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		t.Fatal(err)
	}
	wait, signal := launcher.Command(pid)
	if status := wait(); status.ExitStatus() != 3 {
		t.Errorf("the command has ended with %v, want exit code 3", status)
	}
	stranger := testkit.Stranger(t, pid, false)
	signal(syscall.SIGKILL)
	if !testkit.Unharmed(t, stranger) {
		t.Error("a signal for a command that was reaped has killed a stranger")
	}
}
