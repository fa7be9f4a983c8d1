package sandbox_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// alive reports whether a process with text in its command line is running.
func alive(t *testing.T, text string) bool {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		if line, err := os.ReadFile(name); err == nil && strings.Contains(string(line), text) {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestLife checks how confined processes end (rows 33, 34, 45, 46 and 48).
func TestLife(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		// A number that only this test's processes have in their command line.
		mark := strings.TrimLeft(m.base[strings.LastIndex(m.base, "-")+1:], "0")
		sleep := fmt.Sprintf("sleep 3600.%s", mark)
		t.Run("signals", func(t *testing.T) {
			for script, want := range map[string]struct {
				code   int
				signal string
			}{
				"exit 3": {3, ""}, "kill -TERM $$": {143, "SIGTERM"}, "kill -KILL $$": {137, "SIGKILL"}, "kill -SYS $$": {159, "SIGSYS"},
			} {
				p := m.run(command{argv: []string{"/bin/sh", "-c", script}, sandbox: m.workspaceWrite()})
				if p.exit.ExitCode != want.code || p.exit.Signal != want.signal || p.exit.SandboxDenied != (want.code == 159) {
					t.Errorf("%s: %+v", script, p.exit)
				}
			}
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.01; done"}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "ready")
			m.must(m.call("process/signal", object{"processId": id, "signal": "interrupt"}, nil))
			m.await(p)
			if p.exit.ExitCode != 4 {
				t.Errorf("%+v, %q", p.exit, m.written(p))
			}
		})
		t.Run("every signal", func(t *testing.T) {
			// The job gets the signals, too, because it is in the program's group.
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "for s in INT CONT WINCH; do trap \"echo shell got $s\" $s; done; " +
				"(trap 'echo job got WINCH; exit' WINCH; echo ready; while :; do sleep 0.01; done) & while :; do sleep 0.01; done"}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "ready")
			for _, name := range []string{"INT", "CONT", "WINCH"} {
				m.must(m.call("process/signal", object{"processId": id, "signal": name}, nil))
				m.awaitOutput(p, "shell got "+name)
			}
			m.awaitOutput(p, "job got WINCH")
			m.must(m.call("process/signal", object{"processId": id, "signal": "KILL"}, nil))
			m.await(p)
			if p.exit.ExitCode != 137 || p.exit.Signal != "SIGKILL" {
				t.Errorf("%+v", p.exit)
			}
		})
		t.Run("denials", func(t *testing.T) {
			for script, want := range map[string]bool{
				"echo Read-ONLY file system; exit 1": true, "echo read-only file system": false, "exit 127": false, "touch /x": true,
			} {
				p := m.run(command{argv: []string{"/bin/sh", "-c", "LC_ALL=C; export LC_ALL; " + script}, sandbox: m.workspaceWrite()})
				if p.exit.SandboxDenied != want {
					t.Errorf("%s: %+v", script, p.exit)
				}
			}
			p := m.run(command{argv: []string{"/bin/sh", "-c", "echo permission denied; exit 1"}})
			if p.exit.SandboxDenied || p.sandboxType != "none" {
				t.Errorf("without a sandbox: %+v, %s", p.exit, p.sandboxType)
			}
		})
		t.Run("daemons", func(t *testing.T) { // row 34
			m.shell("(setsid " + sleep + " >/dev/null 2>&1 &) ; exit 0")
			eventually(t, "a daemon has survived its command", func() bool { return !alive(t, sleep[6:]) })
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "(setsid " + sleep + " &); echo ready; " + sleep}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "ready")
			m.must(m.call("process/terminate", object{"processId": id}, nil))
			m.await(p)
			if p.exit.ExitCode != 137 {
				t.Errorf("%+v", p.exit)
			}
			eventually(t, "a daemon has survived terminate", func() bool { return !alive(t, sleep[6:]) })
		})
		t.Run("environment", func(t *testing.T) { // row 33
			p := m.run(command{
				argv: []string{"/bin/sh", "-c", "echo $GODEBUG $LD_PRELOAD"}, sandbox: m.workspaceWrite(),
				env: map[string]string{"LD_PRELOAD": m.outside + "/none.so", "GODEBUG": "inittrace=1", "BASH_ENV": m.outside + "/x"},
			})
			if got := m.written(p); !strings.Contains(got, "inittrace=1 "+m.outside) || strings.Contains(got, "init internal") {
				t.Errorf("%q", got)
			}
			// Nobody between the server and the command has any environment.
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read x"}, sandbox: m.workspaceWrite(), env: map[string]string{"LD_PRELOAD": m.outside + "/none.so"}})
			m.must(err)
			m.awaitOutput(p, "ready")
			launchers, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.cmd.Process.Pid))
			m.must(err)
			seen := 0
			for _, list := range launchers {
				pids, _ := os.ReadFile(list) // the thread may have ended
				for _, pid := range strings.Fields(string(pids)) {
					text, err := os.ReadFile("/proc/" + pid + "/environ")
					if seen++; err == nil && len(text) > 0 {
						t.Errorf("the launcher has the environment %q", text)
					}
				}
			}
			if seen == 0 {
				t.Error("there is no launcher")
			}
			m.must(m.call("process/terminate", object{"processId": id}, nil))
			m.await(p)
		})
		t.Run("two commands", func(t *testing.T) { // row 45
			first, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read x"}, sandbox: m.workspaceWrite(at(m.base, "write"))})
			m.must(err)
			second, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; while test -z \"$(cat go 2>/dev/null)\"; do sleep 0.01; done; mkdir .codex 2>&1; mkdir .codex/x 2>&1"}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(first, "ready")
			m.awaitOutput(second, "ready")
			m.must(m.call("process/write", object{"processId": id, "chunk": "Cg==", "writeId": "1"}, nil))
			m.await(first)
			m.write(filepath.Join(m.ws, "go"), "go")
			m.await(second)
			if got := m.written(second); !strings.Contains(got, "File exists") || !strings.Contains(got, "Read-only") {
				t.Errorf("after the other has ended: %q", got)
			}
			m.clean(m.ws, m.base)
		})
		t.Run("a user's own", func(t *testing.T) { // row 46
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read x"}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "ready")
			own := filepath.Join(m.ws, ".codex")
			m.must(os.Chmod(own, 0o755))
			m.write(filepath.Join(own, "config"), "mine")
			m.must(m.call("process/write", object{"processId": id, "chunk": "Cg==", "writeId": "1"}, nil))
			m.await(p)
			if text, err := os.ReadFile(filepath.Join(own, "config")); string(text) != "mine" {
				t.Error(err)
			}
			m.must(os.RemoveAll(own))
		})
		t.Run("terminal", func(t *testing.T) { // row 48
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "trap 'echo interrupted; stty size; exit 5' INT; tty; : >/dev/tty && echo ready; while :; do sleep 0.01; done"}, sandbox: m.workspaceWrite(), tty: true})
			m.must(err)
			m.awaitOutput(p, "ready")
			m.must(m.call("process/resize", object{"processId": id, "size": object{"rows": 33, "cols": 44}}, nil))
			m.must(m.call("process/write", object{"processId": id, "chunk": "Aw==", "writeId": "1"}, nil)) // Ctrl-C
			m.await(p)
			if got := m.written(p); p.exit.ExitCode != 5 || !strings.Contains(got, "interrupted\n33 44") || !strings.Contains(got, "/dev/") {
				t.Errorf("%+v, %q", p.exit, got)
			}
			p = m.run(command{argv: []string{"/bin/sh", "-c", ": </dev/tty"}, sandbox: m.workspaceWrite()})
			if p.exit.ExitCode == 0 {
				t.Error("without a terminal /dev/tty can be opened")
			}
			if _, err := os.Stat("/bin/bash"); err != nil {
				return // no other shell is known to have jobs
			}
			p, id, err = m.begin(command{argv: []string{"/bin/bash", "--norc", "-i"}, sandbox: m.workspaceWrite(), tty: true})
			m.must(err)
			m.must(m.call("process/write", object{"processId": id, "writeId": "1", "chunk": []byte("sleep 100 & jobs; fg\n")}, nil))
			m.awaitOutput(p, "Running")
			eventually(t, "the shell has no jobs", func() bool { return strings.Contains(m.written(p), "sleep 100\n") })
			// Ctrl-Z does nothing until the job has the terminal, and takes away what was written
			// to the terminal and has not been read yet: also what the shell says of the one
			// before. So the shell is asked, and has time to answer.
			begun, tries := time.Time{}, 0
			eventually(t, "Ctrl-Z stops nothing", func() bool {
				if time.Since(begun) > time.Second {
					begun, tries = time.Now(), tries+1
					m.must(m.call("process/write", object{"processId": id, "writeId": fmt.Sprint("z", tries), "chunk": []byte("\x1ajobs\n")}, nil))
				}
				return strings.Contains(m.written(p), "Stopped")
			})
			m.must(m.call("process/write", object{"processId": id, "writeId": "3", "chunk": []byte("kill %1; exit 6\n")}, nil))
			m.must(m.call("process/write", object{"processId": id, "writeId": "4", "chunk": []byte("exit 6\n")}, nil))
			m.await(p)
			if p.exit.ExitCode != 6 {
				t.Errorf("%+v, %q", p.exit, m.written(p))
			}
		})
		t.Run("killed server", func(t *testing.T) { // rows 34 and 46
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "(setsid " + sleep + " &); echo ready; " + sleep}, sandbox: m.workspaceWrite()})
			m.must(err)
			m.awaitOutput(p, "ready")
			// Meanwhile somebody makes entries of their own: puts something into one,
			// an empty directory in the place of another, and a file of a third.
			own := func(name string) string { return filepath.Join(m.ws, name) }
			m.must(os.Chmod(own(".codex"), 0o755))
			m.write(own(".codex/config"), "mine")
			m.must(os.Rename(own(".agents"), own(".agents.old")))
			m.mkdir(own(".agents"))
			m.must(os.Remove(own(".aws")))
			m.write(own(".aws"), "mine")
			m.kill()
			eventually(t, "something has survived the server", func() bool { return !alive(t, sleep[6:]) })
			m.start() // finds what the other has left
			m.must(m.call("environment/info", nil, nil))
			if text, err := os.ReadFile(own(".codex/config")); string(text) != "mine" {
				t.Error(err)
			}
			for _, name := range []string{".codex", ".agents", ".aws"} {
				if _, err := os.Lstat(own(name)); err != nil {
					t.Error(err)
				}
				m.must(os.RemoveAll(own(name)))
			}
		})
		t.Run("killed server with nobody about", func(t *testing.T) { // row 46
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; " + sleep}, sandbox: m.workspaceWrite(at(m.outside, "write"))})
			m.must(err)
			m.awaitOutput(p, "ready")
			m.kill()
			eventually(t, "something has survived the server", func() bool { return !alive(t, sleep[6:]) })
			if _, err := os.Lstat(filepath.Join(m.ws, ".codex")); err != nil {
				t.Error("the killed server has left nothing: ", err)
			}
			m.start()
			m.must(m.call("environment/info", nil, nil))
			m.clean(m.ws, m.outside)
			if left, err := filepath.Glob(filepath.Join(m.state, "*")); err != nil || len(left) != 1 {
				t.Errorf("the state is %q, %v", left, err)
			}
		})
	})
}

// hog is a program that uses half a GiB of memory once.
func hog() {
	room := make([]byte, 512<<20)
	for i := range room {
		room[i] = 1
	}
	fmt.Println("full")
	for line := bytes.Repeat([]byte("flood\n"), 1<<10); ; room[0]++ {
		if _, err := os.Stdout.Write(line); err != nil {
			return
		}
	}
}

// hogs limits the number of hogs at a time, because of the machine's memory.
var hogs sync.Mutex

// TestFloods checks that the server answers while a confined command forks, writes and
// uses memory as fast as it can (row 35).
func TestFloods(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		for name, c := range map[string]command{
			"forks":  {argv: []string{"/bin/sh", "-c", "yes flood & while :; do sleep 0.001 & done"}},
			"memory": {argv: []string{m.program, "hog"}},
		} {
			t.Run(name, func(t *testing.T) {
				hogs.Lock()
				defer hogs.Unlock()
				c.sandbox = m.workspaceWrite()
				before := m.memory()
				p, id, err := m.begin(c)
				m.must(err)
				for range 10 { // the process has just started
					m.must(m.call("environment/info", nil, nil))
				}
				m.awaitOutput(p, "flood")
				for range 10 {
					m.must(m.call("environment/info", nil, nil))
				}
				if got := m.run(command{argv: []string{"/bin/echo", "beside"}, sandbox: m.workspaceWrite()}); m.written(got) != "beside\n" {
					t.Errorf("beside it: %q", m.written(got))
				}
				m.must(m.call("process/terminate", object{"processId": id}, nil))
				m.await(p)
				if p.exit.ExitCode != 137 || p.exit.SandboxDenied {
					t.Errorf("%+v", p.exit)
				}
				if after := m.memory(); after > before+64<<20 {
					t.Errorf("the server has grown by %d MiB", (after-before)>>20)
				}
			})
		}
	})
}
