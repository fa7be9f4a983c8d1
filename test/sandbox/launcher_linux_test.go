package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestSignalsForTheLauncher has commands send their launcher, which is process 1, the signals
// with which the Go runtime ends a program. The server still learns how the command ended.
func TestSignalsForTheLauncher(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		for _, number := range []syscall.Signal{
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
		} {
			// The launcher forwards the second signal, so it has survived the first.
			script := fmt.Sprintf("trap 'echo alive; exit 5' USR1; kill -%d 1; kill -USR1 1; while :; do :; done", number)
			p := m.run(command{argv: []string{"/bin/sh", "-c", script}, sandbox: m.workspaceWrite()})
			if got := m.written(p); got != "alive\n" || p.exit.ExitCode != 5 {
				t.Errorf("after %v: %q, exit code %d", number, got, p.exit.ExitCode)
			}
		}
	})
}

// TestNoSignalEndsTheLauncher checks that a launcher ignores or handles every signal that would end
// it. The kernel drops other signals for process 1 of a namespace, but they may be pending, which a
// command must not have to do with. The command itself ignores none.
func TestNoSignalEndsTheLauncher(t *testing.T) {
	const harmless = 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1) | // for process 1 of a namespace
		1<<(unix.SIGCHLD-1) | 1<<(unix.SIGCONT-1) | 1<<(unix.SIGTSTP-1) | 1<<(unix.SIGTTIN-1) | 1<<(unix.SIGTTOU-1)
	everywhere(t, func(t *testing.T, m *machine) {
		if m.means == "bubblewrap" {
			t.Skip("bubblewrap is process 1, and has one thread")
		}
		p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "grep SigIgn: /proc/self/status; read end"}, sandbox: m.workspaceWrite()})
		m.must(err)
		m.awaitOutput(p, "\n")
		if got := strings.Fields(m.written(p)); len(got) != 2 || strings.Trim(got[1], "0") != "" {
			t.Errorf("the command ignores signals: %v", got)
		}
		for _, launcher := range testkit.Children(m.pid) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", launcher))
			m.must(err)
			var covered uint64 = harmless
			for line := range strings.Lines(string(status)) {
				if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
					covered |= parseMask(t, mask)
				}
				if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
					covered |= parseMask(t, mask)
				}
			}
			if covered != 1<<64-1 {
				t.Errorf("signals outside the mask %#x would end the launcher", covered)
			}
		}
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(p)
	})
}

// parseMask parses a set of signals.
func parseMask(t *testing.T, text string) uint64 {
	mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask
}

// queueSignals queues as many signals as it can, and keeps them until its input ends.
func queueSignals() {
	runtime.LockOSThread()
	number := 40 // a real-time signal, each of which waits on its own
	var blocked unix.Sigset_t
	blocked.Val[0] = 1 << (number - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, nil); err != nil {
		fmt.Println(err)
	}
	for {
		if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), syscall.Signal(number)); err != nil {
			fmt.Println("full:", err)
			break
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// becomeSignaled executes a program as a user with a limit on signals that wait.
func becomeSignaled(limit, id string, argv []string) error {
	runtime.LockOSThread()
	most, _ := strconv.ParseUint(limit, 10, 64)
	uid, _ := strconv.Atoi(id)
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_SIGPENDING, &unix.Rlimit{Cur: most, Max: most}),
		unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// TestSignalsThatWait runs a command that queues as many signals as it can. The kernel counts
// them for each user; the user's other commands start all the same.
func TestSignalsThatWait(t *testing.T) {
	testkit.System(t, testkit.Root)
	for i, means := range []string{"userNamespace", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := prepareMachine(t, user{"ordinary", 61350 + i}, means) // a user of its own, whose signals the kernel counts
			if means == "bubblewrap" && m.bubblewrap == "" {
				testkit.Need(t, "bwrap")
			}
			m.inside = &syscall.SysProcAttr{}
			m.through = []string{"signaled", "1000", strconv.Itoa(m.user.uid)}
			m.start()
			if m.conn.Info.Sandbox.Means != means {
				t.Skip(m.conn.Info.Sandbox.Reason)
			}
			p, id, err := m.begin(command{argv: []string{m.program, "queue"}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "full")
			m.says(m.workspaceWrite(), [2]string{"echo started", "started\n"})
			m.must(m.call("process/terminate", object{"processId": id}, nil))
			m.await(p)
		})
	}
}

// TestKilledLauncher kills launchers before they start their command. The client learns how each
// ended.
func TestKilledLauncher(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		if m.means != "namespaces" {
			t.Skip("the server does more between the start of the launcher and its end, and fails at that")
		}
		starting, killed := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(killed)
			for {
				select {
				case <-starting:
					return
				default:
				}
				for _, pid := range testkit.Children(m.pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}()
		_, _, err := m.begin(command{argv: []string{"/bin/true"}, sandbox: m.workspaceWrite()})
		close(starting)
		<-killed
		if err == nil || !strings.Contains(err.Error(), "SIGKILL") {
			t.Errorf("a command whose launcher was killed: %v, want an error that names SIGKILL", err)
		}
	})
}
