package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestInheritedDescriptors checks that the server passes none of the descriptors with
// which it was started to its processes, which may live for ever. It also checks that
// processes start where a container refuses newer system calls.
func TestInheritedDescriptors(t *testing.T) {
	for _, call := range []struct {
		name   string
		number uint32
	}{
		{"clone3", unix.SYS_CLONE3},
		{"close_range", unix.SYS_CLOSE_RANGE},
	} {
		for _, errno := range []unix.Errno{0, unix.ENOSYS, unix.EPERM} {
			t.Run(fmt.Sprintf("%s=%d", call.name, errno), func(t *testing.T) {
				command := exec.Command("exec-server")
				if errno != 0 {
					if testkit.ThreadsNeed(call.number, errno) {
						t.Skip("this test program makes no threads without it")
					}
					command.Env = append(os.Environ(), testkit.Refusing(call.number, errno))
				}
				command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: testkit.Cgroup(t)}
				inheritedDescriptors(t, command)
			})
		}
	}
}

func inheritedDescriptors(t *testing.T, command *exec.Cmd) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	command.ExtraFiles = []*os.File{w} // descriptor 3
	command.Args = append(command.Args, "--listen=stdio")
	p, err := launch(command, false)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	c := (&ownedProgram{p, t}).connect()
	c.start(shellSpec("p", "readlink /proc/$$/fd/2; readlink /proc/$$/fd/3; echo end"))
	c.closed("p")
	if lines := strings.Split(c.processes.Of("p").Output.String(), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "pipe:") || lines[1] != "end" {
		t.Errorf("descriptors 2 and 3 are %q", lines)
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
}

// ofTheLibrary are the signals 32 and 33, which belong to the C library. glibc's
// posix_spawn, which make uses, starts programs that ignore them, and Go cannot catch the
// first.
const ofTheLibrary = 1<<31 | 1<<32

// TestIgnoredSignals checks that a server started with ignored signals, as by nohup,
// ignores them itself, but its processes do not.
func TestIgnoredSignals(t *testing.T) {
	for name, flags := range withAndWithoutSupervisor {
		t.Run(name, func(t *testing.T) {
			command := exec.Command("/bin/sh", append([]string{
				"-c", `trap "" HUP INT QUIT PIPE USR1 TSTP ALRM; exec exec-server "$@"`, "sh", "--listen=unix://" + socketPath(t),
			}, flags...)...)
			program, err := launch(command, true)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(program.kill)
			p := &ownedProgram{program, t}
			c := p.connect()
			for _, tty := range []bool{false, true} {
				id := "status"
				start := shellSpec(id, "while read -r name value; do [ $name = SigIgn: ] && echo $value; done < /proc/self/status")
				if start["tty"] = tty; tty {
					id = "terminal"
					start["processId"] = id
				}
				c.start(start)
				c.closed(id)
				text := strings.TrimSpace(c.processes.Of(id).Output.String())
				got, err := strconv.ParseUint(text, 16, 64)
				if err != nil || got&^ofTheLibrary != 0 {
					t.Errorf("tty=%v: a process ignores the signals of the mask %s", tty, text)
				}
			}
			_ = p.command.Process.Signal(syscall.SIGHUP)
			c.start(spec("idle", "idle")) // so the server is ready
			c.call("process/signal", object{"processId": "idle", "signal": "SIGHUP"}, nil)
			if e := c.exited("idle"); e.Signal != "SIGHUP" {
				t.Errorf("a process that got SIGHUP exited with %+v", e)
			}
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
		})
	}
}

// TestOOMScore checks that a server that the OOM killer spares does not extend this to
// its processes: they have the value with which the server was started.
func TestOOMScore(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		p := startListening(t, attr, flags...)
		c := p.connect()
		path := fmt.Sprintf("/proc/%d/oom_score_adj", p.server())
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := strings.TrimSpace(string(text))
		for _, changed := range []string{"777", "-123"} {
			if err := os.WriteFile(path, []byte(changed), 0); err != nil {
				t.Logf("the server cannot have %s: %v", changed, err)
				continue
			}
			for _, tty := range []bool{false, true} {
				id := fmt.Sprint(changed, tty)
				start := shellSpec(id, "until [ $(cat /proc/$$/oom_score_adj) = "+before+" ]; do :; done; (cat /proc/self/oom_score_adj)")
				start["tty"] = tty
				c.start(start)
				if got := strings.TrimSpace(c.outputOf(id)); got != before {
					t.Errorf("a process has oom_score_adj %q, want %s", got, before)
				}
			}
		}
	})
}
