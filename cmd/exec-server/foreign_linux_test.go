package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestForeignProc runs the server with the /proc of another process namespace. It says that
// it cannot see descendants, and still ends the process group.
func TestForeignProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may have a process namespace without a user namespace")
	}
	for _, flags := range withAndWithoutSupervisor {
		p := startListening(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, append(flags, "--without=cgroups")...)
		c := p.connect()
		const want = "/proc belongs to another process namespace"
		owned := c.Info.ProcessOwnership
		if owned == nil || owned.Means != "processGroup" || !strings.Contains(owned.Reason, want) {
			t.Errorf("environment/info has %+v", owned)
		}
		if log := p.stderr.text(); !strings.Contains(log, want) { // written before the server listens
			t.Errorf("the log does not say it: %q", log)
		}
		word := newWord()
		c.start(spec("p", "idle", word))
		c.call("process/terminate", object{"processId": "p"}, nil)
		if exit := c.exited("p"); exit.ExitCode != 137 {
			t.Errorf("%+v", exit)
		}
		c.closed("p")
		testkit.NoneWithWord(t, word)
	}
}
