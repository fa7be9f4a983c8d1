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
	"runtime"
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
// socket of the outer server, its only client: see launcher.Require.
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

// runHelper makes this program a helper if a server started it as one.
func runHelper() {
	launcher.Run()
	switch {
	case len(os.Args) == 3 && os.Args[1] == helperArgument:
		launcher.Require()
		closeMemory()
		serveInside(os.Args[2] == "true")
		syscall.Exit(0)
	case len(os.Args) == 5 && os.Args[1] == openArgument:
		launcher.Require()
		closeMemory()
		openInside(os.Args[2], os.Args[3], os.Args[4])
		syscall.Exit(0)
	}
}

// serveInside serves the outer server, with its DurableWrites.
func serveInside(durable bool) {
	s := New(&Options{inside: true, DurableWrites: durable, MaxMessageBytes: 1 << 30})
	// The stream ends after the answer; its error does not matter.
	_ = s.ServeOnly(transport.NewLines("sandbox", os.Stdin, os.Stdin, os.Stdin.Close, 1<<30))
	_ = s.FinishWrites(context.Background()) // the outer server kills a helper that takes too long
}

// closeMemory makes the memory of this helper unreadable for the clients for which it opens
// files.
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
		file, err = filesystem.OpenNoFollow(ctx, path)
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
	err = sys.Sendmsg(0, message, rights, nil, unix.MSG_NOSIGNAL) // else fails only if the outer server is gone
	if err != unix.ETOOMANYREFS {
		return
	}
	// Commands of this user have sent too many descriptors that are not received yet. The
	// kernel checks the limit before it counts a message, so commands can exceed it.
	message, _ = json.Marshal(offer{int(file.Fd())})
	if sys.Sendmsg(0, message, nil, nil, unix.MSG_NOSIGNAL) == nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the outer server has taken it
	}
	runtime.KeepAlive(file)
}

// offer is an answer to openArgument whose descriptor the outer server has to take.
type offer struct {
	Descriptor int `json:"descriptor"`
}

// take takes an offered descriptor from a helper, which the creator of its user namespace
// may do.
func take(pid, descriptor int) (int, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, os.NewSyscallError("find the helper", err)
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, descriptor, 0)
	if err != nil {
		return -1, os.NewSyscallError("take the file from the helper, because too many descriptors of this user "+
			"are on their way through unix sockets", err)
	}
	return fd, nil
}

// helperGrace is how long a helper that changes files may continue after its request has
// lost its connection, so that it finishes a write in place.
const helperGrace = time.Minute

// withHelper runs a helper and calls talk with this end of its socket. When the context
// ends, the helper sees the end of its input, and is killed after grace.
func (h *fileSandbox) withHelper(ctx context.Context, policy *protocol.Sandbox, grace time.Duration, talk func(*os.File) error, args ...string) error {
	confinement, err := h.confine(ctx, policy)
	if err != nil {
		return err
	}
	defer h.release(confinement)
	pair, err := sys.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("make the helper's socket", err)
	}
	_ = sys.SetNonblock(pair[0], true)                                    // so that the poller accepts it
	_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1) // for an offer
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
			Program: launcher.Self, Argv: append([]string{"exec-server"}, args...), Dir: "/", Exec: true, Helper: true,
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

// errNotStatic is the error when a helper exists and cannot be executed, because the sandbox
// does not contain its dynamic loader.
var errNotStatic = errors.New("this exec-server is linked dynamically, and a sandbox that shows nothing but some files has no libraries " +
	"for it; use the released program, or build it with CGO_ENABLED=0")

// endInput closes the write side of a socket, so that the peer reads the end of its input.
// It does nothing if the socket is closed already.
func endInput(socket *os.File) {
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// helperEnvelopeBytes exceeds the bytes that a helper sends in addition to its answer.
const helperEnvelopeBytes = 64 << 10

var errHelperEnded = errors.New("the helper in the sandbox has ended without an answer")

// call lets a helper serve a request. The caller has reserved limit bytes for the
// answer. call does not use params after it has returned.
func (h *fileSandbox) call(ctx context.Context, policy *protocol.Sandbox, method string, params json.RawMessage, limit int) (rawAnswer, error) {
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
	err := h.withHelper(ctx, policy, grace, talk, helperArgument, strconv.FormatBool(h.server.opts.DurableWrites))
	writing.Wait() // the request owns params
	if err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return rawAnswer(answer.Result), nil
}

// open lets a helper open a file: mode is openRead, openReadNoFollow, openReplace
// or openUpdate, and create the mode of a new file.
func (h *fileSandbox) open(ctx context.Context, policy *protocol.Sandbox, path, mode string, create fs.FileMode) (*os.File, error) {
	var file *os.File
	talk := func(socket *os.File) error {
		message, fd, pid, err := sandbox.ReceiveFrom(socket, maxOpenedBytes, syscall.RawConn.Read)
		if err != nil {
			return errHelperEnded
		}
		var offered offer
		if fd < 0 && json.Unmarshal(message, &offered) == nil && offered.Descriptor > 0 {
			if fd, err = take(pid, offered.Descriptor); err != nil {
				return err
			}
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
	err := h.withHelper(ctx, policy, 0, talk, openArgument, path, mode, strconv.FormatUint(uint64(create.Perm()), 8))
	return file, err
}
