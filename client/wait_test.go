//go:build unix

package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/client"
	"execserver/internal/testkit"
)

// waiting is a command that is waited for, of os/exec or of ours.
type waiting interface {
	StdoutPipe() (io.ReadCloser, error)
	Start() error
	Wait() error
}

var (
	errEnough = errors.New("enough")
	errBroken = errors.New("broken")
)

// waitCase is a way to end and to wait for a command. What Wait says is what
// os/exec says: "exit 3", "SIGKILL", or the name of an error.
type waitCase struct {
	name   string
	script string // of sh; it says its process id when it is ready, and that of who holds its output
	end    string // how it is ended then: by its context, by kill(1), or not
	cancel string // Cancel: "", or a signal that it sends, or how it fails
	delay  time.Duration
	writer bool // Stdout is set, instead of a pipe that is not read on
	want   string

	pid int // of the process, once it runs
}

var waitCases = []waitCase{
	{name: "context", script: "echo $$; exec sleep 3600", end: "context", want: "SIGKILL"},
	{name: "context, unread", script: "echo $$; exec yes", end: "context", want: "SIGKILL"},
	{name: "context, unread, delay", script: "echo $$; exec yes", end: "context", delay: time.Minute, want: "SIGKILL"},
	{name: "context, unread by two", script: "echo $$; yes & exec yes", end: "context", want: "SIGKILL"},
	{name: "killed", script: "echo $$; exec sleep 3600", end: "kill", want: "SIGKILL"},
	{name: "killed, unread", script: "echo $$; exec yes", end: "kill", want: "SIGKILL"},
	{name: "killed, unread, delay", script: "echo $$; exec yes", end: "kill", delay: time.Minute, want: "SIGKILL"},
	{name: "obeys", script: "trap 'kill $!; exit 3' INT; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "interrupt", want: "exit 3"},
	{name: "obeys with success", script: "trap 'kill $!; exit 0' INT; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "interrupt", want: "context"},
	{name: "disobeys", script: "trap '' INT; echo $$; exec sleep 3600", end: "context", cancel: "interrupt", delay: 200 * time.Millisecond, want: "SIGKILL"},
	{name: "disobeys, unread", script: "trap '' INT; echo $$; yes", end: "context", cancel: "interrupt", delay: 200 * time.Millisecond, want: "SIGKILL"},
	{name: "disobeys, writer", script: "trap '' INT; echo $$; exec sleep 3600", end: "context", cancel: "interrupt", delay: 200 * time.Millisecond, writer: true, want: "SIGKILL"},
	{name: "ends meanwhile", script: "trap 'kill $!; exit 0' USR1; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "nothing", want: "context"},
	{name: "ends meanwhile, done", script: "trap 'kill $!; exit 0' USR1; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "done", want: ""},
	{name: "ends meanwhile, broken", script: "trap 'kill $!; exit 0' USR1; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "broken", want: "broken"},
	{name: "fails meanwhile, broken", script: "trap 'kill $!; exit 3' USR1; sleep 3600 >/dev/null & echo $$; wait", end: "context", cancel: "broken", want: "exit 3"},
	{name: "held", script: "sleep 3600 & echo $$ $!; exit 0", delay: 100 * time.Millisecond, writer: true, want: "ErrWaitDelay"},
	{name: "held, fails", script: "sleep 3600 & echo $$ $!; exit 3", delay: 100 * time.Millisecond, writer: true, want: "exit 3"},
	{name: "held, context", script: "sleep 3600 & echo $$ $!; exec sleep 3600", end: "context", delay: 100 * time.Millisecond, writer: true, want: "SIGKILL"},
	{name: "held, ends meanwhile", script: "trap 'exit 0' USR1; sleep 3600 & echo $$ $!; wait", end: "context", cancel: "ended", delay: 100 * time.Millisecond, writer: true, want: "context"},
}

// Wait says what os/exec says, as soon. Most rows wait, so that all places have theirs at once.
func TestWaitIsThatOfOSExec(t *testing.T) {
	t.Parallel()
	t.Run("os/exec", func(t *testing.T) {
		t.Parallel()
		for _, test := range waitCases {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				ctx, end := context.WithCancelCause(context.Background())
				c := exec.CommandContext(ctx, "sh", "-c", test.script)
				c.WaitDelay = test.delay
				if test.cancel != "" {
					c.Cancel = test.canceller(t, func() error { return c.Process.Signal(os.Interrupt) })
				}
				test.check(t, c, func(w io.Writer) { c.Stdout = w }, end)
			})
		}
	})
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			env := p.open(t, nil)
			for _, test := range waitCases {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					ctx, end := context.WithCancelCause(context.Background())
					c := env.Command(ctx, "sh", "-c", test.script)
					c.WaitDelay = test.delay
					if test.cancel != "" {
						c.Cancel = test.canceller(t, func() error { return c.Signal(context.Background(), os.Interrupt) })
					}
					test.check(t, c, func(w io.Writer) { c.Stdout = w }, end)
				})
			}
		})
	}
}

// canceller makes a Cancel. If that does not interrupt the process, SIGUSR1 is what makes
// it end meanwhile.
func (w *waitCase) canceller(t *testing.T, interrupt func() error) func() error {
	return func() error {
		if w.cancel == "interrupt" {
			return interrupt()
		}
		if err := syscall.Kill(w.pid, syscall.SIGUSR1); err != nil {
			return err
		}
		switch w.cancel {
		case "ended": // before the delay begins
			testkit.Gone(t, w.pid)
		case "done":
			return os.ErrProcessDone
		case "broken":
			return errBroken
		}
		return nil
	}
}

// check runs a command that has not been started, ends it, and checks what Wait
// says.
func (w *waitCase) check(t *testing.T, c waiting, setStdout func(io.Writer), cancel context.CancelCauseFunc) {
	defer cancel(nil)
	var stdout io.Reader
	if w.writer {
		r, theirs := io.Pipe()
		defer r.Close()
		stdout = r
		setStdout(theirs)
	} else {
		var err error
		if stdout, err = c.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReaderSize(stdout, 16)
	line, err := lines.ReadString('\n')
	var pid, holder int
	_, _ = fmt.Sscan(line, &pid, &holder)
	w.pid = pid
	if err != nil || pid == 0 {
		t.Fatalf("the process says %q: %v", line, err)
	}
	if holder != 0 {
		defer func() { _ = syscall.Kill(holder, syscall.SIGKILL) }()
	}
	if w.writer {
		go func() { _, _ = io.Copy(io.Discard, lines) }()
	}
	if strings.Contains(w.name, "unread") {
		awaitBlocked(t, pid)
	}
	switch w.end {
	case "context":
		cancel(errEnough)
	case "kill":
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	testkit.Within(t, "Wait", func() {
		if got := ending(c.Wait()); got != w.want {
			t.Errorf("Wait says %q, not %q", got, w.want)
		}
	})
}

// awaitBlocked waits until a process writes no more, where the system tells how
// much it has written.
func awaitBlocked(t *testing.T, pid int) {
	t.Helper()
	last, same := "", 0
	testkit.WaitFor(t, testkit.Patience, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		_, after, _ := strings.Cut(string(text), "wchar: ")
		written, _, _ := strings.Cut(after, "\n")
		if same++; written != last {
			last, same = written, 0
		}
		if err == nil && same < 10 {
			return fmt.Errorf("it has written %s bytes, and writes on", written)
		}
		return nil
	})
}

// ending names what Wait says.
func ending(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			return unix.SignalName(status.Signal())
		}
		return fmt.Sprintf("exit %d", exit.ExitCode())
	}
	exit, ok := errors.AsType[*client.ExitError](err)
	switch {
	case ok && (exit.Signal == "SIGKILL" || exit.ExitCode == 137): // the released server tells no signal
		return "SIGKILL"
	case ok:
		return fmt.Sprintf("exit %d", exit.ExitCode)
	case errors.As(err, new(*client.LostError)):
		return err.Error()
	case errors.Is(err, errBroken):
		return "broken"
	case errors.Is(err, errEnough), errors.Is(err, context.Canceled): // ours tells the cause
		return "context"
	case errors.Is(err, exec.ErrWaitDelay):
		return "ErrWaitDelay"
	case err != nil:
		return err.Error()
	}
	return ""
}

// A server that does not support acknowledgements sends its answer to a kill behind much
// output that nobody reads. Wait still ends. The test runs alone, because it moves much.
func TestKillBehindUnreadOutput(t *testing.T) {
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		id, ok := c.start()
		c.output(id, 1, "ready\n")
		kill, ok2 := c.expect("process/terminate")
		if !ok || !ok2 {
			return
		}
		much := strings.Repeat("x", 1<<20)
		for seq := range uint64(96) {
			c.output(id, 2+seq, much)
		}
		c.reply(kill, object{"running": true})
		c.exited(id, 98, 137)
		c.closed(id, 99)
		c.drain()
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	cmd := f.dial(nil).Command(ctx, "flood")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the process says %q: %v", line, err)
	}
	cancel(errEnough)
	testkit.Within(t, "Wait", func() {
		if got := ending(cmd.Wait()); got != "SIGKILL" {
			t.Errorf("Wait says %q, not SIGKILL", got)
		}
	})
}

// What was written before the end can be read after it, however it came.
func TestUnreadOutputAfterWait(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		if p.codex {
			t.Skip("the released server throws output away when it kills")
		}
		ctx, cancel := context.WithCancel(background(t))
		c := childContext(ctx, env, "pattern", strconv.Itoa(32<<20))
		stdout, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var check patternChecker
		if _, err := io.CopyN(&check, stdout, 1000); err != nil {
			t.Fatal(err)
		}
		cancel()
		testkit.Within(t, "Wait", func() {
			if got := ending(c.Wait()); got != "SIGKILL" {
				t.Errorf("Wait says %q", got)
			}
		})
		testkit.Within(t, "the rest", func() {
			if _, err := io.Copy(&check, stdout); err != nil || check.bad != nil {
				t.Errorf("the rest: %v, %v", err, check.bad)
			}
		})
	})
}

// A limit that ends a process is told although nobody takes its output.
func TestLimitEndsUnread(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		c := env.Command(background(t), "yes")
		c.Limits = client.Limits{Timeout: 200 * time.Millisecond}
		if _, err := c.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); errors.Is(err, errors.ErrUnsupported) {
			t.Skip("the server has no limits")
		} else if err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "Wait", func() {
			if exit, ok := errors.AsType[*client.ExitError](c.Wait()); !ok || exit.EndedBy != "timeout" {
				t.Errorf("Wait: %v", exit)
			}
		})
	})
}

// Close tells how the processes ended that it ends, also when nobody takes their
// output.
func TestCloseTellsEndings(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			env := p.open(t, nil)
			c := env.Command(background(t), "sh", "-c", "echo $$; exec yes")
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(stdout, &pid); err != nil {
				t.Fatal(err)
			}
			awaitBlocked(t, pid)
			testkit.Within(t, "Close", func() { _ = env.Close() })
			testkit.Within(t, "Wait", func() {
				if got := ending(c.Wait()); got != "SIGKILL" {
					t.Errorf("Wait says %q", got)
				}
			})
		})
	}
}
