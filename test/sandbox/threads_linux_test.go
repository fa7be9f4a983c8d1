package sandbox_test

import (
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLauncherThreads looks at the threads of a launcher while its command runs: none
// has more rights than the command.
func TestLauncherThreads(t *testing.T) {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0); errno == syscall.ENOTSUP {
		t.Skip("this build has cgo, with which only the first thread gives its rights up")
	}
	everywhere(t, func(t *testing.T, m *machine) {
		for _, network := range []string{"restricted", "enabled"} {
			p := m.run(command{argv: []string{"/bin/sh", "-c", "cat /proc/1/task/*/status"}, sandbox: m.policy(network, special("root", "read"))})
			status := m.written(p)
			threads := strings.Count(status, "\nPid:")
			for _, want := range []string{"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
				if got := strings.Count(status, want); got != threads || threads < 2 {
					t.Errorf("with the network %s, %d of %d threads have %q:\n%s", network, got, threads, want, status)
				}
			}
		}
	})
}
