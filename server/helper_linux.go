package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/filesystem"
	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
	"execserver/protocol"
	"execserver/transport"
)

// A helper is this program in a sandbox, where it serves one request about
// files. It is a server of its own, to which this one sends the request as a
// client would, so that there is one way to serve it; or it opens a file, whose
// descriptor it hands back. Its standard input is a socket.
const (
	helperArgument = "@sandbox-files"
	openArgument   = "@sandbox-open"
)

// How a helper opens a file.
const (
	openRead         = "read"
	openReadNoFollow = "readNoFollow"
	openReplace      = "replace"
)

// maxOpenedBytes is the largest answer to openArgument.
const maxOpenedBytes = 64 << 10

func init() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == helperArgument:
		closeMemory()
		serveInside()
		syscall.Exit(0)
	case len(os.Args) == 4 && os.Args[1] == openArgument:
		closeMemory()
		openInside(os.Args[2], os.Args[3])
		syscall.Exit(0)
	}
}

// serveInside serves the server outside.
func serveInside() {
	s := New(&Options{inside: true, MaxMessageBytes: 1 << 30})
	// The stream ends after the answer; how is of no interest.
	_ = s.ServeOnly(transport.NewLines("sandbox", os.Stdin, os.Stdin, os.Stdin.Close, 1<<30))
	_ = s.FinishWrites(context.Background()) // the server outside kills what takes too long
}

// closeMemory keeps the memory of this helper from whoever it opens files for.
func closeMemory() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		syscall.Exit(1)
	}
}

// openInside opens a file for the server outside. What goes back is the
// descriptor, or an error.
func openInside(path, mode string) {
	var file *os.File
	var err error
	switch ctx := context.Background(); mode {
	case openReplace:
		file, err = filesystem.OpenFile(ctx, path, filesystem.HandleReplace)
	case openReadNoFollow:
		file, err = filesystem.OpenNoFollow(path)
	default:
		file, err = filesystem.OpenFile(ctx, path, filesystem.HandleRead)
	}
	if err == nil && filesystem.IsOwnProcess(file) {
		err = &fs.PathError{Op: "open", Path: path, Err: unix.EACCES}
	}
	message, rights := []byte("{}"), []byte(nil)
	if err == nil {
		rights = unix.UnixRights(int(file.Fd()))
	} else if message, err = json.Marshal(protocol.AsError(fileError(err))); err != nil {
		message = nil
	}
	_ = sys.Sendmsg(0, message, rights, nil, unix.MSG_NOSIGNAL) // who does not listen has gone
}

// helperGrace is how long a helper that changes files may go on after its request
// has lost its connection, so that what it writes in place is written whole.
const helperGrace = time.Minute

// runHelper runs a helper and calls talk with our end of its socket. When the
// context ends, the helper sees the end of its input, and is killed after grace.
func (c *connection) runHelper(ctx context.Context, policy *protocol.Sandbox, grace time.Duration, talk func(*os.File) error, args ...string) error {
	confinement, err := c.confine(ctx, policy)
	if err != nil {
		return err
	}
	defer c.unconfine(confinement)
	pair, err := sys.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("make the helper's socket", err)
	}
	_ = sys.SetNonblock(pair[0], true) // then it is in the poller
	ours, theirs := sys.NewFile(uintptr(pair[0]), "helper"), sys.NewFile(uintptr(pair[1]), "helper's end")
	defer ours.Close()
	defer theirs.Close()
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		endInput(ours)
		select {
		case <-time.After(grace):
			cancel()
		case <-lasting.Done():
		}
	})()
	done := make(chan error, 1)
	go func() { // ends with the helper, which ends with lasting
		var trouble strings.Builder
		err := confinement.Run(lasting, sandbox.Command{
			Program: launcher.Self, Argv: append([]string{"exec-server"}, args...), Dir: "/", Become: true,
		}, func(cmd *exec.Cmd) { cmd.Stdin, cmd.Stderr = theirs, &trouble })
		if err != nil && trouble.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, trouble.String())
		}
		_ = unix.Shutdown(pair[0], unix.SHUT_RDWR) // our end is open until this function has returned
		done <- err
	}()
	talkErr := talk(ours)
	cancel()
	helperErr := <-done
	switch {
	case talkErr == nil:
		return nil
	case helperErr != nil && errors.Is(talkErr, errHelperEnded):
		failure, ok := errors.AsType[*launcher.Failure](helperErr)
		if ok && failure.Stage == launcher.StageExec && failure.Errno == syscall.ENOENT {
			helperErr = errNotStatic
		}
		return protocol.Errorf(protocol.CodeInternal, "%s", &sandbox.PolicyError{Err: helperErr})
	}
	return talkErr
}

// errNotStatic is why a helper cannot be executed although it is there: its loader is
// not.
var errNotStatic = errors.New("this exec-server is linked dynamically, and a sandbox that shows nothing but some files has no libraries " +
	"for it; use the released program, or build it with CGO_ENABLED=0")

// endInput lets whoever reads the other end of a socket see that nothing more
// comes, unless the socket is closed already.
func endInput(socket *os.File) {
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// helperEnvelopeBytes is more than what a helper sends beside its answer.
const helperEnvelopeBytes = 64 << 10

var errHelperEnded = errors.New("the helper in the sandbox has ended without an answer")

// callConfined has a helper serve a request. Its answer has at most limit bytes,
// which the caller has reserved. params are not used any more when callConfined
// has returned.
func (c *connection) callConfined(ctx context.Context, policy *protocol.Sandbox, method string, params json.RawMessage, limit int) (rawAnswer, error) {
	var answer protocol.Message
	if bytes.IndexByte(params, '\n') >= 0 { // outside of strings, as JSON has it; the helper's messages are lines
		params = bytes.ReplaceAll(params, []byte("\n"), []byte(" "))
	}
	var writing sync.WaitGroup
	talk := func(socket *os.File) error {
		writing.Go(func() { // ends with the socket
			request := fmt.Sprintf(`{"id":0,"method":"initialize","params":{"clientName":"sandbox"}}`+"\n"+
				`{"method":"initialized"}`+"\n"+`{"id":1,"method":%q,"params":`, method)
			for _, part := range [][]byte{[]byte(request), params, []byte("}\n")} {
				if _, err := socket.Write(part); err != nil {
					return
				}
			}
		})
		lines := bufio.NewReader(io.LimitReader(socket, int64(limit)+helperEnvelopeBytes))
		for range 2 { // the first answers initialize
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return errHelperEnded
			}
			if answer, err = protocol.ParseMessage(line); err != nil {
				return fmt.Errorf("the helper's answer cannot be understood: %w", err)
			}
		}
		return nil
	}
	grace := helperGrace
	if looking[method] {
		grace = 0
	}
	err := c.runHelper(ctx, policy, grace, talk, helperArgument)
	writing.Wait() // params are the request's
	if err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return rawAnswer(answer.Result), nil
}

// openConfined has a helper open a file: openRead, openReadNoFollow or
// openReplace.
func (c *connection) openConfined(ctx context.Context, policy *protocol.Sandbox, path, mode string) (*os.File, error) {
	var file *os.File
	talk := func(socket *os.File) error {
		message, fd, err := sandbox.Receive(socket, maxOpenedBytes, syscall.RawConn.Read)
		if err != nil {
			return errHelperEnded
		}
		if fd >= 0 {
			file = sys.NewFile(uintptr(fd), path)
			return nil
		}
		var refused protocol.Error
		if err := json.Unmarshal(message, &refused); err != nil {
			return fmt.Errorf("the helper's answer cannot be understood: %w", err)
		}
		return &refused
	}
	err := c.runHelper(ctx, policy, 0, talk, openArgument, path, mode)
	return file, err
}
