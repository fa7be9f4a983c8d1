package testkit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { children["trace"] = childTrace }

// Undying is a process that takes as long to die as a test wants.
type Undying struct {
	stdin io.Closer
	lines chan string // that the tracer prints
}

// Hold keeps a process from dying, like one that waits for a file system which does not
// answer: a tracer stops the process while it exits. The tracer is another program. If it
// were the parent, any of the parent's threads could receive the tracer's notifications.
func Hold(t *testing.T, pid int) *Undying {
	t.Helper()
	argv, env := Child("trace", strconv.Itoa(pid))
	cmd := exec.Command(argv[0], argv[1:]...)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	stdin, stdout := StartPiped(t, cmd)
	u := &Undying{stdin: stdin, lines: make(chan string, 2)}
	go func() { // ends with the tracer
		defer close(u.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			u.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		u.Release()
		_ = cmd.Wait()
	})
	if line := <-u.lines; line != "held" {
		t.Skipf("processes cannot be traced here: %s", strings.TrimPrefix(line, "error "))
	}
	return u
}

// AwaitKill waits until the process has been killed.
func (u *Undying) AwaitKill(t *testing.T) {
	t.Helper()
	select {
	case line := <-u.lines:
		if line != "killed" {
			t.Fatalf("the tracer says %q, want killed", line)
		}
	case <-time.After(Patience):
		t.Fatal("the process was not killed")
	}
}

// Release lets the process die.
func (u *Undying) Release() { _ = u.stdin.Close() }

// childTrace stops a process while it exits, and releases it at the end of stdin.
func childTrace(args []string) {
	runtime.LockOSThread() // which traces it
	pid, err := strconv.Atoi(args[0])
	if err == nil {
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			err = errno
		}
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("held")
	var status unix.WaitStatus
	for {
		_, err = unix.Wait4(pid, &status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil || !status.Stopped() {
		fmt.Printf("ended: %v, status %#x\n", err, status)
		return
	}
	fmt.Println("killed")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = unix.PtraceDetach(pid)
}
