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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
	"execserver/protocol"
	"execserver/transport"
)

// A helper is this program in a sandbox, where it serves one file request. It is a server
// itself: the outer server sends it the request as a client would, so there is one
// implementation. Or it opens a file and returns the descriptor. Its standard input is a
// socket. It serves nobody else: see launcher.Require.
const (
	helperArgument = "@sandbox-files"
	openArgument   = "@sandbox-open"
)

// How a helper opens a file.
const (
	openRead         = "read"
	openReadNoFollow = "readNoFollow"
	openReplace      = "replace"
	openUpdate       = "update"
)

// maxOpenedBytes is the largest answer to openArgument.
const maxOpenedBytes = 64 << 10

// runHelper makes this program a helper if that is what a server started it for.
func runHelper() {
	launcher.Run()
	switch {
	case len(os.Args) == 2 && os.Args[1] == helperArgument:
		launcher.Require()
		closeMemory()
		serveInside()
		syscall.Exit(0)
	case len(os.Args) == 5 && os.Args[1] == openArgument:
		launcher.Require()
		closeMemory()
		openInside(os.Args[2], os.Args[3], os.Args[4])
		syscall.Exit(0)
	}
}

// serveInside serves the outer server.
func serveInside() {
	s := New(&Options{inside: true, MaxMessageBytes: 1 << 30})
	// The stream ends after the answer; its error does not matter.
	_ = s.ServeOnly(transport.NewLines("sandbox", os.Stdin, os.Stdin, os.Stdin.Close, 1<<30))
	_ = s.FinishWrites(context.Background()) // the outer server kills what takes too long
}

// closeMemory keeps the memory of this helper from the clients for which it opens files.
func closeMemory() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		syscall.Exit(1)
	}
}

// openInside opens a file for the outer server. It sends back the descriptor or an error.
// create is the mode of a new file, in octal.
func openInside(path, mode, create string) {
	perm, _ := strconv.ParseUint(create, 8, 9) // 0, the strictest, if it is invalid
	var file *os.File
	var err error
	switch ctx := context.Background(); mode {
	case openReplace:
		file, err = filesystem.OpenFile(ctx, path, filesystem.HandleReplace, fs.FileMode(perm))
	case openUpdate:
		file, err = filesystem.OpenFile(ctx, path, filesystem.HandleUpdate, fs.FileMode(perm))
	case openReadNoFollow:
		file, err = filesystem.OpenNoFollow(path)
	default:
		file, err = filesystem.OpenFile(ctx, path, filesystem.HandleRead, 0)
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
	_ = sys.Sendmsg(0, message, rights, nil, unix.MSG_NOSIGNAL) // fails only if the outer server is gone
}

// helperGrace is how long a helper that changes files may continue after its request has
// lost its connection, so that it finishes a write in place.
const helperGrace = time.Minute

// withHelper runs a helper and calls talk with this end of its socket. When the context
// ends, the helper sees the end of its input, and is killed after grace.
func (c *connection) withHelper(ctx context.Context, policy *protocol.Sandbox, grace time.Duration, talk func(*os.File) error, args ...string) error {
	confinement, err := c.confine(ctx, policy)
	if err != nil {
		return err
	}
	defer c.unconfine(confinement)
	pair, err := sys.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("make the helper's socket", err)
	}
	_ = sys.SetNonblock(pair[0], true) // so that the poller accepts it
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
			Program: launcher.Self, Argv: append([]string{"exec-server"}, args...), Dir: "/", Become: true, Helper: true,
		}, func(cmd *exec.Cmd) { cmd.Stdin, cmd.Stderr = theirs, &trouble })
		if err != nil && trouble.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, trouble.String())
		}
		_ = unix.Shutdown(pair[0], unix.SHUT_RDWR) // this end is open until the function has returned
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

// errNotStatic says why a helper cannot be executed although it exists: the sandbox does
// not contain its loader.
var errNotStatic = errors.New("this exec-server is linked dynamically, and a sandbox that shows nothing but some files has no libraries " +
	"for it; use the released program, or build it with CGO_ENABLED=0")

// endInput closes the write side of a socket, so that the reader at the other end sees
// the end, unless the socket is closed already.
func endInput(socket *os.File) {
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// helperEnvelopeBytes is more than a helper sends besides its answer.
const helperEnvelopeBytes = 64 << 10

var errHelperEnded = errors.New("the helper in the sandbox has ended without an answer")

// callConfined lets a helper serve a request. The caller has reserved limit bytes for the
// answer. callConfined does not use params after it has returned.
func (c *connection) callConfined(ctx context.Context, policy *protocol.Sandbox, method string, params json.RawMessage, limit int) (rawAnswer, error) {
	var answer protocol.Message
	if bytes.IndexByte(params, '\n') >= 0 { // JSON allows them between tokens, but the helper's messages are lines
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
	if reading[method] {
		grace = 0
	}
	err := c.withHelper(ctx, policy, grace, talk, helperArgument)
	writing.Wait() // the request owns params
	if err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return rawAnswer(answer.Result), nil
}

// openConfined lets a helper open a file: mode is openRead, openReadNoFollow, openReplace
// or openUpdate, and create the mode of a new file.
func (c *connection) openConfined(ctx context.Context, policy *protocol.Sandbox, path, mode string, create fs.FileMode) (*os.File, error) {
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
	err := c.withHelper(ctx, policy, 0, talk, openArgument, path, mode, strconv.FormatUint(uint64(create.Perm()), 8))
	return file, err
}
