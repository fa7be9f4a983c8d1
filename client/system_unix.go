//go:build unix

package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalName returns the POSIX name of a signal.
func signalName(sig os.Signal) (string, error) {
	if s, ok := sig.(syscall.Signal); ok {
		if name := unix.SignalName(s); name != "" {
			return name, nil
		}
	}
	return "", fmt.Errorf("client: signal %v has no name that a server would know", sig)
}

// ownGroup makes a command the leader of a process group, which signals of this program's
// terminal do not reach.
func ownGroup(command *exec.Cmd) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = new(syscall.SysProcAttr)
	}
	if !command.SysProcAttr.Setsid {
		command.SysProcAttr.Setpgid = true
	}
}

// It fails only if the group is gone.

func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// stoppable returns a reader of a file that reads nothing after ctx has ended, because
// those bytes are for the next reader of the file. The caller must call release when it
// no longer reads.
func stoppable(ctx context.Context, f *os.File) (r io.Reader, release func()) {
	conn, err := f.SyscallConn()
	if err != nil {
		return f, func() {}
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return f, func() {}
	}
	stop := context.AfterFunc(ctx, func() { _ = theirs.Close() })
	wait := func() bool {
		ready := false
		err := conn.Control(func(fd uintptr) {
			// Not ours.Fd, which would make it blocking. Nothing else uses it.
			ended, err := ours.SyscallConn()
			if err != nil {
				return
			}
			_ = ended.Control(func(end uintptr) {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(end), Events: unix.POLLIN}}
				for {
					if _, err := unix.Poll(fds, -1); err != unix.EINTR {
						break
					}
				}
				// Input after the end of ctx may be noticed before theirs is closed.
				ready = fds[1].Revents == 0 && ctx.Err() == nil
			})
		})
		return err == nil && ready
	}
	return &polledFile{f, wait}, func() {
		if stop() {
			_ = theirs.Close()
		}
		_ = ours.Close()
	}
}

// polledFile is a file that is read when wait reports input.
type polledFile struct {
	file *os.File
	wait func() bool
}

// Read implements io.Reader.
func (p *polledFile) Read(b []byte) (int, error) {
	if !p.wait() {
		return 0, io.EOF
	}
	return p.file.Read(b)
}
