package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

func newWord() string { return fmt.Sprintf("tree-%x", rand.Uint64()) }

// none waits until no process with the word in its command line is left.
func none(t *testing.T, word string) {
	t.Helper()
	testkit.WaitFor(t, patience, func() error {
		if alive := testkit.WithWord(t, word); len(alive) > 0 {
			return fmt.Errorf("alive: %s", alive)
		}
		return nil
	})
}

// eachMeans runs a test with control groups, of its own, and without.
func eachMeans(t *testing.T, test func(t *testing.T, attr *syscall.SysProcAttr, flags ...string)) {
	t.Run("cgroup", func(t *testing.T) {
		test(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: testkit.Cgroup(t)}, "--cgroups=on")
	})
	t.Run("subreaper", func(t *testing.T) { test(t, nil, "--cgroups=off") })
}

// trees starts a tree that does everything to get away, and a daemon that a
// closed process has left.
func (c *follower) trees(word string) {
	c.t.Helper()
	c.start(spec("hostile", "hostile", word))
	c.start(spec("daemon", "daemon", word))
	c.outputOf("hostile")
	c.closed("daemon")
	if n := len(testkit.WithWord(c.t, word)); n < 9 {
		c.t.Fatalf("there are %d processes only", n)
	}
}

// However the server ends, and whatever has been started, nothing is left.
func TestNothingIsLeft(t *testing.T) {
	for _, test := range []struct {
		name  string
		flags []string
		stdio bool
		end   func(p *ownedProgram, c *follower)
		want  syscall.WaitStatus // how the program ends; -1: it does not
	}{
		{"connection ends on stdio", nil, true, func(_ *ownedProgram, c *follower) { _ = c.w.Close() }, 0},
		{"session expires", []string{"--detached-session-ttl=100ms"}, false, func(_ *ownedProgram, c *follower) { _ = c.w.Close() }, ^syscall.WaitStatus(0)},
		{"SIGTERM", nil, false, func(p *ownedProgram, _ *follower) { _ = p.command.Process.Signal(syscall.SIGTERM) }, 0},
		{"SIGINT on stdio", nil, true, func(p *ownedProgram, _ *follower) { _ = p.command.Process.Signal(syscall.SIGINT) }, 0},
		{"SIGTERM without keeper", []string{"--keeper=off"}, false, func(p *ownedProgram, _ *follower) { _ = p.command.Process.Signal(syscall.SIGTERM) }, 0},
		{"server killed", nil, false, func(p *ownedProgram, _ *follower) { _ = syscall.Kill(p.server(), syscall.SIGKILL) }, syscall.WaitStatus(syscall.SIGKILL)},
		{"server killed on stdio", nil, true, func(p *ownedProgram, _ *follower) { _ = syscall.Kill(p.server(), syscall.SIGKILL) }, syscall.WaitStatus(syscall.SIGKILL)},
		{"keeper killed", nil, false, func(p *ownedProgram, _ *follower) { _ = p.command.Process.Kill() }, syscall.WaitStatus(syscall.SIGKILL)},
		{"keeper killed on stdio", nil, true, func(p *ownedProgram, _ *follower) { _ = p.command.Process.Kill() }, syscall.WaitStatus(syscall.SIGKILL)},
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
				none(t, word)
				t.Logf("everything is gone after %v", time.Since(before))
				if test.want == ^syscall.WaitStatus(0) {
					return
				}
				if got := p.ending().Sys().(syscall.WaitStatus); got != test.want {
					t.Errorf("the program ended with %#x, want %#x", got, test.want)
				}
				t.Logf("exec-server has ended after %v", time.Since(before))
				testkit.WaitFor(t, patience, func() error {
					if testkit.Alive(server) {
						return fmt.Errorf("the server, %d, is alive", server)
					}
					return nil
				})
			})
		})
	}
}

// A client's terminate ends what a process has started, and nothing else.
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
		c.call("process/terminate", params{"processId": "hostile"}, nil)
		c.closed("hostile")
		took := time.Since(before)
		none(t, word)
		t.Logf("closed after %v, gone after %v", took, time.Since(before))
		if e := c.exited("hostile").Params; e.ExitCode != 137 || e.Signal != "SIGKILL" || e.EndedBy != "client" {
			t.Errorf("exited with %+v", e)
		}
		c.call("process/terminate", params{"processId": "daemon"}, nil)
		if n := len(testkit.WithWord(t, kept)); n != 3 {
			t.Errorf("%d processes of the others are left, want 3", n)
		}
		if zombies := zombiesOf(p.server()); len(zombies) > 0 {
			t.Errorf("zombies: %s", zombies)
		}
	})
}

// What a process leaves that was started to keep it outlives the session, the
// server and the keeper; unless the server does not allow it.
func TestKeepDescendants(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		for name, end := range map[string]func(*ownedProgram){
			"SIGTERM": func(p *ownedProgram) { _ = p.command.Process.Signal(syscall.SIGTERM) },
			"SIGKILL": func(p *ownedProgram) { _ = syscall.Kill(p.server(), syscall.SIGKILL) },
		} {
			p := startListening(t, attr, append(flags, "--allow-keep-descendants", "--detached-session-ttl=100ms")...)
			c := p.connect()
			start := spec("daemon", "daemon", newWord())
			start["keepDescendants"] = true
			c.start(start)
			c.closed("daemon")
			kept := c.pidOf("daemon")
			word := newWord()
			c.start(spec("other", "daemon", word))
			c.closed("other")
			_ = c.w.Close()
			none(t, word) // the session has expired
			end(p)
			p.ending()
			if !testkit.Alive(kept) {
				t.Errorf("%s: the daemon is gone with the server", name)
			}
			_ = syscall.Kill(kept, syscall.SIGKILL)
			testkit.WaitFor(t, patience, func() error {
				if testkit.Alive(kept) {
					return fmt.Errorf("%d is alive", kept)
				}
				return nil
			})
		}

		p := startListening(t, attr, flags...)
		start := spec("p", "exit", "0")
		start["keepDescendants"] = true
		if m := p.connect().try("process/start", start); m.Error == nil || m.Error.Code != -32602 || !strings.Contains(m.Error.Message, "--allow-keep-descendants") {
			t.Errorf("start was answered %s %+v", m.Result, m.Error)
		}
	})
}

// What bounds memory, processes and processor time is refused where it cannot be
// enforced, and environment/info tells.
func TestLimitsThatCannotBeEnforced(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		c := startListening(t, attr, flags...).connect()
		var info struct {
			ProcessOwnership struct {
				Means  string
				Limits []string
			}
			Capabilities map[string]bool
		}
		if err := json.Unmarshal(c.info, &info); err != nil {
			t.Fatal(err)
		}
		if want := t.Name()[strings.LastIndex(t.Name(), "/")+1:]; info.ProcessOwnership.Means != want || !info.Capabilities["processLimits"] {
			t.Errorf("environment/info tells %s", c.info)
		}
		for limit, value := range map[string]any{"memoryBytes": 1 << 30, "pids": 100, "cpus": 0.5} {
			works := strings.Contains(strings.Join(info.ProcessOwnership.Limits, " "), limit)
			start := spec(limit, "exit", "0")
			start[limit] = value
			c.expect(limit)
			m := c.try("process/start", start)
			switch {
			case works && m.Error != nil:
				t.Errorf("%s: %s", limit, m.Error.Message)
			case !works && (m.Error == nil || m.Error.Code != -32602 || !strings.Contains(m.Error.Message, limit)):
				t.Errorf("%s cannot be enforced, but the answer was %s %+v", limit, m.Result, m.Error)
			}
		}
	})
}

// The exit code of the server is that of the program, with a keeper and without.
func TestExitCodes(t *testing.T) {
	for _, keeper := range []string{"--keeper=on", "--keeper=off"} {
		for _, test := range []struct {
			args   []string
			code   int
			stderr string
		}{
			{[]string{"--listen=ws://127.0.0.1:99999"}, 1, "Error: invalid websocket --listen URL"},
			{[]string{"--listen=nonsense"}, 1, "Error: unsupported --listen URL"},
			{[]string{"--keeper=perhaps"}, 2, "expected auto, on or off"},
			{[]string{"--help"}, 0, ""},
		} {
			p := startOwned(t, nil, false, append([]string{keeper}, test.args...)...)
			if got := p.ending().ExitCode(); got != test.code || !strings.Contains(p.stderr.all(), test.stderr) {
				t.Errorf("%s %s: exit code %d, stderr %q", keeper, test.args, got, p.stderr.text())
			}
		}
	}
}

// A signal of the terminal or of a service manager reaches the server at once.
func TestEndsQuickly(t *testing.T) {
	for _, keeper := range []string{"--keeper=on", "--keeper=off"} {
		for _, stdio := range []bool{false, true} {
			var took []time.Duration
			for range 5 {
				var p *ownedProgram
				if stdio {
					p = startOwned(t, nil, false, keeper, "--listen=stdio")
				} else {
					p = startListening(t, nil, keeper)
				}
				c := p.connect()
				c.start(spec("idle", "idle"))
				before := time.Now()
				_ = p.command.Process.Signal(syscall.SIGTERM)
				if code := p.ending().ExitCode(); code != 0 {
					t.Errorf("%s: exit code %d", keeper, code)
				}
				took = append(took, time.Since(before))
			}
			t.Logf("%s, stdio=%v: ended after %v", keeper, stdio, took)
		}
	}
}

// Thousands of orphans and of own processes end at the same time when the server
// is PID 1, and when it is not.
func TestReaping(t *testing.T) {
	namespace := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		namespace.Cloneflags |= syscall.CLONE_NEWUSER
		namespace.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		namespace.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	for _, test := range []struct {
		name  string
		attr  *syscall.SysProcAttr
		flags []string
	}{
		{"PID 1", namespace, nil},
		{"PID 1 with a keeper", namespace, []string{"--keeper=on"}},
		{"subreaper", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.attr != nil {
				t.Setenv(initVariable, "1")
				skipWithout(t, test.attr)
			}
			reaping(t, startListening(t, test.attr, append(test.flags, "--cgroups=off")...), test.attr != nil)
		})
	}
}

func reaping(t *testing.T, p *ownedProgram, isInit bool) {
	c := p.connect()
	orphans := 5000
	if testkit.RaceEnabled {
		orphans = 500 // to fork takes long with that much memory
	}
	const own, workers = 1000, 8
	for i := range 5 {
		c.start(spec(fmt.Sprint("orphans", i), "orphans", fmt.Sprint(orphans/5)))
	}
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < own; i += workers {
				id, code := fmt.Sprint(i), rand.IntN(256)
				c.expect(id)
				c.call("process/start", params{
					"processId": id, "argv": []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", code)}, "cwd": "/", "env": params{}, "tty": false,
				}, nil)
				if got := c.exited(id).Params; got.ExitCode != code || got.EndedBy != "self" {
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
	pids = append(pids, childrenOf(pids[0])...)
	testkit.WaitFor(t, patience, func() error {
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
	// An init is not ended by signals that mean nothing to it.
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

// initVariable makes the test program mount /proc before it is exec-server, as
// PID 1 of a container finds it.
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

// skipWithout skips a test where the kernel refuses it a namespace.
func skipWithout(t *testing.T, attr *syscall.SysProcAttr) {
	t.Helper()
	p := startOwned(t, attr, false, "--version")
	if state := p.ending(); state.ExitCode() == 119 {
		t.Skipf("no PID namespace here: %s", p.stderr.all())
	}
}

// zombiesOf lists the ended children of a process that it has not waited for.
func zombiesOf(parent int) (zombies []string) {
	for _, pid := range childrenOf(parent) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && bytes.Contains(stat, []byte(") Z ")) {
			zombies = append(zombies, string(stat))
		}
	}
	return zombies
}
