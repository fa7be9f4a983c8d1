package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// bomb is a program that starts as many processes as it can.
func bomb() {
	said := false
	for {
		_, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{})
		if err == nil {
			continue
		}
		if !said {
			fmt.Println("full:", err)
			said = true
		}
		time.Sleep(time.Millisecond) // then it tries again
	}
}

// becomeLimited executes a program as a user, in a control group and with a limit on
// processes. "" means no group, and 0 no limit.
func becomeLimited(group, limit, id string, argv []string) error {
	if group != "" {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	if most, _ := strconv.ParseUint(limit, 10, 64); most > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	uid, _ := strconv.Atoi(id)
	if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// pidsGroup makes a control group that allows at most the given number of processes.
func pidsGroup(t *testing.T, most int) string {
	t.Helper()
	for _, base := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(base, "cgroup.procs")); err != nil {
			continue
		}
		group, err := os.MkdirTemp(base, "exec-server-test-")
		if err != nil {
			continue
		}
		_ = os.Chmod(group, 0o755) // as that of a container
		t.Cleanup(func() {
			eventually(t, "the group is in use", func() bool {
				text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
				for _, pid := range strings.Fields(string(text)) {
					if n, err := strconv.Atoi(pid); err == nil {
						_ = syscall.Kill(n, syscall.SIGKILL)
					}
				}
				return os.Remove(group) == nil
			})
		})
		if os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(most)), 0) == nil {
			return group
		}
	}
	t.Skip("no control group that counts processes can be made here")
	return ""
}

// TestBombs runs commands that start as many processes as a low limit allows. The server
// still serves existing sessions (row 51).
func TestBombs(t *testing.T) {
	testkit.System(t, testkit.Root)
	for i, test := range []struct {
		name         string
		uid          int
		limit, group int
	}{
		{"processes of a user", 61300, 120, 0},
		{"ordinary user in a group", 61301, 0, 120},
		{"both", 61302, 200, 120},
		{"root in a group", 0, 0, 120},
	} {
		for _, means := range []string{"userNamespace", "bubblewrap"} {
			t.Run(test.name+"/"+means, func(t *testing.T) {
				u := user{"ordinary", test.uid}
				if test.uid != 0 {
					u.uid += 10 * i
				}
				m := prepareMachine(t, u, means)
				if means == "bubblewrap" && m.bubblewrap == "" {
					testkit.Need(t, "bwrap")
				}
				group := ""
				if test.group > 0 {
					group = pidsGroup(t, test.group)
				}
				m.inside = &syscall.SysProcAttr{}
				m.through = []string{"limited", group, strconv.Itoa(test.limit), strconv.Itoa(u.uid)}
				m.start()
				if m.conn.Info.Sandbox.Means != means {
					t.Skip(m.conn.Info.Sandbox.Reason)
				}
				m.write(filepath.Join(m.ws, "large"), strings.Repeat("x", 1<<16))
				limit, _, _ := strings.Cut(m.written(m.run(command{argv: []string{"/bin/bash", "-c", "ulimit -u"}, sandbox: m.workspaceWrite()})), "\n")
				if n, err := strconv.Atoi(limit); err == nil && n >= 100 {
					t.Errorf("a command may have %d processes", n)
				}
				for range 3 {
					m.survivesBomb()
				}
			})
		}
	}
}

// survivesBomb checks that a session works while a command uses up all processes.
func (m *machine) survivesBomb() {
	m.t.Helper()
	cat, catID, err := m.begin(command{argv: []string{"/bin/cat"}})
	m.must(err)
	p, id, err := m.begin(command{argv: []string{m.program, "bomb"}, sandbox: m.workspaceWrite()})
	m.must(err)
	m.awaitOutput(p, "full")
	write := func(text string) {
		m.must(m.call("process/write", object{"processId": catID, "chunk": []byte(text), "writeId": text}, nil))
		m.awaitOutput(cat, text)
	}
	write("first\n")
	var all sync.WaitGroup
	for range 16 { // each of which takes a thread
		all.Go(func() {
			for range 4 {
				if err := m.call("fs/readFile", object{"path": uri(filepath.Join(m.ws, "large"))}, nil); err != nil {
					m.t.Error(err)
				}
			}
		})
	}
	all.Wait()
	write("second\n")
	m.must(m.call("process/terminate", object{"processId": id}, nil))
	m.await(p)
	m.must(m.call("process/terminate", object{"processId": catID}, nil))
	m.await(cat)
	if got := m.shell("echo after"); got != "after\n" {
		m.t.Errorf("after it: %q", got)
	}
}
