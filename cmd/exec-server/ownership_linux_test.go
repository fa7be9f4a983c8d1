package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
)

func newWord() string { return fmt.Sprintf("tree-%x", rand.Uint64()) }

// withAndWithoutSupervisor has the flags of servers that have a supervisor, and of those that have none.
var withAndWithoutSupervisor = map[string][]string{"with a supervisor": nil, "without a supervisor": {"--without=supervisor"}}

// eachMeans runs a test with control groups of its own, and without.
func eachMeans(t *testing.T, test func(t *testing.T, attr *syscall.SysProcAttr, flags ...string)) {
	t.Run("cgroup", func(t *testing.T) {
		test(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: testkit.Cgroup(t)})
	})
	t.Run("subreaper", func(t *testing.T) { test(t, nil, "--without=cgroups") })
}

// trees starts a tree that does everything to escape, and a daemon that a closed process
// has left.
func (c *wireClient) trees(word string) {
	c.t.Helper()
	c.start(spec("hostile", "hostile", word))
	c.start(spec("daemon", "daemon", word))
	c.outputOf("hostile")
	c.closed("daemon")
	if n := len(testkit.WithWord(c.t, word)); n < 9 {
		c.t.Fatalf("there are %d processes only", n)
	}
}

// TestNothingIsLeft checks that nothing is left, however the server ends and whatever its
// clients have started.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flags []string
		stdio bool
		end   func(p *ownedProgram, c *wireClient)
		want  syscall.WaitStatus // how the program ends; -1 if it does not
	}{
		{"connection ends on stdio", nil, true, (*ownedProgram).leave, 0},
		{"session expires", []string{"--detached-session-ttl=100ms"}, false, (*ownedProgram).leave, ^syscall.WaitStatus(0)},
		{"SIGTERM", nil, false, func(p *ownedProgram, _ *wireClient) { _ = p.command.Process.Signal(syscall.SIGTERM) }, 0},
		{"SIGINT on stdio", nil, true, func(p *ownedProgram, _ *wireClient) { _ = p.command.Process.Signal(syscall.SIGINT) }, 0},
		{"SIGTERM without supervisor", []string{"--without=supervisor"}, false, func(p *ownedProgram, _ *wireClient) { _ = p.command.Process.Signal(syscall.SIGTERM) }, 0},
		{"server killed", nil, false, func(p *ownedProgram, _ *wireClient) { _ = syscall.Kill(p.server(), syscall.SIGKILL) }, syscall.WaitStatus(syscall.SIGKILL)},
		{"server killed on stdio", nil, true, func(p *ownedProgram, _ *wireClient) { _ = syscall.Kill(p.server(), syscall.SIGKILL) }, syscall.WaitStatus(syscall.SIGKILL)},
		{"supervisor killed", nil, false, func(p *ownedProgram, _ *wireClient) { _ = p.command.Process.Kill() }, syscall.WaitStatus(syscall.SIGKILL)},
		{"supervisor killed on stdio", nil, true, func(p *ownedProgram, _ *wireClient) { _ = p.command.Process.Kill() }, syscall.WaitStatus(syscall.SIGKILL)},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
				flags = append(flags, test.flags...)
				var p *ownedProgram
				if test.stdio {
					p = startOwned(t, attr, false, append(flags, "--listen", "stdio")...)
				} else {
					p = startListening(t, attr, flags...)
				}
				c := p.connect()
				word := newWord()
				c.trees(word)
				server := p.command.Process.Pid
				if len(test.flags) == 0 {
					server = p.server()
				}

				before := time.Now()
				test.end(p, c)
				testkit.NoneWithWord(t, word)
				t.Logf("everything is gone after %v", time.Since(before))
				if test.want == ^syscall.WaitStatus(0) {
					return
				}
				if got := p.ending().Sys().(syscall.WaitStatus); got != test.want {
					t.Errorf("the program ended with %#x, want %#x", got, test.want)
				}
				t.Logf("exec-server has ended after %v", time.Since(before))
				testkit.Gone(t, server)
			})
		})
	}
}

// TestTerminate checks that terminate ends everything that a process has started, and
// nothing else.
func TestTerminate(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		p := startListening(t, attr, flags...)
		c := p.connect()
		kept := newWord()
		c.start(spec("daemon", "daemon", kept))
		c.closed("daemon")
		c.start(spec("running", "daemon", kept, "stay"))
		c.outputOf("running")
		word := newWord()
		c.start(spec("hostile", "hostile", word))
		c.outputOf("hostile")
		before := time.Now()
		c.call("process/terminate", object{"processId": "hostile"}, nil)
		c.closed("hostile")
		took := time.Since(before)
		testkit.NoneWithWord(t, word)
		t.Logf("closed after %v, gone after %v", took, time.Since(before))
		if e := c.exited("hostile"); e.ExitCode != 137 || e.Signal != "SIGKILL" || e.EndedBy != "client" {
			t.Errorf("exited with %+v", e)
		}
		c.call("process/terminate", object{"processId": "daemon"}, nil)
		if n := len(testkit.WithWord(t, kept)); n != 3 {
			t.Errorf("%d processes of the others are left, want 3", n)
		}
		server := p.server()
		testkit.WaitFor(t, testkit.Patience, func() error { // those that have just been killed, too, are waited for
			if zombies := zombiesOf(server); len(zombies) > 0 {
				return fmt.Errorf("zombies: %s", zombies)
			}
			return nil
		})
	})
}

// TestLimitsThatCannotBeEnforced checks that the server refuses limits of memory,
// processes and processor time that it cannot enforce, and that environment/info says so.
func TestLimitsThatCannotBeEnforced(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		c := startListening(t, attr, flags...).connect()
		owned := c.Info.ProcessOwnership
		if want := t.Name()[strings.LastIndex(t.Name(), "/")+1:]; owned == nil || owned.Means != want || !c.Info.Capabilities.ProcessLimits {
			t.Fatalf("initialize tells of %+v and %+v, want %s", owned, c.Info.Capabilities, want)
		}
		for limit, value := range map[string]any{"memoryBytes": 1 << 30, "pids": 100, "cpus": 0.5} {
			works := slices.Contains(owned.Limits, limit)
			start := spec(limit, "exit", "0")
			start[limit] = value
			c.processes.Of(limit)
			err := c.try("process/start", start, nil)
			switch {
			case works && err != nil:
				t.Errorf("%s: %s", limit, err.Message)
			case !works && (err == nil || err.Code != protocol.CodeInvalidParams || !strings.Contains(err.Message, limit)):
				t.Errorf("%s cannot be enforced, but the answer was %+v", limit, err)
			}
		}
	})
}

// TestExitCodes checks that the program ends with the exit code of the server, with a
// supervisor and without.
func TestExitCodes(t *testing.T) {
	for supervisor, flags := range withAndWithoutSupervisor {
		for _, test := range []struct {
			args   []string
			code   int
			stderr string
		}{
			{[]string{"--listen=ws://127.0.0.1:99999"}, 1, "Error: invalid websocket --listen URL"},
			{[]string{"--listen=nonsense"}, 1, "Error: unsupported --listen URL"},
			{[]string{"--without=everything"}, 2, "expected supervisor or cgroups"},
			{[]string{"--help"}, 0, ""},
		} {
			p := startOwned(t, nil, false, slices.Concat(flags, test.args)...)
			if got := p.ending().ExitCode(); got != test.code || !strings.Contains(p.stderr.all(), test.stderr) {
				t.Errorf("%s %s: exit code %d, stderr %q", supervisor, test.args, got, p.stderr.text())
			}
		}
	}
}

// TestEndsQuickly checks that a signal from the terminal or from a service manager
// reaches the server at once.
func TestEndsQuickly(t *testing.T) {
	for supervisor, flags := range withAndWithoutSupervisor {
		for _, stdio := range []bool{false, true} {
			var took []time.Duration
			for range 2 {
				var p *ownedProgram
				if stdio {
					p = startOwned(t, nil, false, append([]string{"--listen=stdio"}, flags...)...)
				} else {
					p = startListening(t, nil, flags...)
				}
				c := p.connect()
				c.start(spec("idle", "idle"))
				before := time.Now()
				_ = p.command.Process.Signal(syscall.SIGTERM)
				if code := p.ending().ExitCode(); code != 0 {
					t.Errorf("%s: exit code %d", supervisor, code)
				}
				took = append(took, time.Since(before))
			}
			t.Logf("%s, stdio=%v: ended after %v", supervisor, stdio, took)
		}
	}
}

// TestSystemReaping ends hundreds of orphans and of the server's own processes at the same
// time, with the server as PID 1 and otherwise.
func TestSystemReaping(t *testing.T) {
	namespace := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		namespace.Cloneflags |= syscall.CLONE_NEWUSER
		namespace.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		namespace.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	for _, test := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"PID 1", namespace},
		{"subreaper", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.attr != nil {
				t.Setenv(initVariable, "1")
				skipWithout(t, test.attr)
			}
			reaping(t, startListening(t, test.attr, "--without=cgroups"), test.attr != nil)
		})
	}
}

func reaping(t *testing.T, p *ownedProgram, isInit bool) {
	c := p.connect()
	orphans, own := 300, 100
	if quiet {
		orphans, own = 1500, 300
	}
	const workers = 8
	for i := range 5 {
		c.start(spec(fmt.Sprint("orphans", i), "orphans", fmt.Sprint(orphans/5)))
	}
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < own; i += workers {
				id, code := fmt.Sprint(i), rand.IntN(256)
				c.processes.Of(id)
				c.call("process/start", object{
					"processId": id, "argv": []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", code)}, "cwd": "/", "env": object{}, "tty": false,
				}, nil)
				if got := c.exited(id); got.ExitCode != code || got.EndedBy != "self" {
					t.Errorf("exited with %+v, want code %d", got, code)
				}
			}
		})
	}
	wg.Wait()
	for i := range 5 {
		c.closed(fmt.Sprint("orphans", i))
	}
	pids := []int{p.command.Process.Pid}
	pids = append(pids, testkit.Children(pids[0])...)
	testkit.WaitFor(t, testkit.Patience, func() error {
		for _, pid := range pids {
			if zombies := zombiesOf(pid); len(zombies) > 0 {
				return fmt.Errorf("%d zombies, such as %s", len(zombies), zombies[0])
			}
		}
		return nil
	})
	if !isInit {
		return
	}
	// Signals without a meaning for PID 1 do not end it.
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGALRM, syscall.SIGPIPE, syscall.SIGWINCH} {
		if err := p.command.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	c.call("environment/status", nil, nil)
	_ = p.command.Process.Signal(syscall.SIGTERM)
	if code := p.ending().ExitCode(); code != 0 {
		t.Errorf("exit code %d on SIGTERM", code)
	}
}

// initVariable makes the test program mount /proc, as in a container, before it becomes
// exec-server as PID 1.
const initVariable = "EXEC_SERVER_TEST_INIT"

func init() {
	if os.Getenv(initVariable) == "" || os.Getpid() != 1 {
		return
	}
	_ = os.Unsetenv(initVariable)
	err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err == nil {
		err = syscall.Mount("proc", "/proc", "proc", 0, "")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mount /proc:", err)
		os.Exit(119)
	}
}

// skipWithout skips a test if the kernel refuses it a namespace.
func skipWithout(t *testing.T, attr *syscall.SysProcAttr) {
	t.Helper()
	testkit.System(t)
	p := startOwned(t, attr, false, "--version")
	if state := p.ending(); state.ExitCode() == 119 {
		t.Skipf("no PID namespace here: %s", p.stderr.all())
	}
}

// zombiesOf lists the ended children of a process that it has not waited for.
func zombiesOf(parent int) (zombies []string) {
	for _, pid := range testkit.Children(parent) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && bytes.Contains(stat, []byte(") Z ")) {
			zombies = append(zombies, string(stat))
		}
	}
	return zombies
}
