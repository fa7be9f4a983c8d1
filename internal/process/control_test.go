//go:build unix

package process_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestCloseStdinComesAfterTheWrites checks that the input closes after all earlier
// writes, however long the child takes to read them.
func TestCloseStdinComesAfterTheWrites(t *testing.T) {
	for _, size := range []int{0, 1, 5 << 20} {
		gate := filepath.Join(t.TempDir(), "go")
		spec := child("drain", gate)
		spec.PipeStdin = true
		p := start(t, spec, nil)
		hasOutput(t, p, "ready\n")
		want := strings.Repeat("x", size)
		if status := write(t, p, want); status != protocol.WriteAccepted {
			t.Fatal(status)
		}
		for range 2 {
			if err := p.CloseStdin(); err != nil {
				t.Fatal(err)
			}
		}
		if status := write(t, p, "late"); status != protocol.WriteStdinClosed || !p.StdinClosed() {
			t.Errorf("a write after the close: %s", status)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := follow(t, p)
		if got := strings.TrimPrefix(s.All, "ready\n"); got != want || s.Exit.ExitCode != 0 {
			t.Errorf("%d of %d bytes came back, exit code %d", len(got), len(want), s.Exit.ExitCode)
		}
	}
}

func TestCloseStdinOfOthers(t *testing.T) {
	none := start(t, child("idle"), nil)
	if err := none.CloseStdin(); err != nil || !none.StdinClosed() {
		t.Errorf("without stdin: %v", err)
	}
	spec := child("idle")
	spec.TTY = true
	if err := start(t, spec, nil).CloseStdin(); !errors.Is(err, process.ErrTerminal) {
		t.Errorf("of a terminal: %v", err)
	}
	spec = child("exit", "0")
	spec.PipeStdin = true
	ended := start(t, spec, nil)
	follow(t, ended)
	if err := ended.CloseStdin(); err != nil {
		t.Errorf("of an ended process: %v", err)
	}
}

func onTerminal(t *testing.T, command string, size protocol.TerminalSize) *process.Process {
	t.Helper()
	if !process.Terminals {
		t.Skip("there are no terminals here")
	}
	spec := shell(command)
	spec.TTY, spec.Size = true, size
	return start(t, spec, nil)
}

func TestResize(t *testing.T) {
	p := onTerminal(t, `trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done`, protocol.TerminalSize{Rows: 3, Cols: 65535})
	hasOutput(t, p, "3 65535\r\n")
	if err := p.Resize(protocol.TerminalSize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	hasOutput(t, p, "40 100\r\n")
	p.Terminate()
	follow(t, p)
	if err := p.Resize(protocol.TerminalSize{Rows: 1, Cols: 1}); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if err := start(t, child("idle"), nil).Resize(process.DefaultSize); !errors.Is(err, process.ErrNoTerminal) {
		t.Errorf("without a terminal: %v", err)
	}
}

// TestResizeKeepsItsPlace checks that a size takes effect after the writes before it,
// even while the program does not read, and that the last of several counts.
func TestResizeKeepsItsPlace(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "go")
	command := fmt.Sprintf(`stty raw -echo; echo ready; until test -e '%s'; do sleep 0.01; done; stty size; dd bs=1 count=200000 of=/dev/null 2>/dev/null; until test "$(stty size)" = "7 8"; do sleep 0.01; done; echo resized`, gate)
	p := onTerminal(t, command, protocol.TerminalSize{Rows: 24, Cols: 80})
	hasOutput(t, p, "ready")
	if status := write(t, p, strings.Repeat("x", 200_000)); status != protocol.WriteAccepted {
		t.Fatal(status)
	}
	for i := range 1000 {
		if err := p.Resize(protocol.TerminalSize{Rows: 1000, Cols: uint16(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Resize(protocol.TerminalSize{Rows: 7, Cols: 8}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hasOutput(t, p, "24 80") // not yet
	hasOutput(t, p, "resized")
}

// TestSignalForeground uses a shell with job control, which puts jobs into groups of
// their own. A signal to the shell's group does not reach them.
func TestSignalForeground(t *testing.T) {
	p := onTerminal(t, `set -m; sh -c 'trap "echo job; exit" USR1; echo started; while :; do sleep 0.02; done'; echo back`, process.DefaultSize)
	hasOutput(t, p, "started")
	if err := p.SignalForeground(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	hasOutput(t, p, "job")
	hasOutput(t, p, "back")
	follow(t, p)
	if err := p.SignalForeground(syscall.SIGUSR1); !errors.Is(err, process.ErrFinished) {
		t.Errorf("after the end: %v", err)
	}
	if err := start(t, child("idle"), nil).SignalForeground(syscall.SIGINT); !errors.Is(err, process.ErrNoTerminal) {
		t.Errorf("without a terminal: %v", err)
	}
}

func TestSignalNumbers(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": 9, "SIGNOPE": 0, "TERM": 0} {
		if got := process.SignalNumber(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

func TestTerminateGracefully(t *testing.T) {
	t.Run("ends by itself", func(t *testing.T) {
		p := start(t, shell(`trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done`), nil)
		hasOutput(t, p, "ready")
		if !p.TerminateGracefully(time.Hour) {
			t.Error("was not running")
		}
		if s := follow(t, p); s.Exit.ExitCode != 3 || !strings.HasSuffix(s.Output["stdout"], "bye\n") {
			t.Errorf("code %d, output %q", s.Exit.ExitCode, s.All)
		}
		if p.TerminateGracefully(time.Hour) {
			t.Error("runs after it has closed")
		}
	})
	t.Run("has to be ended", func(t *testing.T) {
		p := start(t, shell(`trap '' TERM; echo ready; while :; do sleep 0.02; done`), nil)
		hasOutput(t, p, "ready")
		p.TerminateGracefully(time.Hour)
		p.TerminateGracefully(50 * time.Millisecond) // the earlier end counts
		p.TerminateGracefully(time.Hour)
		if s := follow(t, p); s.Exit.ExitCode != 137 {
			t.Errorf("code %d", s.Exit.ExitCode)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		p := start(t, shell(`trap 'exit 4' TERM; (kill -STOP $$; echo ready) & while :; do sleep 0.02; done`), nil)
		hasOutput(t, p, "ready")
		p.TerminateGracefully(time.Hour)
		if s := follow(t, p); s.Exit.ExitCode != 4 {
			t.Errorf("code %d", s.Exit.ExitCode)
		}
	})
	t.Run("force overtakes it", func(t *testing.T) {
		p := start(t, shell(`trap '' TERM; echo ready; while :; do sleep 0.02; done`), nil)
		hasOutput(t, p, "ready")
		p.TerminateGracefully(time.Hour)
		p.Terminate()
		if s := follow(t, p); s.Exit.ExitCode != 137 {
			t.Errorf("code %d", s.Exit.ExitCode)
		}
	})
	t.Run("what ignores it and let go of the streams ends with the rest", func(t *testing.T) {
		p := start(t, shell(`(trap '' TERM; echo $$ >&2; exec sleep 1000 >/dev/null 2>&1 </dev/null) & trap 'exit 0' TERM; echo $!; wait`), nil)
		var pid int
		testkit.WaitFor(t, testkit.Patience, func() (err error) {
			chunks := p.Log.Read(0, nil).Chunks
			for _, c := range chunks {
				if c.Stream == protocol.Stdout {
					pid, err = strconv.Atoi(strings.TrimSpace(string(c.Data)))
				}
			}
			if pid == 0 || len(chunks) < 2 {
				return errors.New("not started yet")
			}
			return err
		})
		p.TerminateGracefully(time.Hour)
		if s := follow(t, p); s.Exit.ExitCode != 0 {
			t.Errorf("code %d", s.Exit.ExitCode)
		}
		if testkit.Alive(pid) {
			t.Error("lives on after closed")
		}
	})
}

func TestDescribe(t *testing.T) {
	long := strings.Repeat("ü", 1000)
	spec := shell("exit")
	spec.Argv = append(spec.Argv, long, long, "more")
	spec.Dir = t.TempDir()
	p := start(t, spec, nil)
	d := p.Describe()
	last := d.Argv[len(d.Argv)-1]
	if d.Pid != p.Pid() || d.Dir != spec.Dir || d.TTY || !d.ArgvTruncated || len(d.Argv) != 4 || len(last) > 1024 || !strings.HasPrefix(long, last) {
		t.Errorf("%+v", d)
	}
	if age := time.Since(d.Started); age < 0 || age > testkit.Patience {
		t.Errorf("started %v ago", age)
	}
	if d := start(t, child("idle"), nil).Describe(); d.ArgvTruncated || len(d.Argv) != 1 {
		t.Errorf("%+v", d)
	}
}
