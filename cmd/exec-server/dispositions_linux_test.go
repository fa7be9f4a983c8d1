package main

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// ofTheLibrary are the signals 32 and 33, which belong to the C library. glibc's
// posix_spawn, which make uses, starts programs that ignore them, and Go cannot catch the
// first.
const ofTheLibrary = 1<<31 | 1<<32

// TestIgnoredSignals checks that a server started with ignored signals, as by nohup,
// ignores them itself, but its processes do not.
func TestIgnoredSignals(t *testing.T) {
	for name, flags := range withAndWithoutKeeper {
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
